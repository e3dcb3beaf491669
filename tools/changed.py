"""Lists the test files that a change can break, for `make check`.

A test file depends on the direct and indirect imports of itself and of the `conftest.py` files above it. If a package
only re-exports a name, as in `from provider import Client`, the import counts as an import of the module that defines
the name. Otherwise each change below `provider` would concern all tests. A file that is not Python counts as a part of
its package, and concerns the tests that contain its name. Without a package, the file also concerns the tests that
contain the name of its top folder.
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
    """Folders that are searched for imported names."""
    _found: dict[Path, frozenset[Path]] = field(default_factory=dict)

    @classmethod
    def of(cls, root: Path) -> Imports:
        """Create the search for a repository, in the folders that ruff searches (pyproject.toml)."""
        configured = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["ruff"]["src"]
        return cls(root, tuple((root / folder).resolve() for folder in configured))

    def all_of(self, files: Iterable[Path]) -> set[Path]:
        """Return the files, and all their direct and indirect imports."""
        files_with_imports: set[Path] = set()
        queue = list(files)
        while queue:
            file = queue.pop()
            if file not in files_with_imports:
                files_with_imports.add(file)
                queue += self.direct(file)
        return files_with_imports

    def direct(self, file: Path) -> frozenset[Path]:
        """Return the direct imports of a file."""
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
        """Find the origin of `from X import name`: a module, a name that X imports, or a name that X defines."""
        above = (file.parents[node.level - 1],) if node.level else self.sources
        if submodule := self._module(above, ".".join(filter(None, (node.module, name)))):
            yield from submodule
            return
        for origin in self._module(above, node.module or "__init__"):
            reexports = _handed_on(origin) if origin.name == "__init__.py" and origin != file else {}
            if name in reexports:
                yield from self._imported(origin, *reexports[name])
            else:
                yield origin

    def _module(self, folders: Iterable[Path], name: str) -> list[Path]:
        stems = [folder.joinpath(*name.split(".")) for folder in folders]
        possible = [path for stem in stems for path in (stem.with_suffix(".py"), stem / "__init__.py")]
        return [path for path in possible if path.is_file()][:1]


@cache
def _handed_on(package: Path) -> dict[str, tuple[ast.ImportFrom, str]]:
    """Return the imports of a package by name, with the original name of each import."""
    imports = (node for node in ast.parse(package.read_bytes()).body if isinstance(node, ast.ImportFrom))
    return {alias.asname or alias.name: (node, alias.name) for node in imports for alias in node.names}


def changed_files(root: Path, *, base: str | None = None) -> set[Path]:
    """Return the files that differ from `base`, by default from the commit at which this branch left main.

    Files that are not committed yet are included.
    """

    def git(*args: str, check: bool = True) -> list[str]:
        result = subprocess.run(["git", *args], cwd=root, capture_output=True, text=True, check=check)
        return [line for line in result.stdout.replace("\0", "\n").splitlines() if line]

    if base is None:
        mains = git("rev-parse", "--verify", "--quiet", "origin/main", check=False) or git(
            "rev-parse", "--verify", "--quiet", "main", check=False
        )
        (base,) = git("merge-base", "HEAD", *mains) if mains else ["HEAD"]
    names = git("diff", "--name-only", "-z", base) + git("ls-files", "--others", "--exclude-standard", "-z")
    return {root / name for name in names}


def concerned(root: Path, changed: set[Path]) -> list[Path]:
    """Return the test files that the changed files can break."""
    imports = Imports.of(root)
    packages = {path: _package_of(path, root=root) for path in changed if path.suffix != ".py"}
    changed = changed | {package for package in packages.values() if package is not None}
    names = {path.name for path in packages}
    names |= {f'"{path.relative_to(root).parts[0]}"' for path, package in packages.items() if package is None}
    tests = []
    for test in sorted((root / "tests").rglob("test_*.py")):
        files = [test, *(above / "conftest.py" for above in test.parents if (above / "conftest.py").is_file())]
        if imports.all_of(files) & changed or any(name in file.read_text() for file in files for name in names):
            tests.append(test)
    return tests


def _package_of(path: Path, *, root: Path) -> Path | None:
    above = (folder / "__init__.py" for folder in path.parents if folder.is_relative_to(root))
    return next((package for package in above if package.is_file()), None)


if __name__ == "__main__":
    here = Path.cwd()
    for test in concerned(here, changed_files(here, base=sys.argv[1] if len(sys.argv) > 1 else None)):
        print(test.relative_to(here))
