"""Presence: the Lease of this replica of the gateway, with the progress of its routes and its write holds."""

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

from kplane.api.clocks import read_time
from kplane.api.names import GATEWAY_LEASE_LABEL, HOLDS_ANNOTATION, IN_FLIGHT_ANNOTATION, SERVED_ANNOTATION
from kplane.gateway.control_planes import Progress
from kplane.gateway.data_plane import DataPlane
from kplane.provider import Client, NotFound, ProviderError
from kplane.provider.client.resources import LEASES

__all__ = ["Presence", "read_newest_progress", "replica_of"]

logger = logging.getLogger(__name__)

InFlight = Mapping[str, Mapping[str, Any]]
"""Mutating requests in flight, by key of the control plane (`DataPlane.in_flight`)."""

_RENEWED_SECONDS: Final = 5.0
_DURATION_SECONDS: Final = 15
_LOOK_SECONDS: Final = 0.05
"""Seconds between two looks at a write hold that is not in force yet."""
_PACE_SECONDS: Final = 0.1
"""Minimum seconds between two writes for progress of routes or requests in flight, however many of them change."""
_ENDING_SECONDS: Final = 3.0
_KEPT: Final = timedelta(minutes=10)
"""Age of the last renewal from which a Lease belongs to a killed replica."""


def replica_of(state_dir: Path) -> str:
    """Return the name of the replica with this state directory. The name survives restarts.

    The host name alone is not enough: two gateways on a machine would take each other's write holds for their own.
    """
    file = state_dir / "replica"
    if not file.exists():
        new = file.with_name(".replica.new")
        new.write_text(uuid.uuid4().hex[:12])
        new.replace(file)
    return f"{socket.gethostname()}-{file.read_text()}"


async def read_newest_progress(client: Client, *, namespace: str) -> Progress:
    """Read the newest progress of all live replicas from their Leases. Raises ProviderError.

    The read is consistent: it includes each Lease that was written before.
    """
    leases = await client.list(LEASES, namespace=namespace, label_selector=GATEWAY_LEASE_LABEL)
    reports = [_reported(lease) for lease in leases.items if not _is_expired(lease)]
    return Progress(
        max((progress.control_planes for progress in reports), default=0),
        max((progress.secrets for progress in reports), default=0),
    )


def _reported(lease: Mapping[str, Any]) -> Progress:
    """Return the progress that a replica reports; the least progress without a valid report."""
    annotations = lease["metadata"].get("annotations") or {}
    try:
        numbers = orjson.loads(annotations.get(SERVED_ANNOTATION, "{}"))
        return Progress(int(numbers.get("controlplanes", 0)), int(numbers.get("secrets", 0)))
    except (AttributeError, TypeError, ValueError):
        return Progress()


def _is_expired(lease: Mapping[str, Any]) -> bool:
    """Return whether a replica has stopped. After a restore of the management cluster, its progress may be too high."""
    renewed = read_time((lease.get("spec") or {}).get("renewTime"))
    return renewed is None or renewed + timedelta(seconds=_DURATION_SECONDS) < datetime.now(UTC)


class Presence:
    """Maintains the Lease of this replica.

    Its annotations contain the progress of the routes, and the write holds that are in force with no mutating request
    in flight. They also list mutating requests in flight that delay a write hold.
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
        """Create the presence of a replica.

        `replica` is its unique name. `served` returns the progress of the routes that the replica serves.
        """
        self._client = client
        self._plane = plane
        self._namespace = namespace
        self._name = "gateway-" + re.sub("[^-a-z0-9]", "-", replica.lower())[:200].strip("-")
        self._served = served
        self._clock = clock
        self._renewed = 0.0
        """Monotonic time at which the last successful write of the Lease began."""
        self._changed = asyncio.Event()
        self._seen: Mapping[str, str] = {}
        self._problem: str | None = None

    @property
    def is_current(self) -> bool:
        """Whether the Lease has not expired. Until it expires, the operator waits for this replica."""
        return time.monotonic() < self._renewed + _DURATION_SECONDS

    def look(self) -> None:
        """Have `run` look again at once. Call this after a change of a write hold or of the progress."""
        self._changed.set()

    async def run(self) -> NoReturn:
        """Maintain the Lease until cancelled. Failures are logged and retried."""
        loop = asyncio.get_running_loop()
        reported: Mapping[str, str] | None = None
        reported_progress: Progress | None = None
        reported_in_flight: InFlight = {}
        renew, paced, swept = 0.0, 0.0, False
        while True:
            self._changed.clear()
            served, quiet = self._served(), await self._quiet()
            in_flight = self._plane.in_flight
            is_same = (served, in_flight) == (reported_progress, reported_in_flight)
            if quiet != reported or loop.time() >= (renew if is_same else paced):
                reported = quiet if await self._tell(quiet, served, in_flight) else None
                reported_progress, reported_in_flight = served, in_flight
                renew, paced = loop.time() + _RENEWED_SECONDS, loop.time() + _PACE_SECONDS
            if reported is not None and not swept:
                await self._sweep()
                swept = True
            held = self._plane.held
            is_waiting = reported is not None and any(hold.asked != reported.get(key) for key, hold in held.items())
            expirations = [(hold.until - self._clock()).total_seconds() for hold in held.values()]
            deadline = renew if (served, in_flight) == (reported_progress, reported_in_flight) else paced
            delay = _LOOK_SECONDS if is_waiting else max(0.0, min([deadline - loop.time(), *expirations]))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._changed.wait()

    async def leave(self) -> None:
        """Delete the Lease. Call this after Envoy has stopped, when no request passes through this replica."""
        with contextlib.suppress(ProviderError, TimeoutError):
            async with asyncio.timeout(_ENDING_SECONDS):
                await self._client.delete(LEASES, self._name, namespace=self._namespace)

    async def _quiet(self) -> Mapping[str, str]:
        """Return the write holds that were in force at this look and at the look before.

        Workers of Envoy may load a route configuration only after Envoy has confirmed it.
        """
        former, current = self._seen, dict[str, str]()
        with contextlib.suppress(OSError, aiohttp.ClientError, TimeoutError):
            current = dict(await self._plane.quiet())
        self._seen = current
        return {key: asked for key, asked in current.items() if former.get(key) == asked}

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
        started = time.monotonic()
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
        self._renewed = started
        return True

    async def _sweep(self) -> None:
        """Delete the Leases of replicas that were killed long ago."""
        try:
            leases = await self._client.list(LEASES, namespace=self._namespace, label_selector=GATEWAY_LEASE_LABEL)
            for lease in leases.items:
                renewed = datetime.fromisoformat((lease.get("spec") or {}).get("renewTime") or "1970-01-01T00:00:00Z")
                if renewed + _KEPT < self._clock():
                    with contextlib.suppress(NotFound):
                        await self._client.delete(LEASES, lease["metadata"]["name"], namespace=self._namespace)
        except ProviderError as error:
            logger.warning("failed to delete the Leases of former replicas: %s", error)
