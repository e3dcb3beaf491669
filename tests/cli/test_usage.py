"""Usage of control planes: measured, sorted and shown."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from kplane.api import ControlPlane, ControlPlaneRegistration
from kplane.cli.choices import Order
from kplane.cli.programs import Program, Replica
from kplane.cli.usage import Usage, UsageMeter, cells, in_order, series
from kplane.cli.usage_table import render
from kplane.provider import Unreachable

METRICS = """\
# HELP kplane_gateway_requests_total Requests
# TYPE kplane_gateway_requests_total counter
kplane_gateway_requests_total{{control_plane="acme-path"}} {acme}
kplane_gateway_requests_total{{control_plane="globex"}} 5.0
# HELP kplane_gateway_requests_in_flight Requests
# TYPE kplane_gateway_requests_in_flight gauge
kplane_gateway_requests_in_flight{{control_plane="acme-path"}} 2.0
# HELP kplane_gateway_waiting_requests Others
# TYPE kplane_gateway_waiting_requests gauge
kplane_gateway_waiting_requests 1.0
"""


class Programs:
    """Programs with an operator, an mcm and two gateway replicas."""

    def __init__(self) -> None:
        self.requests = 10
        self.broken = ""

    async def replicas(self) -> Sequence[Replica]:
        gateways = [Replica(program=Program.GATEWAY, name=name) for name in ("gateway-a", "gateway-b")]
        return [Replica(program=Program.OPERATOR, name="operator"), Replica(program=Program.MCM, name="mcm"), *gateways]

    async def ask(self, replica: Replica, path: str) -> str:
        if replica.name == self.broken:
            raise Unreachable(f"{replica.name} does not answer", kind="connect")
        if replica.program is Program.MCM:
            return json.dumps({"clusters": {"acme-r": {"pssBytes": 3 << 20}, "globex-r": {"pssBytes": None}}})
        return METRICS.format(acme=self.requests)

    async def memory(self) -> Mapping[str, int]:
        return {"apiserver-acme": 100 << 20, "etcd-acme": 20 << 20, "apiserver-other": 1}


def control_planes() -> Any:
    acme = {
        "metadata": {"name": "acme"},
        "spec": {"mode": "Dedicated"},
        "status": {
            "phase": "Ready",
            "clusterPath": "acme-path",
            "storage": {"keys": 200, "bytes": 1 << 20, "quotaBytes": 4 << 20},
        },
    }
    globex = {"metadata": {"name": "globex"}, "spec": {}, "status": {"phase": "Hibernated"}}
    registered = {"metadata": {"name": "acme-r", "uid": "1"}, "spec": {"controlPlaneRef": {"name": "acme"}}}

    async def everything() -> Sequence[ControlPlane]:
        return [ControlPlane.model_validate(body) for body in (acme, globex, {"metadata": {"name": "new"}, "spec": {}})]

    async def registrations() -> Sequence[ControlPlaneRegistration]:
        return [ControlPlaneRegistration.model_validate(registered)]

    return SimpleNamespace(list=everything, registrations=registrations)


async def test_usage_combines_status_memory_and_requests() -> None:
    programs, times = Programs(), iter([100.0, 104.0, 106.0])
    meter = UsageMeter(control_planes(), programs, clock=lambda: next(times))  # type: ignore[arg-type]
    acme, globex, new = await meter.look()
    assert acme == Usage(
        name="acme",
        state="awake",
        keys=200,
        bytes=1 << 20,
        quota_bytes=4 << 20,
        memory_bytes=120 << 20,
        controllers_bytes=3 << 20,
        requests=20,
        in_flight=4,
    )
    assert (globex.state, globex.requests, globex.rate, globex.memory_bytes) == ("asleep", 10, None, None)
    assert new == Usage(name="new", state="Pending")
    programs.requests = 15
    assert [usage.rate for usage in await meter.look()] == [2.5, 0.0, None]
    # A restarted gateway counts from zero.
    programs.requests = 0
    assert (await meter.look())[0].rate == 0.0
    assert meter.problems == []


async def test_unreachable_program_is_reported_and_the_rest_measured() -> None:
    programs = Programs()
    programs.broken = "gateway-b"
    meter = UsageMeter(control_planes(), programs)  # type: ignore[arg-type]
    assert (await meter.look())[0].requests == 10
    assert meter.problems == ["gateway-b: gateway-b does not answer"]
    nowhere = UsageMeter(control_planes(), None)
    assert (await nowhere.look())[0].keys == 200
    assert nowhere.problems == ["memory and requests are not known: the programs of kplane run elsewhere"]


async def test_usage_meter_asks_programs_concurrently() -> None:
    asking = asyncio.Barrier(3)

    class Slow(Programs):
        async def ask(self, replica: Replica, path: str) -> str:
            async with asyncio.timeout(10.0):
                await asking.wait()
            return await super().ask(replica, path)

    meter = UsageMeter(control_planes(), Slow())  # type: ignore[arg-type]
    assert (await meter.look())[0].requests == 20
    assert meter.problems == []


def test_series_omits_metrics_without_control_plane() -> None:
    text = METRICS.format(acme=1)
    assert series(text, "kplane_gateway_requests_total") == {"acme-path": 1, "globex": 5}
    assert series(text, "kplane_gateway_waiting_requests") == {}


def test_usages_are_sorted_by_each_order() -> None:
    small = Usage(name="a", state="awake", bytes=1, memory_bytes=9, controllers_bytes=9)
    large = Usage(name="b", state="awake", bytes=2, memory_bytes=10, rate=1.0)
    assert in_order([small, large], Order.NAME) == [small, large]
    assert in_order([small, large], Order.BYTES) == [large, small]
    assert in_order([small, large], Order.MEMORY) == [small, large]
    assert in_order([small, large], Order.REQUESTS) == [large, small]


def test_cells_have_readable_units() -> None:
    full = Usage(name="a", state="awake", keys=3, bytes=3 << 10, quota_bytes=4 << 10, memory_bytes=150 << 20, rate=0.26)
    assert cells(full) == ["a", "awake", "3", "3Ki", "75 %", "150Mi", "", "", "", "0.3/s"]


def test_usage_table_has_totals_and_problems() -> None:
    output = io.StringIO()
    console = Console(file=output, width=120, color_system=None)
    usages = [Usage(name="acme", state="awake"), Usage(name="globex", state="asleep")]
    console.print(render(usages, problems=["mcm: no answer"]))
    text = output.getvalue()
    assert "2 control planes, 1 awake" in text
    assert "warning: mcm: no answer" in text
