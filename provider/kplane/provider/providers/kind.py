"""Provider of the kind clusters of this machine."""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
from typing import Final

from kplane.provider.access.config import ClusterConfig
from kplane.provider.aio.backoff import Backoff
from kplane.provider.aio.programs import end_program, start_program
from kplane.provider.cluster.cluster import Cluster
from kplane.provider.contracts import Fleet
from kplane.provider.errors import ProviderError
from kplane.provider.providers._support.desired import DesiredClusters

__all__ = ["KindProvider"]

log: Final = logging.getLogger(__name__)

_MAX_MESSAGE_LENGTH: Final = 500


class KindProvider:
    """Engages every kind cluster whose name begins with `prefix`, under its name.

    A cluster is engaged when `kind get clusters` lists it and `kind get kubeconfig` returns its kubeconfig, with the
    credentials of a cluster-admin. Clusters are listed every `interval_seconds`. Kubeconfigs are read again every
    `refresh_seconds`, so that a recreated cluster replaces its predecessor. A cluster that is no longer listed is
    removed.

    If the program fails, or takes longer than `timeout_seconds`, engaged clusters stay, and the command is retried with
    growing delays. Clusters do not wait for each other. `program` is looked up on PATH, and inherits the environment
    with DOCKER_HOST and KIND_EXPERIMENTAL_PROVIDER. Raises ProviderError if the program is missing.
    """

    def __init__(
        self,
        *,
        prefix: str = "",
        program: str = "kind",
        interval_seconds: float = 2.0,
        refresh_seconds: float = 30.0,
        timeout_seconds: float = 30.0,
    ) -> None:
        path = shutil.which(program)
        if path is None:
            raise ProviderError(
                f"the program {program!r} is not on PATH: install kind (https://kind.sigs.k8s.io), or say where it is"
            )
        if min(interval_seconds, refresh_seconds, timeout_seconds) <= 0:
            raise ProviderError("kind cannot be command in no time; give times above 0")
        self._program = path
        self._prefix = prefix
        self._interval_seconds = interval_seconds
        self._refresh_seconds = refresh_seconds
        self._timeout_seconds = timeout_seconds
        self._has_synced = False

    @property
    def name(self) -> str:
        """Name for logs and metrics."""
        return "kind"

    def has_synced(self) -> bool:
        """Tell whether the clusters were listed at least once."""
        return self._has_synced

    async def run(self, fleet: Fleet) -> None:
        """Follow the clusters until cancelled."""
        followers: dict[str, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as tasks:
            desired = DesiredClusters(fleet, tasks, what="kind cluster")
            while True:
                names = await self._list_clusters()
                self._has_synced = True
                for name in followers.keys() - names:
                    followers.pop(name).cancel()
                for name in names - followers.keys():
                    followers[name] = tasks.create_task(self._follow(name, desired), name=f"kubeconfig of {name}")
                desired.forget_others(names)
                await asyncio.sleep(self._interval_seconds)

    async def _list_clusters(self) -> set[str]:
        backoff = Backoff(initial_seconds=1.0, maximum_seconds=30.0)
        while True:
            try:
                output = await self._run("get", "clusters")
                return {name for name in output.decode().split() if name.startswith(self._prefix)}
            except (ProviderError, UnicodeDecodeError) as error:
                delay = backoff.next_delay()
                log.warning("failed to list kind clusters: %s; retrying in %.1f s", error, delay)
                await asyncio.sleep(delay)

    async def _follow(self, name: str, desired: DesiredClusters) -> None:
        backoff = Backoff(initial_seconds=1.0, maximum_seconds=self._refresh_seconds)
        while True:
            try:
                kubeconfig = await self._run("get", "kubeconfig", "--name", name)
                desired.want(Cluster(name, config=ClusterConfig.from_kubeconfig(kubeconfig)))
            except ProviderError as error:
                delay = backoff.next_delay()
                log.warning(
                    "failed to get the kubeconfig of kind cluster %s: %s; retrying in %.1f s", name, error, delay
                )
            else:
                backoff.reset()
                delay = self._refresh_seconds * random.uniform(0.8, 1.0)  # noqa: S311 - spreads the reads
            await asyncio.sleep(delay)

    async def _run(self, *arguments: str) -> bytes:
        """Run the program and return its output. Raises ProviderError if the program fails or times out."""
        try:
            process = await start_program(self._program, *arguments)
        except OSError as error:
            raise ProviderError(f"{self._program} cannot be run: {error.strerror}") from error
        command = f"kind {' '.join(arguments)}"
        try:
            async with asyncio.timeout(self._timeout_seconds):
                output, errors = await process.communicate()
        except BaseException as error:
            await end_program(process)
            if not isinstance(error, TimeoutError):
                raise
            raise ProviderError(f"{command} took longer than {self._timeout_seconds:g} s") from error
        if process.returncode:
            message = errors.decode(errors="replace").strip()[-_MAX_MESSAGE_LENGTH:]
            raise ProviderError(f"{command} failed: {message or f'exit status {process.returncode}'}")
        return output
