"""Images: components that the program imports, and their locked dependencies, without further packages."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.image_wheels import components_of, imports_of

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
OURS = frozenset(path.parent.name for path in ROOT.glob("*/kplane/*/__init__.py"))
"""The components: `provider` is the folder provider/, imported as kplane.provider."""


@dataclass(frozen=True)
class Image:
    """Programs and dependencies of an image."""

    target: str
    programs: tuple[str, ...]
    """Programs of the image. A container runs the first unless told otherwise."""
    extras: tuple[str, ...]
    """Extras of the project besides its common dependencies."""

    @property
    def lock(self) -> dict[str, tuple[str, str]]:
        return read_lock(ROOT / "deploy" / "images" / f"{self.target}.lock")

    @property
    def declared(self) -> frozenset[str]:
        extras = (PROJECT["optional-dependencies"][extra] for extra in self.extras)
        texts = [*PROJECT["dependencies"], *(text for extra in extras for text in extra)]
        return frozenset(canonicalize_name(Requirement(text).name) for text in texts)


IMAGES = [
    Image("operator", programs=("controlplane-operator", "egress-proxy"), extras=("operator",)),
    Image("mcm", programs=("mcm",), extras=()),
    Image("gateway", programs=("kplane-gateway",), extras=("gateway",)),
]

each_image = pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.target)


def read_lock(path: Path) -> dict[str, tuple[str, str]]:
    """Return the version of each distribution of a lock file, and the text with its marker and hashes."""
    entries = re.findall(r"^([a-z0-9.-]+)==(\S+)(.*(?:\n +--hash=.*)+)", path.read_text(), re.MULTILINE)
    return {name: (version, rest) for name, version, rest in entries}


def stage(name: str) -> list[str]:
    """Return the instructions of a stage of the Dockerfile."""
    match = re.search(rf"^FROM \S+ AS {name}\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL)
    assert match, f"the Dockerfile has no stage {name}"
    return match[1].splitlines()


def copied(instructions: list[str]) -> list[str]:
    """Return the paths of the build context that instructions copy."""
    lines = [line.split() for line in instructions if line.startswith("COPY ") and "--from=" not in line]
    return [word for line in lines for word in line[1:-1] if not word.startswith("--")]


def packages_for(image: Image) -> frozenset[str]:
    """Return the components that the programs of an image import, directly or not."""
    return frozenset[str]().union(*(components_of(program, project=PROJECT) for program in image.programs))


def test_project_names_the_programs_of_each_image() -> None:
    assert PYPROJECT["tool"]["kplane"]["images"] == {image.target: list(image.programs) for image in IMAGES}


def test_read_lock_returns_versions_markers_and_hashes() -> None:
    lock = read_lock(ROOT / "requirements.lock")
    assert len(lock) == len(re.findall("^[^ #\n]", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    version, rest = lock["cffi"]
    assert version[0].isdigit()
    assert "platform_python_implementation" in rest
    assert "--hash=sha256:" in rest


@each_image
def test_builder_of_image_uses_the_lock_of_the_image(image: Image) -> None:
    assert f"deploy/images/{image.target}.lock" in copied(stage(f"{image.target}-builder"))
    assert f"COPY --from={image.target}-builder /opt/kplane /opt/kplane" in stage(image.target)


@each_image
def test_builder_installs_the_wheels_of_the_image(image: Image) -> None:
    builder = stage(f"{image.target}-builder")
    assert f"COPY build/wheels/{image.target} /tmp/wheels" in builder
    installs = [" ".join(line.split()) for line in builder if "--no-index" in line]
    assert len(installs) == 1
    assert "--no-deps --no-index --find-links /tmp/wheels kplane kplane-provider" in installs[0]
    assert f'ENTRYPOINT ["{image.programs[0]}"]' in stage(image.target)


@each_image
def test_lock_has_distributions_of_all_imported_modules(image: Image) -> None:
    distributions = importlib.metadata.packages_distributions()
    imported = {name for package in packages_for(image) for name in imports_of(package)} - OURS
    assert "pydantic" in imported
    if "operator" not in image.extras:
        # Only provider's bridge imports kopf. Without kopf, the bridge raises an error that names the package.
        imported -= {"kopf"}
    assert {canonicalize_name(name) for module in imported for name in distributions[module]} <= set(image.lock)


@each_image
def test_lock_has_exactly_the_declared_dependencies_and_theirs(image: Image) -> None:
    required: set[str] = set()
    pending = set(image.declared)
    while pending:
        required |= pending
        pending = {name for distribution in pending for name in requirements_of(distribution)} - required
    # Its wheel comes from the build context, beside the wheel of kplane.
    required.remove("kplane-provider")
    assert {name for name, (_, rest) in image.lock.items() if applies(lock_marker(rest))} == required


def requirements_of(distribution: str) -> Iterator[str]:
    for text in importlib.metadata.requires(distribution) or ():
        requirement = Requirement(text)
        if applies(requirement.marker):
            yield canonicalize_name(requirement.name)


def lock_marker(rest: str) -> Marker | None:
    match = re.match(r" ; (.*?) \\$", rest, re.MULTILINE)
    return Marker(match[1]) if match else None


def applies(marker: Marker | None) -> bool:
    """Tell whether a requirement applies on Linux to the oldest Python, whichever Python runs the test."""
    oldest = {"python_version": "3.11", "python_full_version": "3.11.0"}
    return marker is None or marker.evaluate({**oldest, "extra": ""})


@each_image
def test_lock_of_image_agrees_with_lock_of_project(image: Image) -> None:
    whole = read_lock(ROOT / "requirements.lock")
    assert image.lock == {name: whole.get(name) for name in image.lock}


@each_image
def test_lock_lacks_dependencies_of_the_command_line(image: Image) -> None:
    assert not {"kubernetes", "rich", "typer"} & set(image.lock)


def test_lock_of_mcm_lacks_kopf() -> None:
    assert "kopf" not in read_lock(ROOT / "deploy" / "images" / "mcm.lock")


def test_stages_derive_only_from_the_base_image() -> None:
    stages = re.findall(r"^FROM (\S+) AS (\S+)$", DOCKERFILE, re.MULTILINE)
    assert len(stages) == len(re.findall(r"^\s*FROM\b", DOCKERFILE, re.MULTILINE | re.IGNORECASE))
    bases = {"${BASE_IMAGE}"}
    for parent, name in stages:
        assert parent in bases
        bases.add(name)
    sources = set(re.findall(r"--from=(\S+)", DOCKERFILE))
    assert sources <= bases, "an image is copied from that is not built here"
    assert not re.search(r"^#\s*syntax\s*=", DOCKERFILE, re.MULTILINE), "a frontend would come from a registry"


def test_build_context_has_exactly_the_copied_paths() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    sources = copied(DOCKERFILE.splitlines())
    for source in sources:
        assert any(Path(source).is_relative_to(candidate) or Path(source).match(candidate) for candidate in allowed), (
            source
        )
        assert "$" in source or source.startswith("build/") or (ROOT / source).exists(), source
    for pattern in allowed:
        assert any(Path(source).is_relative_to(pattern) or Path(source).match(pattern) for source in sources), (
            f"!{pattern}"
        )
