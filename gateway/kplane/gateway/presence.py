"""Says in the management cluster that this replica of the gateway is there, what it serves, and which holds it has."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NoReturn

import aiohttp
import orjson

from kplane.api.names import GATEWAY_LEASE_LABEL, HOLDS_ANNOTATION, IN_FLIGHT_ANNOTATION, SERVED_ANNOTATION
from kplane.gateway.control_planes import Progress
from kplane.gateway.data_plane import DataPlane
from kplane.provider import Client, NotFound, ProviderError
from kplane.provider.client.resources import LEASES

__all__ = ["Presence", "replica_of"]

logger = logging.getLogger(__name__)

InFlight = Mapping[str, Mapping[str, Any]]
"""By key of a control plane, what is in flight there (`DataPlane.in_flight`)."""

_RENEWED_SECONDS: Final = 5.0
_DURATION_SECONDS: Final = 15
_LOOK_SECONDS: Final = 0.05
"""Between two looks at a hold that is not in force yet."""
_PACE_SECONDS: Final = 0.1
"""Between two writes that say no more than how far routes are served: however many change, so often it is written."""
_ENDING_SECONDS: Final = 3.0
_KEPT: Final = timedelta(minutes=10)
"""Leases that ended so long ago are of replicas that were killed."""


def replica_of(state_dir: Path) -> str:
    """Return the name of the replica that has this directory. It stays when the replica starts again.

    The name of the machine alone is not enough: two gateways of one machine would take the other one's holds for their
    own.
    """
    file = state_dir / "replica"
    if not file.exists():
        new = file.with_name(".replica.new")
        new.write_text(uuid.uuid4().hex[:12])
        new.replace(file)
    return f"{socket.gethostname()}-{file.read_text()}"


class Presence:
    """Keeps a Lease of this replica.

    Its annotations name the holds that are in force, once nothing is in flight, and how far routes are served.
    """

    def __init__(
        self,
        client: Client,
        plane: DataPlane,
        *,
        namespace: str,
        replica: str,
        served: Callable[[], Progress | None] = lambda: None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`replica` names the replica among all that there are. `served` returns how far routes are served."""
        self._client = client
        self._plane = plane
        self._namespace = namespace
        self._name = "gateway-" + re.sub("[^-a-z0-9]", "-", replica.lower())[:200].strip("-")
        self._served = served
        self._clock = clock
        self._renewed = 0.0
        """When the Lease was written last, by the monotonic clock."""
        self._changed = asyncio.Event()
        self._seen: Mapping[str, str] = {}
        self._problem: str | None = None

    @property
    def is_current(self) -> bool:
        """Whether the Lease has not expired: the operator waits for this replica."""
        return time.monotonic() < self._renewed + _DURATION_SECONDS

    def look(self) -> None:
        """Look again: holds began or ended, or more is served."""
        self._changed.set()

    async def run(self) -> NoReturn:
        """Keep the Lease until cancelled. The log says what fails."""
        loop = asyncio.get_running_loop()
        told: Mapping[str, str] | None = None
        told_served: Progress | None = None
        told_in_flight: InFlight = {}
        renew, paced, swept = 0.0, 0.0, False
        while True:
            self._changed.clear()
            served, quiet = self._served(), await self._quiet()
            in_flight = self._plane.in_flight
            is_same = (served, in_flight) == (told_served, told_in_flight)
            if quiet != told or loop.time() >= (renew if is_same else paced):
                told = quiet if await self._tell(quiet, served, in_flight) else None
                told_served, told_in_flight = served, in_flight
                renew, paced = loop.time() + _RENEWED_SECONDS, loop.time() + _PACE_SECONDS
            if told is not None and not swept:
                await self._sweep()
                swept = True
            held = self._plane.held
            waits = told is not None and any(hold.asked != told.get(key) for key, hold in held.items())
            ends = [(hold.until - self._clock()).total_seconds() for hold in held.values()]
            due = renew if (served, in_flight) == (told_served, told_in_flight) else paced
            delay = _LOOK_SECONDS if waits else max(0.0, min([due - loop.time(), *ends]))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._changed.wait()

    async def leave(self) -> None:
        """Delete the Lease: Envoy has ended, and nothing passes here any more."""
        with contextlib.suppress(ProviderError, TimeoutError):
            async with asyncio.timeout(_ENDING_SECONDS):
                await self._client.delete(LEASES, self._name, namespace=self._namespace)

    async def _quiet(self) -> Mapping[str, str]:
        """Return the holds that two looks found in force: Envoy's workers may learn of a table after it confirms."""
        before, now = self._seen, dict[str, str]()
        with contextlib.suppress(OSError, aiohttp.ClientError, TimeoutError):
            now = dict(await self._plane.quiet())
        self._seen = now
        return {key: asked for key, asked in now.items() if before.get(key) == asked}

    async def _tell(self, holds: Mapping[str, str], served: Progress | None, in_flight: InFlight) -> bool:
        annotations = {HOLDS_ANNOTATION: orjson.dumps(holds, option=orjson.OPT_SORT_KEYS).decode()}
        if in_flight:
            annotations[IN_FLIGHT_ANNOTATION] = orjson.dumps(in_flight, option=orjson.OPT_SORT_KEYS).decode()
        if served is not None:
            numbers = {"controlplanes": str(served.control_planes), "secrets": str(served.secrets)}
            annotations[SERVED_ANNOTATION] = orjson.dumps(numbers).decode()
        lease: dict[str, Any] = {
            "metadata": {
                "name": self._name,
                "namespace": self._namespace,
                "labels": {GATEWAY_LEASE_LABEL: "true"},
                "annotations": annotations,
            },
            "spec": {
                "holderIdentity": self._name,
                "leaseDurationSeconds": _DURATION_SECONDS,
                "renewTime": self._clock().isoformat(timespec="microseconds").replace("+00:00", "Z"),
            },
        }
        asked = time.monotonic()
        try:
            async with asyncio.timeout(_RENEWED_SECONDS):
                await self._client.apply(LEASES, lease, force=True)
        except (ProviderError, TimeoutError) as error:
            problem = str(error) or "no answer in time"
            if problem != self._problem:
                logger.warning("failed to keep the Lease of this replica: %s; retrying", problem)
            self._problem = problem
            return False
        self._problem = None
        self._renewed = asked
        return True

    async def _sweep(self) -> None:
        """Delete the Leases of replicas that were killed long ago."""
        try:
            found = await self._client.list(LEASES, namespace=self._namespace, label_selector=GATEWAY_LEASE_LABEL)
            for lease in found.items:
                renewed = datetime.fromisoformat((lease.get("spec") or {}).get("renewTime") or "1970-01-01T00:00:00Z")
                if renewed + _KEPT < self._clock():
                    with contextlib.suppress(NotFound):
                        await self._client.delete(LEASES, lease["metadata"]["name"], namespace=self._namespace)
        except ProviderError as error:
            logger.warning("failed to delete the Leases of former replicas: %s", error)
