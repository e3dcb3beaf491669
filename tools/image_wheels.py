"""Builds the wheels that the images install, into build/wheels/IMAGE: `python -m tools.image_wheels`.

An image gets two wheels: the multicluster runtime, and kplane with the components that the image's programs import.
The table `[tool.kplane.images]` of pyproject.toml names the programs of each image. The whole wheel of kplane would
bring programs that cannot start in the image, because their dependencies are missing.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from hatchling.builders.wheel import WheelBuilder

from kplane.binaries.progress import print_line
from tools.packages import ROOT, components

__all__ = ["WHEELS", "build_wheels", "components_of", "imports_of", "main"]

WHEELS: Final = ROOT / "build" / "wheels"
"""Folder of the build context with a folder for each image."""
_RUNTIME: Final = "provider"
"""The component with a distribution of its own."""


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Stop garbage collections. A finalizer may show a traceback, which parses code too.

    CPython before 3.11.8 raises SystemError for a parser inside another one (gh-106905).
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@functools.cache
def imports_of(component: str) -> frozenset[str]:
    """Return the components and top-level modules that a component imports, without the standard library."""

    def names() -> Iterator[str]:
        for path in (ROOT / component / "kplane").rglob("*.py"):
            with _no_collection():
                tree = ast.parse(path.read_bytes())
            for node in ast.walk(tree):
                if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and node.module == "kplane"):
                    yield from (alias.name for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    yield node.module

    return frozenset(name.removeprefix("kplane.").partition(".")[0] for name in names()) - sys.stdlib_module_names


def components_of(program: str, *, project: dict[str, Any]) -> frozenset[str]:
    """Return the components that a program of `[project.scripts]` imports, directly or not.

    Raises LookupError if the project has no such program.
    """
    if program not in project["scripts"]:
        raise LookupError(f"[project.scripts] of pyproject.toml has no {program}; correct [tool.kplane.images]")
    ours = frozenset(components(ROOT))
    reached: set[str] = set()
    pending = {project["scripts"][program].split(".")[1]}
    while pending:
        reached |= pending
        pending = {name for component in pending for name in imports_of(component) & ours} - reached
    return frozenset(reached)


def build_wheels(image: str, *, into: Path) -> list[Path]:
    """Build the wheels of an image into a folder, whose former content is removed. Returns the paths of the wheels."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = pyproject["project"]
    programs = pyproject["tool"]["kplane"]["images"][image]
    included = frozenset[str]().union(*(components_of(program, project=project) for program in programs))
    project["scripts"] = {program: project["scripts"][program] for program in programs}
    # The pytest plugin, whose component no image has.
    del project["entry-points"]
    wheel = pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]
    wheel["packages"] = [f"{component}/kplane" for component in sorted(included - {_RUNTIME})]
    shutil.rmtree(into, ignore_errors=True)
    builders = (WheelBuilder(str(ROOT), config=pyproject), WheelBuilder(str(ROOT / _RUNTIME)))
    return [Path(path) for builder in builders for path in builder.build(directory=str(into), versions=["standard"])]


def main() -> int:
    """Build the wheels of all images, and print their paths. Returns the exit code."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for image in pyproject["tool"]["kplane"]["images"]:
        for wheel in build_wheels(image, into=WHEELS / image):
            print_line(str(wheel.relative_to(ROOT)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
