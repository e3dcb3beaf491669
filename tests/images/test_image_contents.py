"""Images: components that the program imports, and their locked dependencies, without further packages."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.syntax import parse

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
OURS = frozenset(path.parent.name for path in ROOT.glob("*/kplane/*/__init__.py"))
"""The components: `provider` is the folder provider/, imported as kplane.provider."""


@dataclass(frozen=True)
class Image:
    """Program, component and dependencies of an image."""

    target: str
    program: str
    package: str
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
    Image("operator", program="controlplane-operator", package="controlplane_operator", extras=("operator",)),
    Image("mcm", program="mcm", package="mcm", extras=()),
    Image("gateway", program="kplane-gateway", package="gateway", extras=("gateway",)),
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


@functools.cache
def imports_of(package: str) -> frozenset[str]:
    """Return the components and top-level modules that a component imports, without the standard library."""

    def names() -> Iterator[str]:
        for path in (ROOT / package / "kplane").rglob("*.py"):
            for node in ast.walk(parse(path.read_bytes())):
                if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and node.module == "kplane"):
                    yield from (alias.name for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    yield node.module

    return frozenset(name.removeprefix("kplane.").partition(".")[0] for name in names()) - sys.stdlib_module_names


def packages_for(package: str) -> frozenset[str]:
    """Return a component and all components that it imports, directly or not."""
    components: set[str] = set()
    pending = {package}
    while pending:
        components |= pending
        pending = {name for component in pending for name in imports_of(component) & OURS} - components
    return frozenset(components)


def test_read_lock_returns_versions_markers_and_hashes() -> None:
    lock = read_lock(ROOT / "requirements.lock")
    assert len(lock) == len(re.findall("^[^ #\n]", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    version, rest = lock["cffi"]
    assert version[0].isdigit()
    assert "platform_python_implementation" in rest
    assert "--hash=sha256:" in rest


@each_image
def test_builder_copies_exactly_the_components_of_the_program(image: Image) -> None:
    sources = [source for source in copied(stage(f"{image.target}-builder")) if not source.endswith(".lock")]
    assert frozenset(sources) == {f"{component}/kplane" for component in packages_for(image.package)}
    assert len(sources) == len(set(sources))


@each_image
def test_builder_of_image_uses_the_lock_of_the_image(image: Image) -> None:
    assert f"deploy/images/{image.target}.lock" in copied(stage(f"{image.target}-builder"))
    assert f"COPY --from={image.target}-builder /opt/kplane /opt/kplane" in stage(image.target)


@each_image
def test_program_of_image_has_the_entry_point_of_the_wheel(image: Image) -> None:
    module, _, function = PROJECT["scripts"][image.program].partition(":")
    builder = "\n".join(stage(f"{image.target}-builder"))
    assert f"'from {module} import {function}' 'sys.exit({function}())'" in builder
    assert f"> /opt/kplane/bin/{image.program} " in builder
    assert f'ENTRYPOINT ["{image.program}"]' in stage(image.target)


@each_image
def test_program_of_image_exits_on_sigterm_during_imports(image: Image, tmp_path: Path) -> None:
    """The kernel delivers no signal without a handler to process 1. The default action is no handler."""
    module = PROJECT["scripts"][image.program].partition(":")[0].replace(".", "/")
    slow = tmp_path / f"{module}.py"
    slow.parent.mkdir(parents=True)
    slow.write_text("import sys\nprint('imports', flush=True)\nsys.stdin.read()\n")
    (slow.parent / "__init__.py").touch()
    [quoted_lines] = re.findall(rf"printf '%s\\n' (.*?) > /opt/kplane/bin/{image.program} ", DOCKERFILE)
    (tmp_path / "script").write_text("\n".join(shlex.split(quoted_lines)))
    with subprocess.Popen(
        [sys.executable, tmp_path / "script"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"imports\n"
        process.terminate()
        assert process.wait(timeout=60.0) == 128 + signal.SIGTERM


def test_image_of_operator_has_the_egress_proxy() -> None:
    builder = "\n".join(stage("operator-builder"))
    [(quoted_lines, start)] = re.findall(
        r"printf '%s\\n' ((?:(?!printf).)*) > /opt/kplane/bin/egress-proxy (.*)", builder
    )
    lines = shlex.split(quoted_lines)
    assert lines[0] == "#!/opt/kplane/bin/python"
    assert "chmod 0755 /opt/kplane/bin/controlplane-operator /opt/kplane/bin/egress-proxy" in start
    script = "\n".join([*lines[:-1], "main(['--help'])"])
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60.0)
    assert "usage: egress-proxy" in process.stdout


@each_image
def test_lock_has_distributions_of_all_imported_modules(image: Image) -> None:
    distributions = importlib.metadata.packages_distributions()
    imported = {name for package in packages_for(image.package) for name in imports_of(package)} - OURS
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
    # kplane-provider is copied into the image instead of installed.
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
