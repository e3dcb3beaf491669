"""Wheels of the images: programs that run with the components in the wheel, and with no others."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import site
import subprocess
import sys
import tomllib
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest

from tools.image_wheels import build_wheels, components_of

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SCRIPTS = PYPROJECT["project"]["scripts"]
IMAGES = PYPROJECT["tool"]["kplane"]["images"]
PROGRAMS = [(image, program) for image, programs in IMAGES.items() for program in programs]
EXPECTED = {
    "gateway": {"api", "gateway", "provider", "workloads"},
    "mcm": {"api", "mcm", "provider", "workloads"},
}

each_program = pytest.mark.parametrize(("image", "program"), PROGRAMS, ids=[program for _, program in PROGRAMS])


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """For each image, a folder with what its wheels install into site-packages."""
    folders = {}
    for image in IMAGES:
        folders[image] = tmp_path_factory.mktemp(image)
        for wheel in build_wheels(image, into=tmp_path_factory.mktemp(f"{image}-wheels") / "wheels"):
            zipfile.ZipFile(wheel).extractall(folders[image])
    return folders


def scripts_of(folder: Path) -> dict[str, str]:
    """Return the console scripts of the wheel of kplane, as name and entry point."""
    (declared,) = folder.glob("kplane-*.dist-info/entry_points.txt")
    parser = ConfigParser()
    parser.read(declared)
    assert parser.sections() == ["console_scripts"]
    return dict(parser["console_scripts"])


def script(program: str) -> str:
    """Return the program that pip writes for a console script."""
    module, _, function = SCRIPTS[program].partition(":")
    return f"import sys\nfrom {module} import {function}\nsys.exit({function}())"


@pytest.mark.parametrize("image", IMAGES)
def test_wheel_has_the_scripts_of_the_image_only(installed: dict[str, Path], image: str) -> None:
    assert scripts_of(installed[image]) == {program: SCRIPTS[program] for program in IMAGES[image]}


@pytest.mark.parametrize("image", EXPECTED)
def test_wheels_have_components_of_the_program_only(installed: dict[str, Path], image: str) -> None:
    assert {path.name for path in (installed[image] / "kplane").iterdir()} == EXPECTED[image]


@each_program
def test_program_runs_with_the_components_of_its_image(installed: dict[str, Path], image: str, program: str) -> None:
    """Without the module `site`, Python reads no .pth files, and so finds no component of this checkout."""
    command = [sys.executable, "-S", "-P", "-c", script(program), "--help"]
    path = ":".join([str(installed[image]), *site.getsitepackages()])
    ran = subprocess.run(command, env={"PYTHONPATH": path}, capture_output=True, text=True, check=False, timeout=60.0)
    assert (ran.returncode, ran.stdout.split()[:2]) == (0, ["usage:", program]), ran.stderr


@each_program
def test_program_exits_on_sigterm_during_imports(image: str, program: str, tmp_path: Path) -> None:
    """The kernel delivers no signal without a handler to process 1. The default action is no handler."""
    module = SCRIPTS[program].partition(":")[0]
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.origin is not None
    package = tmp_path.joinpath(*module.split(".")[:-1])
    package.mkdir(parents=True)
    shutil.copy(found.origin, package)
    shutil.copy(Path(found.origin).with_name("__init__.py"), package)
    (package / "main.py").write_text("import sys\nprint('imports', flush=True)\nsys.stdin.read()\n")
    command = [sys.executable, "-S", "-P", "-c", script(program)]
    with subprocess.Popen(
        command, env={"PYTHONPATH": str(tmp_path)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"imports\n"
        process.terminate()
        assert process.wait(timeout=60.0) == 128 + signal.SIGTERM


def test_program_without_script_is_refused() -> None:
    with pytest.raises(LookupError, match="has no nosuch; correct"):
        components_of("nosuch", project=PYPROJECT["project"])


def test_former_wheels_are_removed(tmp_path: Path) -> None:
    former = tmp_path / "kplane-0.0.1-py3-none-any.whl"
    former.touch()
    wheels = build_wheels("mcm", into=tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(wheels)
    assert len(wheels) == 2
