"""A kubeconfig file, which other programs may write during a read."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from kplane.provider.access.config import ClusterConfig
from kplane.provider.access.exec_plugin import require_no_text
from kplane.provider.access.kubeconfigs import read_content, read_document
from kplane.provider.errors import KubeconfigError

__all__ = ["KubeconfigFile"]

log: Final = logging.getLogger(__name__)

# A second write shortly after the first may not change the result of `stat`.
_YOUNG_NANOSECONDS: Final = 2_000_000_000
_REFERENCES: Final = (
    ("clusters", "cluster", "certificate-authority"),
    ("users", "user", "client-certificate"),
    ("users", "user", "client-key"),
)

_Stat = tuple[int, int, int, int]


class KubeconfigFile:
    """The contexts of a file at its last read without an error.

    An unreadable file, for example a partial write, changes no context, and neither does an invalid context. A context
    is removed if two reads in a row do not have it: programs remove a file before they write it again, and a partial
    list is valid too.

    `name` is the base of the names of the clusters. A file that is not `required` need not be a kubeconfig.
    `exec_plugins` and `allow_insecure` are as in `ClusterConfig.from_kubeconfig`.
    """

    def __init__(
        self,
        path: str,
        *,
        name: str = "",
        required: bool = True,
        exec_plugins: bool | Collection[str] = False,
        allow_insecure: bool = False,
    ) -> None:
        require_no_text(exec_plugins)
        self.path: Final = path
        self.name: Final = name
        self.contexts: Mapping[str, ClusterConfig] = {}
        self.exists = False
        self.is_kubeconfig = required
        """Whether the file is a kubeconfig; false before the first successful read of a file that is not required."""
        self._has_several = False
        self._exec_plugins = exec_plugins
        self._allow_insecure = allow_insecure
        self._references: tuple[Path, ...] = ()
        self._last_stats: tuple[_Stat | None, ...] | None = None
        self._missing: frozenset[str] = frozenset()
        self._problems: dict[str, str] = {}

    def look(self) -> None:
        """Read the file if the file, or a certificate that it names, may have changed. Blocks the thread."""
        try:
            stats = self._stats()
            if stats == self._last_stats and not self._missing:
                return
            self.exists = stats[0] is not None
            document = self._read() if self.exists else {}
        except Exception as error:  # noqa: BLE001 - an invalid file must not stop the reads of other files
            self._last_stats = None
            self._note("", f"{_reason(error)}; keeping its clusters")
            return
        self._note("", None)
        self._take(document)
        # The state of the file is from before the read, the state of the files that it names from after.
        stats = (stats[0], *self._stats()[1:])
        self._last_stats = None if _is_young(stats) else stats

    def clusters(self) -> dict[str, ClusterConfig]:
        """Return the contexts by the names of their clusters: `<file>`, or `<file>.<context>` if there are several."""
        return {
            f"{self.name}.{context}" if self._has_several else self.name: config
            for context, config in self.contexts.items()
        }

    def _read(self) -> Mapping[str, Any]:
        """Read the file. Returns an empty document if the file is no kubeconfig, and is not required."""
        path = Path(self.path)
        if path.is_fifo():
            raise KubeconfigError("it is a pipe, which can be read only once")
        # A folder may have files of any kind, and parsing a large file takes long.
        if not self.is_kubeconfig and b"contexts" not in read_content(path):
            return {}
        document = read_document(path)
        self.is_kubeconfig |= "contexts" in document
        return document

    def _take(self, document: Mapping[str, Any]) -> None:
        directory = Path(self.path).absolute().parent
        contexts: dict[str, ClusterConfig] = {}
        names = _names(document)
        for name in names:
            try:
                contexts[name] = ClusterConfig.from_kubeconfig(
                    document,
                    context=name,
                    directory=directory,
                    exec_plugins=self._exec_plugins,
                    allow_insecure=self._allow_insecure,
                )
            except Exception as error:  # noqa: BLE001 - an invalid context must not affect other contexts
                self._note(name, f"failed to read context {name!r}: {_reason(error)}")
                if name in self.contexts:
                    contexts[name] = self.contexts[name]
            else:
                insecure = f"context {name!r} has insecure-skip-tls-verify: its server is not verified"
                self._note(name, insecure if contexts[name].insecure_skip_tls_verify else None)
        missing = self.contexts.keys() - contexts
        retained = {name: self.contexts[name] for name in missing - self._missing}
        self._missing = frozenset(retained)
        self.contexts = {**contexts, **retained}
        # Count invalid contexts, so that other contexts keep their names during a repair.
        self._has_several = len({*names, *retained}) > 1
        self._references = tuple(_references(document, directory))
        self._problems = {name: self._problems[name] for name in self._problems.keys() & set(names)}

    def _stats(self) -> tuple[_Stat | None, ...]:
        return tuple(_stat(path) for path in (Path(self.path), *self._references))

    def _note(self, about: str, problem: str | None) -> None:
        if problem is not None and self._problems.get(about) != problem:
            log.warning("kubeconfig %s: %s", self.path, problem)
        if problem is None:
            self._problems.pop(about, None)
        else:
            self._problems[about] = problem


def _stat(path: Path) -> _Stat | None:
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _is_young(stats: tuple[_Stat | None, ...]) -> bool:
    now = time.time_ns()
    return any(stat is not None and now - max(stat[2], stat[3]) < _YOUNG_NANOSECONDS for stat in stats)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"it cannot be read: {error.strerror}"
    return str(error) if isinstance(error, ValueError) else f"unexpected {type(error).__name__}"


def _names(document: Mapping[str, Any]) -> list[str]:
    """Return the unique names of the contexts."""
    entries = _entries(document, "contexts")
    return list(
        dict.fromkeys(name for name in (entry.get("name") for entry in entries) if isinstance(name, str) and name)
    )


def _references(document: Mapping[str, Any], directory: Path) -> Iterator[Path]:
    for section, kind, key in _REFERENCES:
        for entry in _entries(document, section):
            content = entry.get(kind)
            name = content.get(key) if isinstance(content, Mapping) else None
            if isinstance(name, str) and name:
                yield directory / name


def _entries(document: Mapping[str, Any], section: str) -> list[Mapping[str, Any]]:
    entries = document.get(section)
    return [entry for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list) else []
