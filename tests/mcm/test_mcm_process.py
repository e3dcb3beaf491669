"""mcm as a process, on a real management cluster, with real control planes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from kplane.mcm.main import LOG_BYTES
from kplane.provider import Client
from kplane.provider.providers.kplane.registration import REGISTRATIONS

from .control_planes import held_by_another, works

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("mcm"), pytest.mark.timeout(300)]

Eventually = Callable[..., Any]
Fleet = Any


@pytest.fixture
def mcm(shared_mcm: Any) -> Any:
    return shared_mcm


async def test_deleted_registration_leaves_no_process_files_or_metrics(
    mcm: Any, fleet: Fleet, tenants: Any, state: Any, eventually: Eventually
) -> None:
    name = await fleet.register("a", tenants["one"].controllers_secret(), server=tenants["one"].server, profile="Core")
    summary = await state(name, "Ready")
    assert summary["profile"] == "Core"
    assert await asyncio.to_thread(mcm.instances) == [summary["pid"]]
    limits = Path(f"/proc/{summary['pid']}/limits").read_text()
    [line] = [line for line in limits.splitlines() if line.startswith("Max file size")]
    assert line.split()[3:5] == [str(4 * LOG_BYTES)] * 2
    _, metrics = await asyncio.to_thread(mcm.get, "/metrics")
    assert f'mcm_instance_up{{cluster="{name}"}} 1.0' in metrics
    assert f'mcm_instance_pss_bytes{{cluster="{name}"}}' in metrics

    await fleet.client.delete(REGISTRATIONS, name)
    await eventually(lambda: not mcm.instances() and not mcm.directories())
    # The summary stays until the end is reported to the registration, or the registration is known to be gone.
    await eventually(lambda: asyncio.to_thread(mcm.clusters), lambda found: name not in found)
    await eventually(lambda: asyncio.to_thread(mcm.get, "/metrics"), lambda answer: name not in answer[1])


async def test_unreachable_control_planes_disturb_no_other_instance(
    mcm: Any, fleet: Fleet, tenants: Any, one: Client, state: Any, eventually: Eventually
) -> None:
    secret, foreign = tenants["one"].controllers_secret(), tenants["two"].controllers_secret()
    async with silent() as address:
        names = {
            "silent": await fleet.register("silent", secret, server=f"https://{address}"),
            "refused": await fleet.register("refused", secret, server="https://127.0.0.1:1"),
            "foreign": await fleet.register("foreign", foreign, server=tenants["one"].server),
        }
        good_name = await fleet.register("good", secret, server=tenants["one"].server)
        before = await state(good_name, "Ready")
        await works(one, eventually)

        def told() -> dict[str, Any]:
            return {stem: mcm.clusters()[name] for stem, name in names.items()}

        words = {"refused": "Connect call failed", "foreign": "certificate", "silent": "does not answer"}
        summaries = await eventually(
            lambda: asyncio.to_thread(told),
            lambda found: all(word in found[stem]["message"] for stem, word in words.items()),
        )
        # No process is started for an API server that it could not use.
        assert {(summary["state"], summary["pid"]) for summary in summaries.values()} == {("Pending", None)}
        refused = ("False", "APIServerUnreachable", fleet.uid_at("https://127.0.0.1:1"))
        await eventually(lambda: fleet.told("refused"), lambda told: told == refused)
        status = (await fleet.client.get(REGISTRATIONS, names["refused"]))["status"]
        [condition] = [item for item in status["conditions"] if item["type"] == "Running"]
        assert "https://127.0.0.1:1" in condition["message"]
        assert (await asyncio.to_thread(mcm.get, "/readyz"))[0] == 200
        after = await state(good_name, "Ready")
        assert (after["pid"], after["restarts"]) == (before["pid"], before["restarts"])


async def test_instance_stops_for_a_foreign_controller_manager(
    mcm: Any, fleet: Fleet, tenants: Any, two: Client, state: Any, eventually: Eventually
) -> None:
    """A foreign holder has the Lease of the tenant, as kube-controller-manager does by default."""
    name = await fleet.register("a", tenants["two"].controllers_secret(), server=tenants["two"].server)
    await state(name, "Ready")
    async with held_by_another(two, "kube-controller-manager"):
        foreign = ("False", "ForeignControllerManager", fleet.uid_at(tenants["two"].server))
        await eventually(lambda: fleet.told("a"), lambda told: told == foreign)
        # The reason may be reported before the instance has ended.
        await eventually(lambda: not mcm.instances())
    await state(name, "Ready")


@contextlib.asynccontextmanager
async def silent() -> AsyncIterator[str]:
    """A server that accepts connections and never answers."""
    done = asyncio.Event()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await done.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        done.set()
        server.close()
