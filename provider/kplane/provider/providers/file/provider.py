"""Provider of kubeconfig files and folders of this machine: a cluster for each context."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from kplane.provider.access.config import ClusterConfig
from kplane.provider.access.kubeconfigs import kubeconfig_paths
from kplane.provider.cluster.cluster import Cluster
from kplane.provider.contracts import Fleet
from kplane.provider.errors import ProviderError
from kplane.provider.providers._support.desired import DesiredClusters
from kplane.provider.providers.file.folder import Folder
from kplane.provider.providers.file.kubeconfig_file import KubeconfigFile

__all__ = ["FileProvider"]

log: Final = logging.getLogger(__name__)

_SUFFIXES: Final = (".yaml", ".yml", ".json", ".conf", ".config", ".kubeconfig")
"""Suffixes that are removed from file names, in this order, to get names of clusters."""


class FileProvider:
    """Engages a cluster for every context of every kubeconfig file, and keeps up with the files.

    The provider reads `files`, and all kubeconfigs in `directories` whose names match `pattern`, a glob such as
    `*.kubeconfig` or `**/*.yaml` (see below). Files and directories need not exist yet. The default is the environment
    variable KUBECONFIG (a list, as for kubectl), else `~/.kube/config` if it exists, else the working directory. A
    context must be complete in its file.

    A cluster is named as its file, without the directory and without suffixes such as `.yaml` and `.kubeconfig`:
    `prod.yaml` is `prod`, and `eu/prod.yaml` in a directory is `eu/prod`. If a file has several contexts, a cluster is
    named `<file>.<context>`. A second cluster of the same name is refused and logged, and joins when the first cluster
    is gone.

    `trusted=True` says that the authors of the files are trusted: programs that the files name (exec plugins) are run,
    as in `ClusterConfig.default()`. The files that kubectl reads (the default) are always trusted.
    `allow_insecure=True` accepts contexts with insecure-skip-tls-verify, whose servers are not verified. Certificates
    that a kubeconfig names are looked up next to it.

    The pattern `*` takes all files of a directory except hidden files, `**` also takes the directories below it, except
    links. A search ends after 10,000 entries. Files that are not read, and directories without a kubeconfig, are named
    once in the log.

    Every `interval_seconds` the provider checks (`stat`) the files and the certificates that they name, and reads
    changed files. The check works on every file system, and takes about 15 µs for a file. Renewed credentials keep the
    cluster's connections; another server, CA or identity makes another cluster. A context that is missing in two reads
    in a row is removed. An unreadable file or an invalid context is logged, and its clusters stay.

    Raises ProviderError if the pattern is empty or leaves the directory, or if the interval is not above 0.
    """

    def __init__(
        self,
        *,
        files: Iterable[str | os.PathLike[str]] = (),
        directories: Iterable[str | os.PathLike[str]] = (),
        pattern: str = "*",
        interval_seconds: float = 1.0,
        trusted: bool = False,
        allow_insecure: bool = False,
    ) -> None:
        if interval_seconds <= 0:
            raise ProviderError(f"files cannot be looked at every {interval_seconds:g} s; give a time above 0")
        named_files = [os.path.abspath(path) for path in files]
        named_directories = [os.path.abspath(path) for path in directories]
        self._trusted = trusted
        if not named_files and not named_directories:
            named_files, named_directories = _defaults(os.environ)
            self._trusted = trusted or bool(named_files)
        self._files = named_files
        self._folders = [Folder(path, pattern=pattern) for path in dict.fromkeys(named_directories)]
        self._allow_insecure = allow_insecure
        self._interval_seconds = interval_seconds
        self._kubeconfigs: dict[str, KubeconfigFile] = {}
        self._holders: dict[str, str] = {}
        """Path of the source file of each cluster, by name."""
        self._refused: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        self._has_synced = False

    @property
    def name(self) -> str:
        """Name for logs and metrics."""
        return "file"

    def has_synced(self) -> bool:
        """Tell whether the initial read of all files is complete."""
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
        """Reconcile the fleet with the files, and return. Raises errors of the fleet."""
        clusters = {cluster.name: cluster for cluster in await asyncio.to_thread(self._look)}
        gone = [name for name in fleet.names() if name not in clusters]
        async with asyncio.TaskGroup() as tasks:
            for work in (*map(fleet.remove, gone), *map(fleet.add_or_replace, clusters.values())):
                tasks.create_task(work)

    def _look(self) -> list[Cluster]:
        # Wait for the thread of an earlier call: a cancellation of its task does not end the thread.
        with self._lock:
            matching_files = [
                (folder, {os.path.join(folder.path, name): name for name in folder.files()}) for folder in self._folders
            ]
            names = {path: os.path.basename(path) for path in self._files}
            for _, matching in matching_files:
                names = {**matching, **names}
            # Named files come first, then the files of the directories, each in its order.
            expected = dict.fromkeys([*self._files, *(path for _, matching in matching_files for path in matching)])
            for path in expected | dict.fromkeys(self._kubeconfigs):
                file = self._kubeconfigs.get(path)
                if file is None:
                    file = self._kubeconfigs[path] = self._file(path, name=names[path])
                file.look()
                if not file.exists and not file.contexts and path not in expected:
                    del self._kubeconfigs[path]
            for folder, matching in matching_files:
                unread = [name for path, name in matching.items() if not self._kubeconfigs[path].is_kubeconfig]
                folder.name_unread(unread, kubeconfigs=len(matching) - len(unread))
            return self._clusters()

    def _file(self, path: str, *, name: str) -> KubeconfigFile:
        return KubeconfigFile(
            path,
            name=_without_suffixes(name),
            required=path in self._files,
            exec_plugins=self._trusted,
            allow_insecure=self._allow_insecure,
        )

    def _clusters(self) -> list[Cluster]:
        """Return the clusters of the files, a single cluster for each name."""
        claims: dict[str, dict[str, ClusterConfig]] = {}
        for path, file in self._kubeconfigs.items():
            for name, config in file.clusters().items():
                claims.setdefault(name, {})[path] = config
        # A new file takes no name from a present cluster.
        self._holders = {
            name: holder if (holder := self._holders.get(name, "")) in configs else next(iter(configs))
            for name, configs in claims.items()
        }
        refused = {(name, path) for name, configs in claims.items() for path in configs if path != self._holders[name]}
        for name, path in sorted(refused - self._refused):
            log.warning(
                "failed to add cluster %r of %s: %s has a cluster of this name; rename one of the files",
                name,
                path,
                self._holders[name],
            )
        self._refused = refused
        return [Cluster(name, config=claims[name][holder]) for name, holder in self._holders.items()]


def _without_suffixes(name: str) -> str:
    head, tail = os.path.split(name)
    stem = tail
    for suffix in _SUFFIXES:
        stem = stem.removesuffix(suffix)
    return os.path.join(head, stem or tail)


def _defaults(environment: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return default files and directories: the files of kubectl, else the working directory."""
    paths = kubeconfig_paths(environment)
    if environment.get("KUBECONFIG") or paths[0].exists():
        return [os.path.abspath(path) for path in paths], []
    return [], [str(Path.cwd())]
