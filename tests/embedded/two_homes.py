"""Writers that connect to both API servers of a migrating control plane directly, without a gateway.

Only the fence in etcd separates the homes: after the new home takes a write, the former home may take no write.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import math
import re
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from kplane.api.names import KUBECONFIG_KEY, kubeconfig_secret_name, management_namespace
from kplane.components.names import apiserver_name
from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import CONFIG_MAPS
from kplane.workloads import find_processes

from .behind_gateway import secret
from .ledger import Connection, Refused
from .moving import Mover

__all__ = ["Intruders", "intruding"]

_PAUSE_SECONDS: Final = 0.05
_ANSWER_SECONDS: Final = 5.0
_PORT: Final = re.compile(rb"--secure-port=([0-9]+)")


class Intruders:
    """A writer for each home, which writes numbers into its own object."""

    def __init__(self, mover: Mover, config: ClusterConfig) -> None:
        self._mover, self._config, self._end = mover, config, threading.Event()
        self._taken: list[tuple[float, float, int]] = []
        """Start, time of the response, and slot of the home, for each acknowledged write."""
        self._acknowledged, self._tried = [0, 0], [0, 0]
        self._threads = [threading.Thread(target=self._write, args=(slot,)) for slot in (0, 1)]

    def took(self, slot: int) -> bool:
        """Tell whether the home of this slot acknowledged a write."""
        return any(taken == slot for _, _, taken in self._taken)

    def late(self, *, former: int) -> list[str]:
        """Return the former home's acknowledged writes that began after the new home first acknowledged a write.

        The time of the acknowledgement counts: a starting API server holds a write for seconds, until after the cut.
        """
        cut = min((answered for _, answered, slot in self._taken if slot != former), default=math.inf)
        return [f"{began - cut:.3f} s late" for began, _, slot in self._taken if slot == former and began > cut]

    async def lost(self) -> list[str]:
        """Return mismatches between the stored numbers and the acknowledged writes."""
        problems = []
        async with Client(self._mover.config, field_manager="kplane") as client:
            for slot in (0, 1):
                config_map = await client.get(CONFIG_MAPS, f"intruder-{slot}", namespace="default")
                if not self._acknowledged[slot] <= (number := int(config_map["data"]["number"])) <= self._tried[slot]:
                    problems.append(f"intruder {slot} wrote {self._acknowledged[slot]}, and {number} is there")
        return problems

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _write(self, slot: int) -> None:
        while not self._end.wait(_PAUSE_SECONDS):
            if (port := self._port(slot)) is None:
                continue
            config = dataclasses.replace(self._config, server=f"https://127.0.0.1:{port}")
            send = Connection(config, timeout=_ANSWER_SECONDS)
            with contextlib.closing(send), contextlib.suppress(OSError, http.client.HTTPException):
                while not self._end.wait(_PAUSE_SECONDS):
                    self._put(send, slot)

    def _put(self, send: Connection, slot: int) -> None:
        self._tried[slot] += 1
        number, began = self._tried[slot], time.monotonic()
        with contextlib.suppress(Refused):
            send("PUT", f"{CONFIG_MAPS.path(namespace='default')}/intruder-{slot}", _body(slot, number))
            self._acknowledged[slot] = number
            self._taken.append((began, time.monotonic(), slot))

    def _port(self, slot: int) -> int | None:
        directory = self._mover.cluster.handle.operator_directory / apiserver_name(self._mover.name, slot=slot)
        for pid in find_processes(directory):
            with contextlib.suppress(OSError):
                if match := _PORT.search(Path(f"/proc/{pid}/cmdline").read_bytes()):
                    return int(match[1])
        return None


@contextlib.asynccontextmanager
async def intruding(mover: Mover) -> AsyncIterator[Intruders]:
    """Run writers at both homes while the body runs."""
    kubeconfigs = await secret(
        mover.cluster.client, kubeconfig_secret_name(mover.name), management_namespace(mover.name)
    )
    async with Client(mover.config, field_manager="kplane") as client:
        for slot in (0, 1):
            await client.apply(CONFIG_MAPS, _body(slot, 0), force=True)
    intruders = Intruders(mover, ClusterConfig.from_kubeconfig(kubeconfigs[KUBECONFIG_KEY]))
    intruders.start()
    try:
        await mover.eventually(lambda: intruders.took(mover.status["home"]["slot"]))
        yield intruders
    finally:
        intruders.stop()


def _body(slot: int, number: int) -> dict[str, Any]:
    metadata = {"name": f"intruder-{slot}", "namespace": "default"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"number": str(number)}}
