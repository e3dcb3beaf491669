"""Resource usage of each control plane: keys, bytes, memory and requests."""

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
    """Usage of a control plane. Unknown values are None."""

    name: str
    state: str
    """"awake", "asleep", or the phase."""
    keys: int | None = None
    bytes: int | None = None
    quota_bytes: int | None = None
    memory_bytes: int | None = None
    """Memory of its API server, and of its etcd if it is dedicated."""
    controllers_bytes: int | None = None
    """Memory of its instances in mcm."""
    requests: int | None = None
    """Number of requests that the gateways have forwarded since their start."""
    in_flight: int | None = None
    rate: float | None = None
    """Requests per second since the last measurement."""


@dataclass(slots=True)
class _Measured:
    """Values that the programs have reported."""

    memory: Mapping[str, int] = field(default_factory=dict)
    """Bytes by component."""
    instances: dict[str, int] = field(default_factory=dict)
    """Bytes by registration."""
    requests: dict[str, int] = field(default_factory=dict)
    """Number of requests by path of the control plane."""
    in_flight: dict[str, int] = field(default_factory=dict)


class UsageMeter:
    """Meter that measures all control planes repeatedly."""

    def __init__(
        self,
        control_planes: ControlPlanes,
        programs: Programs | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.problems: list[str] = []
        """Values that the last measurement lacks, with the causes."""
        self._control_planes = control_planes
        self._programs = programs
        self._clock = clock
        self._last: Mapping[str, int] = {}
        self._looked = 0.0

    async def look(self) -> Sequence[Usage]:
        """Return the present usage of all control planes, by name.

        Raises ProviderError if the API server refuses to list them.
        """
        self.problems = []
        control_planes = await self._control_planes.list()
        registered: dict[str, list[ControlPlaneRegistration]] = {}
        for item in await self._control_planes.registrations():
            registered.setdefault(item.spec.control_plane_ref.name, []).append(item)
        measured = await self._measure()
        return self._with_rates([_usage(item, registered.get(item.name, ()), measured) for item in control_planes])

    def _with_rates(self, usages: Sequence[Usage]) -> Sequence[Usage]:
        last, passed = self._last, self._clock() - self._looked
        self._looked += passed
        self._last = {usage.name: usage.requests for usage in usages if usage.requests is not None}
        return [
            replace(usage, rate=max(0, usage.requests - last[usage.name]) / passed)
            if usage.requests is not None and usage.name in last
            else usage
            for usage in usages
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
        # Concurrent requests, because a replica that does not answer takes some seconds.
        await asyncio.gather(*(self._measure_replica(replica, self._programs, measured) for replica in replicas))
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
    # A registration of mode Dedicated has its own mcm component, whose memory contains the instance.
    own = [
        measured.memory.get(mcm_name(found.name, uid=registration.metadata.uid or "")) for registration in registrations
    ]
    shared = [measured.instances.get(registration.name) for registration in registrations]
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
    """Return the bytes of instances from mcm's answer at `/clusters`."""
    sizes = {name: instance.get("pssBytes") for name, instance in json.loads(answer)["clusters"].items()}
    return {name: size for name, size in sizes.items() if size is not None}


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
    present = [value for value in values if value is not None]
    return sum(present) if present else None


def in_order(usages: Sequence[Usage], order: Order) -> Sequence[Usage]:
    """Return the usages by name, or with the highest usage first."""
    if order is Order.NAME:
        return usages
    measures: dict[Order, Any] = {
        Order.BYTES: lambda each: each.bytes or 0,
        Order.MEMORY: lambda each: (each.memory_bytes or 0) + (each.controllers_bytes or 0),
        Order.REQUESTS: lambda each: (each.rate or 0.0, each.requests or 0),
    }
    return sorted(usages, key=measures[order], reverse=True)


def cells(usage: Usage) -> Sequence[str]:
    """Return the cells of a row, in the order of `HEADS`."""
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
