"""Clusters from kubeconfig files and directories of this machine: one for each context."""

from __future__ import annotations

import asyncio
import glob
import logging
import os
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from kplane.provider.access.exec_plugin import require_no_text
from kplane.provider.cluster.cluster import Cluster
from kplane.provider.contracts import Fleet
from kplane.provider.errors import ProviderError
from kplane.provider.providers._support.desired import DesiredClusters
from kplane.provider.providers.file.kubeconfig_file import KubeconfigFile

__all__ = ["DEFAULT_GLOBS", "FileProvider"]

log: Final = logging.getLogger(__name__)

DEFAULT_GLOBS: Final = (
    "kubeconfig.yaml",
    "kubeconfig.yml",
    "*.kubeconfig",
    "*.kubeconfig.yaml",
    "*.kubeconfig.yml",
)
"""Names of the files that count in a directory, as upstream's."""


class FileProvider:
    """Engages a cluster for every context of every kubeconfig file, and keeps up with the files.

    It reads `files`, and in `directories` what matches one of `globs`; none has to exist yet. The default is the
    environment variable KUBECONFIG (a list, as for kubectl), else `~/.kube/config` if it exists, else the working
    directory. A cluster is named `<path>+<context>`, with the path as given; `separator` replaces the plus. A context
    must be complete in its file.

    Files that a kubeconfig names are looked up next to it. Programs that it names (exec plugins) are run if
    `exec_plugins` is true or contains the command. The provider itself makes no requests.

    Every `interval_seconds` it checks (`stat`) the files and the certificates that they name, and reads what has
    changed. This works on every file system, and takes about 15 µs for a file. Renewed credentials keep the cluster's
    connections; another server, CA or identity makes another cluster. What is missing twice in a row is removed. An
    unreadable file or an invalid context changes nothing, and is logged.
    """

    def __init__(
        self,
        *,
        files: Iterable[str | os.PathLike[str]] = (),
        directories: Iterable[str | os.PathLike[str]] = (),
        globs: Sequence[str] = DEFAULT_GLOBS,
        separator: str = "+",
        interval_seconds: float = 1.0,
        exec_plugins: bool | Collection[str] = False,
    ) -> None:
        if not separator:
            raise ProviderError("the separator between path and context is empty; give one, such as '+'")
        if interval_seconds <= 0:
            raise ProviderError(f"files cannot be looked at every {interval_seconds:g} s; give a time above 0")
        require_no_text(exec_plugins)
        self._files = [os.fspath(path) for path in files]
        self._directories = [os.fspath(path) for path in directories]
        if not self._files and not self._directories:
            self._files, self._directories = _defaults(os.environ)
        self._globs = tuple(globs)
        self._separator = separator
        self._interval_seconds = interval_seconds
        self._exec_plugins = exec_plugins
        self._known: dict[str, KubeconfigFile] = {}
        self._looking = threading.Lock()
        self._has_synced = False

    @property
    def name(self) -> str:
        """Name for logs and metrics."""
        return "file"

    def has_synced(self) -> bool:
        """Tell whether all files were read once."""
        return self._has_synced

    async def run(self, fleet: Fleet) -> None:
        """Follow the files until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            desired = DesiredClusters(fleet, tasks, what="kubeconfig context")
            while True:
                desired.want_only(await asyncio.to_thread(self._look))
                self._has_synced = True
                await asyncio.sleep(self._interval_seconds)

    async def run_once(self, fleet: Fleet) -> None:
        """Bring the fleet in line with the files now. Raises what the fleet raises."""
        clusters = {cluster.name: cluster for cluster in await asyncio.to_thread(self._look)}
        gone = [name for name in fleet.names() if name not in clusters]
        async with asyncio.TaskGroup() as tasks:
            for work in (*map(fleet.remove, gone), *map(fleet.add_or_replace, clusters.values())):
                tasks.create_task(work)

    def _look(self) -> list[Cluster]:
        # After a cancellation the thread of a look still runs.
        with self._looking:
            expected = dict.fromkeys([*self._files, *self._matches()])
            for path in expected | dict.fromkeys(self._known):
                file = self._known.setdefault(path, KubeconfigFile(path, exec_plugins=self._exec_plugins))
                file.look()
                if not file.exists and not file.contexts and path not in expected:
                    del self._known[path]
            return [
                Cluster(f"{path}{self._separator}{context}", config=config)
                for path, file in self._known.items()
                for context, config in file.contexts.items()
            ]

    def _matches(self) -> list[str]:
        """Return the files in the directories, sorted by directory. Unreadable directories have none."""
        found: list[str] = []
        for directory in self._directories:
            names = {
                name for pattern in self._globs for name in glob.glob(pattern, root_dir=directory, include_hidden=True)
            }
            paths = (os.path.normpath(os.path.join(directory, name)) for name in sorted(names))
            found += [path for path in paths if not os.path.isdir(path)]
        return found


def _defaults(environment: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return default files and directories."""
    if listed := [path for path in environment.get("KUBECONFIG", "").split(os.pathsep) if path]:
        return listed, []
    usual = Path.home() / ".kube" / "config"
    return ([str(usual)], []) if usual.exists() else ([], [os.getcwd()])
