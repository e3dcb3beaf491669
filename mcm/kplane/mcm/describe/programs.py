"""Programs of instances: chooses the version that fits an API server."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kplane.api import KubernetesVersion
from kplane.mcm.describe.flag_check import dry_run
from kplane.mcm.errors import ConfigurationError
from kplane.provider import Cluster
from kplane.provider.providers.kplane import VERSION_ATTRIBUTE
from kplane.workloads import Runtime, RuntimeFailure, WorkloadsError

__all__ = ["Build", "Programs", "find_programs", "find_version"]

logger = logging.getLogger(__name__)

_ANSWERS: Final = 256


@dataclass(frozen=True, slots=True)
class Build:
    """A program and its version."""

    program: str
    """Absolute path, or a name if any version will do; see `Component.program`."""
    version: KubernetesVersion | None = None
    """None if the version is unknown; any version will do then."""


class Programs:
    """Finds the versions of the programs, chooses among them, and caches their answers to dry runs.

    Each of `directories` may have another version; the runtime searches the same directories. Without directories, the
    runtime finds the programs. An answer is cached until the program's file changes. `first` is the version of the
    programs that run if the version of the API server is unknown.
    """

    def __init__(
        self, directories: Sequence[Path] = (), *, runtime: Runtime, first: KubernetesVersion | None = None
    ) -> None:
        self._directories = tuple(directories)
        self._runtime = runtime
        self._first = first
        self._asking = asyncio.Lock()
        self._answers: dict[tuple[str, int, tuple[str, ...]], str | None] = {}
        self._told: set[str] = set()

    async def choose(self, program: str, *, cluster: Cluster) -> Build:
        """Return the newest build of the API server's minor version, or else of the minor version before.

        By https://kubernetes.io/releases/version-skew-policy/ neither kube-controller-manager nor kube-scheduler is
        newer than kube-apiserver, and each is at most one minor version older. If the version of the API server is
        unknown, the result is the program that the runtime finds first.

        Raises ConfigurationError if no build fits, RuntimeFailure if no program reports its version.
        """
        reported = cluster.attributes.get(VERSION_ATTRIBUTE)
        server = KubernetesVersion.parse(f"{reported}.0") if reported else None
        if server is None:
            return Build(program, self._first)
        builds = await self._builds(program)
        candidates = [version for version in builds if server.minors_after(version) in {0, 1}]
        if candidates:
            newest = max(candidates)
            return Build(builds[newest], newest)
        present = " and ".join(str(version) for version in sorted(builds))
        raise ConfigurationError(
            f"registration {cluster.name}: its API server is Kubernetes {reported}, which needs {program}"
            f" {server.major}.{server.minor} or {server.major}.{server.minor - 1}, and there is {present} only; add one"
            " of them (--programs-dir), or change the version of the control plane"
        )

    async def check_controllers(self, build: Build, names: tuple[str, ...], *, cluster: Cluster) -> None:
        """Check that kube-controller-manager knows all of these controllers, because it would end at its start.

        Raises ConfigurationError with the program's own error if a name is unknown, RuntimeFailure if the program
        cannot be run.
        """
        path = self._path(build.program)
        try:
            changed = path.stat().st_mtime_ns if path is not None else 0
        except OSError:
            path, changed = None, 0
        if path is None:
            return  # the start of the instance reports that the program is missing
        key = str(path), changed, names
        async with self._asking:
            if key not in self._answers:
                answer = await dry_run(path, [f"--controllers={','.join(names)}"])
                while len(self._answers) >= _ANSWERS:
                    del self._answers[next(iter(self._answers))]
                self._answers[key] = answer
            refusal = self._answers[key]
        if refusal is not None:
            raise ConfigurationError(
                f"registration {cluster.name}: kube-controller-manager rejects controllers.explicit: {refusal}"
            )

    async def _builds(self, program: str) -> dict[KubernetesVersion, str]:
        """Return a path for each version, from the first directory that has it. Raises RuntimeFailure if none works."""
        paths = [str(path) for path in find_programs(program, directories=self._directories)] or [program]
        builds: dict[KubernetesVersion, str] = {}
        failures: list[str] = []
        for path in paths:
            try:
                version = KubernetesVersion.parse(await self._runtime.version(path))
            except RuntimeFailure as error:
                failures.append(str(error))
                continue
            if version is not None:
                builds.setdefault(version, path)
        if not builds:
            raise RuntimeFailure(" ".join(failures) or f"failed to find out the version of {program}")
        for failure in failures:
            if failure not in self._told:
                self._told.add(failure)
                logger.warning("skipping a program: %s", failure)
        return builds

    def _path(self, program: str) -> Path | None:
        if program.startswith("/"):
            return Path(program)
        return next(iter(find_programs(program, directories=self._directories)), None)


async def find_version(program: str, *, runtime: Runtime) -> str | None:
    """Return the version of the program that the runtime finds first; None if unknown.

    The start of an instance reports a failure.
    """
    try:
        return await runtime.version(program)
    except WorkloadsError as error:
        logger.debug("failed to find out the version of %s: %s", program, error)
        return None


def find_programs(name: str, *, directories: Sequence[Path]) -> list[Path]:
    """Return every executable of that name, in the order of the directories."""
    candidates = dict.fromkeys(directory.absolute() / name for directory in directories)
    return [path for path in candidates if path.is_file() and os.access(path, os.X_OK)]
