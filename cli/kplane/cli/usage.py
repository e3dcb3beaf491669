"""What each control plane takes: keys, bytes, memory and requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from kplane.api import ControlPlane, ControlPlanePhase, ControlPlaneRegistration
from kplane.cli.choices import Order
from kplane.cli.programs.base import Program, Programs, Replica
from kplane.client import ControlPlanes
from kplane.components.names import MOST_ETCD_MEMBERS, apiserver_name, egress_name, etcd_name, mcm_name
from kplane.provider import ProviderError

__all__ = ["HEADS", "Usage", "UsageMeter", "cells", "in_order"]

HEADS = ("NAME", "STATE", "KEYS", "BYTES", "QUOTA", "MEMORY", "CONTROLLERS", "IN FLIGHT", "REQUESTS", "RATE")
_STATES = {ControlPlanePhase.READY: "awake", ControlPlanePhase.HIBERNATED: "asleep"}
_REQUESTS = "kplane_gateway_requests_total"
_IN_FLIGHT = "kplane_gateway_requests_in_flight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one control plane takes; None where it is not known."""

    name: str
    state: str
    """awake, asleep, or the phase."""
    keys: int | None = None
    bytes: int | None = None
    quota_bytes: int | None = None
    memory_bytes: int | None = None
    """Of its API server, and of its etcd if it has one of its own."""
    controllers_bytes: int | None = None
    """Of its instances in mcm."""
    requests: int | None = None
    """All that the gateways passed on since they started."""
    in_flight: int | None = None
    rate: float | None = None
    """Requests a second since the look before."""


@dataclass(slots=True)
class _Measured:
    """What programs said."""

    memory: Mapping[str, int] = field(default_factory=dict)
    """Bytes by component."""
    instances: dict[str, int] = field(default_factory=dict)
    """Bytes by registration."""
    requests: dict[str, int] = field(default_factory=dict)
    """By path of the control plane."""
    in_flight: dict[str, int] = field(default_factory=dict)


