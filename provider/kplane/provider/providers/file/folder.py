"""A folder of kubeconfig files: finds the files that match a pattern in bounded time."""

from __future__ import annotations

import fnmatch
import logging
import os
from collections import deque
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from kplane.provider.errors import ProviderError

__all__ = ["Folder"]

log: Final = logging.getLogger(__name__)

_MAX_ENTRIES: Final = 10_000
"""Maximum number of directory entries of a search. Bounds also a search through links that form a loop."""
_MAX_DEPTH: Final = 16
_MAX_REPORTED: Final = 1_000
_MAX_NAMES_OF_A_LINE: Final = 10
_ANY_DEPTH: Final = "**"


class _Level(NamedTuple):
    """A directory to search, and the parts of the pattern that its entries may match."""

    path: str
    """Path relative to the folder; empty for the folder itself."""
    parts: frozenset[int]
    depth: int


class Folder:
    """Finds the regular files of a folder that match a pattern.

    `pattern` is a glob relative to the folder: `*` (all files), `*.kubeconfig`, `*/config`, or `**/*.yaml` for the
    folder and the folders below it. A name that begins with a dot matches only a part that begins with a dot. `**`
    follows no links to directories. A search ends after 10,000 entries, and 16 folders deep.

    Raises ProviderError if the pattern is empty or leaves the folder.
    """

    def __init__(self, path: str, *, pattern: str) -> None:
        parts = pattern.split("/")
        if not all(parts) or not {".", ".."}.isdisjoint(parts):
            raise ProviderError(
                f"pattern {pattern!r} names no files of a folder; give a relative glob without '..', such as '*.yaml'"
            )
        self.path: Final = path
        self.pattern: Final = pattern
        self._parts: Final = (*parts, "*") if parts[-1] == _ANY_DEPTH else tuple(parts)
        self._others: list[str] = []
        self._reported: set[str] = set()
        self._problem: str | None = None
        self._last_problem: str | None = None

    def files(self) -> list[str]:
        """Return the matching files, relative to the folder, sorted. Blocks the thread."""
        matching: list[str] = []
        self._others = []
        self._problem = None
        try:
            for name, matches in self._search():
                (matching if matches else self._others).append(name)
        except FileNotFoundError:
            self._problem = "it does not exist; its kubeconfigs are read once it does"
        except _TooManyEntries:
            self._problem = (
                f"it has more than {_MAX_ENTRIES} entries, and the others are not read; give a narrower pattern"
            )
        except OSError as error:
            self._problem = f"it cannot be read: {error.strerror}"
        return sorted(matching)

    def name_unread(self, unread: Collection[str], *, kubeconfigs: int) -> None:
        """Log, once each, files that are not read and the problem of the folder, such as a missing kubeconfig.

        `unread` are matching files that are no kubeconfigs; `kubeconfigs` is the number of other matching files.
        """
        reasons = dict.fromkeys(unread, "is no kubeconfig")
        reasons |= dict.fromkeys(self._others, f"does not match {self.pattern!r}")
        new = [name for name in sorted(reasons) if name not in self._reported][: _MAX_REPORTED - len(self._reported)]
        if new:
            self._reported.update(new)
            shown = ", ".join(f"{name!r} {reasons[name]}" for name in new[:_MAX_NAMES_OF_A_LINE])
            more = f", and {len(new) - _MAX_NAMES_OF_A_LINE} more" if len(new) > _MAX_NAMES_OF_A_LINE else ""
            log.info("folder %s: not read: %s%s", self.path, shown, more)
        problem = self._problem
        if problem is None and not kubeconfigs:
            problem = f"it has no kubeconfig that matches {self.pattern!r}; clusters join when one is there"
        if problem is not None and problem != self._last_problem:
            log.warning("folder %s: %s", self.path, problem)
        self._last_problem = problem

    def _search(self) -> Iterator[tuple[str, bool]]:
        """Yield the path of each regular file in the searched directories, and whether the file matches.

        Skips hidden files that do not match. Raises _TooManyEntries at the limit, and OSError if the folder itself
        cannot be read.
        """
        remaining = _MAX_ENTRIES
        levels = deque([_Level("", self._parts_from(0), 0)])
        while levels:
            level = levels.popleft()
            try:
                entries = os.scandir(os.path.join(self.path, level.path))
            except OSError:
                if not level.depth:
                    raise
                continue
            with entries:
                for entry in entries:
                    if not remaining:
                        raise _TooManyEntries
                    remaining -= 1
                    relative = os.path.join(level.path, entry.name)
                    if _is_file(entry):
                        if (matches := self._matches(entry.name, level.parts)) or not entry.name.startswith("."):
                            yield relative, matches
                    elif level.depth < _MAX_DEPTH and (parts := self._parts_below(entry, level.parts)):
                        levels.append(_Level(relative, parts, level.depth + 1))

    def _parts_from(self, part: int) -> frozenset[int]:
        """Return the part, and the next parts that a path may match instead, because `**` may match no directory."""
        reached = {part}
        while self._parts[part] == _ANY_DEPTH:
            part += 1
            reached.add(part)
        return frozenset(reached)

    def _matches(self, name: str, parts: frozenset[int]) -> bool:
        return len(self._parts) - 1 in parts and _fits(name, self._parts[-1])

    def _parts_below(self, entry: os.DirEntry[str], parts: frozenset[int]) -> frozenset[int]:
        """Return the parts that entries of a directory may match; an empty set if the search skips the directory."""
        below: set[int] = set()
        for part in parts:
            if self._parts[part] == _ANY_DEPTH:
                if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                    below.add(part)
                    below |= self._parts_from(part)
            elif part < len(self._parts) - 1 and _fits(entry.name, self._parts[part]) and _is_directory(entry):
                below |= self._parts_from(part + 1)
        return frozenset(below)


class _TooManyEntries(Exception):
    """The search has reached the maximum number of entries."""


def _fits(name: str, part: str) -> bool:
    return name.startswith(".") <= part.startswith(".") and fnmatch.fnmatchcase(name, part)


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link to itself
        return False


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False
