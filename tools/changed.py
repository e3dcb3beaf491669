"""Names the files of tests that a change can break, for `make check`.

A test file depends on what it and the `conftest.py` files above it import, directly or not. A name that a package
only hands on, as `from provider import Client`, counts as an import of the module that defines it. Otherwise each
change below `provider` would concern everybody. A file that is not Python counts as a part of its package, and
concerns the tests that name it. If it has no package, it concerns the tests that name its top folder too.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

__all__ = ["Imports", "changed_files", "concerned"]


@dataclass(slots=True)
class Imports:
    """Finds the files of a repository that a file imports."""

    root: Path
    sources: tuple[Path, ...]
    """Folders that imported names are looked for in."""
    _found: dict[Path, frozenset[Path]] = field(default_factory=dict)

    @classmethod
    def of(cls, root: Path) -> Imports:
        """Look where ruff looks: pyproject.toml names the folders for both."""
        configured = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["ruff"]["src"]
        return cls(root, tuple((root / each).resolve() for each in configured))

    def all_of(self, files: Iterable[Path]) -> set[Path]:
        """Return the files, and all that they import, directly or not."""
        found: set[Path] = set()
        left = list(files)
        while left:
            file = left.pop()
            if file not in found:
                found.add(file)
                left += self.direct(file)
        return found

    def direct(self, file: Path) -> frozenset[Path]:
        """Return the files that a file itself imports."""
        if file not in self._found:
            self._found[file] = frozenset(self._direct(file))
        return self._found[file]

    def _direct(self, file: Path) -> Iterator[Path]:
        for node in ast.walk(ast.parse(file.read_bytes())):
            match node:
                case ast.Import(names=names):
                    for name in names:
                        yield from self._module(self.sources, name.name)
                case ast.ImportFrom(names=names):
                    for name in names:
                        yield from self._imported(file, node, name.name)
                case _:
                    pass

    def _imported(self, file: Path, node: ast.ImportFrom, name: str) -> Iterator[Path]:
        """Find what `from X import name` takes: a module, a name that X imports, or a name that X defines."""
        above = (file.parents[node.level - 1],) if node.level else self.sources
        if submodule := self._module(above, ".".join(filter(None, (node.module, name)))):
            yield from submodule
            return
        for origin in self._module(above, node.module or "__init__"):
            handed_on = _handed_on(origin) if origin.name == "__init__.py" and origin != file else {}
            if name in handed_on:
                yield from self._imported(origin, *handed_on[name])
            else:
                yield origin

    def _module(self, folders: Iterable[Path], name: str) -> list[Path]:
        stems = [folder.joinpath(*name.split(".")) for folder in folders]
        possible = [path for stem in stems for path in (stem.with_suffix(".py"), stem / "__init__.py")]
        return [path for path in possible if path.is_file()][:1]


@cache
def _handed_on(package: Path) -> dict[str, tuple[ast.ImportFrom, str]]:
    """Map each name that a package imports to the import, and to the name there."""
    imports = (node for node in ast.parse(package.read_bytes()).body if isinstance(node, ast.ImportFrom))
    return {each.asname or each.name: (node, each.name) for node in imports for each in node.names}


def changed_files(root: Path, *, base: str | None = None) -> set[Path]:
    """Return the files that differ from `base`, or from where this branch left main; those not committed yet too."""

    def git(*args: str, check: bool = True) -> list[str]:
        done = subprocess.run(["git", *args], cwd=root, capture_output=True, text=True, check=check)
        return [each for each in done.stdout.replace("\0", "\n").splitlines() if each]

    if base is None:
        mains = git("rev-parse", "--verify", "--quiet", "origin/main", check=False) or git(
            "rev-parse", "--verify", "--quiet", "main", check=False
        )
        (base,) = git("merge-base", "HEAD", *mains) if mains else ["HEAD"]
    names = git("diff", "--name-only", "-z", base) + git("ls-files", "--others", "--exclude-standard", "-z")
    return {root / name for name in names}


def concerned(root: Path, changed: set[Path]) -> list[Path]:
    """Return the files of tests that the changed files can break."""
    imports = Imports.of(root)
    packages = {path: _package_of(path, root=root) for path in changed if path.suffix != ".py"}
    changed = changed | {package for package in packages.values() if package is not None}
    names = {path.name for path in packages}
    names |= {f'"{path.relative_to(root).parts[0]}"' for path, package in packages.items() if package is None}
    found = []
    for test in sorted((root / "tests").rglob("test_*.py")):
        files = [test, *(above / "conftest.py" for above in test.parents if (above / "conftest.py").is_file())]
        if imports.all_of(files) & changed or any(name in file.read_text() for file in files for name in names):
            found.append(test)
    return found


def _package_of(path: Path, *, root: Path) -> Path | None:
    above = (folder / "__init__.py" for folder in path.parents if folder.is_relative_to(root))
    return next((package for package in above if package.is_file()), None)


if __name__ == "__main__":
    here = Path.cwd()
    for test in concerned(here, changed_files(here, base=sys.argv[1] if len(sys.argv) > 1 else None)):
        print(test.relative_to(here))