class UsageMeter:
    """Looks at all control planes again and again."""

    def __init__(
        self,
        control_planes: ControlPlanes,
        programs: Programs | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.problems: list[str] = []
        """What could not be measured at the last look, and why."""
        self._control_planes = control_planes
        self._programs = programs
        self._clock = clock
        self._last: Mapping[str, int] = {}
        self._looked = 0.0

    async def look(self) -> Sequence[Usage]:
        """Return what all take now, by name. Raises ProviderError if the API server refuses to list them."""
        self.problems = []
        found = await self._control_planes.list()
        registered: dict[str, list[ControlPlaneRegistration]] = {}
        for each in await self._control_planes.registrations():
            registered.setdefault(each.spec.control_plane_ref.name, []).append(each)
        measured = await self._measure()
        return self._with_rates([_usage(each, registered.get(each.name, ()), measured) for each in found])

    def _with_rates(self, usages: Sequence[Usage]) -> Sequence[Usage]:
        last, passed = self._last, self._clock() - self._looked
        self._looked += passed
        self._last = {each.name: each.requests for each in usages if each.requests is not None}
        return [
            replace(each, rate=max(0, each.requests - last[each.name]) / passed)
            if each.requests is not None and each.name in last
            else each
            for each in usages
        ]

    async def _measure(self) -> _Measured:
        measured = _Measured()
        if self._programs is None:
            self.problems.append("memory and requests are not known: the programs of kplane run elsewhere")
            return measured
        with self._noting("memory"):
            measured.memory = await self._programs.memory()
        replicas: Sequence[Replica] = ()
        with self._noting("controllers and requests"):
            replicas = await self._programs.replicas()
        # At once: each that does not answer takes some seconds.
        await asyncio.gather(*(self._measure_replica(each, self._programs, measured) for each in replicas))
        return measured

    async def _measure_replica(self, replica: Replica, programs: Programs, measured: _Measured) -> None:
        with self._noting(replica.name):
            if replica.program is Program.MCM:
                _add(measured.instances, _instance_sizes(await programs.ask(replica, "/clusters")))
            if replica.program is Program.GATEWAY:
                text = await programs.ask(replica, "/metrics")
                _add(measured.requests, series(text, _REQUESTS))
                _add(measured.in_flight, series(text, _IN_FLIGHT))

    @contextlib.contextmanager
    def _noting(self, what: str) -> Iterator[None]:
        try:
            yield
        except (ProviderError, ValueError, LookupError) as error:
            self.problems.append(f"{what}: {error}")


def _usage(found: ControlPlane, registrations: Sequence[ControlPlaneRegistration], measured: _Measured) -> Usage:
    storage, phase = found.status.storage, found.status.phase or ControlPlanePhase.PENDING
    path = found.status.cluster_path or found.name
    # The mcm of a registration of mode Dedicated is a component with its instance.
    own = [measured.memory.get(mcm_name(found.name, uid=each.metadata.uid or "")) for each in registrations]
    shared = [measured.instances.get(each.name) for each in registrations]
    return Usage(
        name=found.name,
        state=_STATES.get(phase, str(phase)),
        keys=storage.keys if storage is not None else None,
        bytes=storage.bytes if storage is not None else None,
        quota_bytes=storage.quota_bytes if storage is not None else None,
        memory_bytes=_sum(measured.memory.get(component) for component in _components(found)),
        controllers_bytes=_sum([*own, *shared]),
        requests=measured.requests.get(path),
        in_flight=measured.in_flight.get(path),
    )


def _instance_sizes(answer: str) -> Mapping[str, int]:
    """Return the bytes of instances in what mcm tells at `/clusters`."""
    found = {name: each.get("pssBytes") for name, each in json.loads(answer)["clusters"].items()}
    return {name: size for name, size in found.items() if size is not None}


def _components(found: ControlPlane) -> Sequence[str]:
    slot = found.home.slot
    members = (etcd_name(found.name, member, slot=slot) for member in range(MOST_ETCD_MEMBERS))
    return [apiserver_name(found.name, slot=slot), egress_name(found.name, slot=slot), *members]


def series(text: str, name: str) -> Mapping[str, int]:
    """Return the values of a metric in Prometheus' format, by control plane."""
    return {
        sample.labels["control_plane"]: int(sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and "control_plane" in sample.labels
    }


def _add(sums: dict[str, int], more: Mapping[str, int]) -> None:
    for name, value in more.items():
        sums[name] = sums.get(name, 0) + value


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def in_order(usages: Sequence[Usage], order: Order) -> Sequence[Usage]:
    """Return them by name, or those that take most first."""
    if order is Order.NAME:
        return usages
    measures: dict[Order, Any] = {
        Order.BYTES: lambda each: each.bytes or 0,
        Order.MEMORY: lambda each: (each.memory_bytes or 0) + (each.controllers_bytes or 0),
        Order.REQUESTS: lambda each: (each.rate or 0.0, each.requests or 0),
    }
    return sorted(usages, key=measures[order], reverse=True)


def cells(usage: Usage) -> Sequence[str]:
    """Return the cells of a row, below `HEADS`."""
    quota = ""
    if usage.quota_bytes is not None and usage.bytes is not None:
        quota = f"{100 * usage.bytes // usage.quota_bytes} %"
    return [
        usage.name,
        usage.state,
        _number(usage.keys),
        _size(usage.bytes),
        quota,
        _size(usage.memory_bytes),
        _size(usage.controllers_bytes),
        _number(usage.in_flight),
        _number(usage.requests),
        f"{usage.rate:.1f}/s" if usage.rate is not None else "",
    ]


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _size(value: int | None) -> str:
    if value is None:
        return ""
    return f"{value / (1 << 20):.0f}Mi" if value >= 10 << 20 else f"{value / 1024:.0f}Ki"
