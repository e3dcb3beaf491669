"""mcm as a process, on a real management cluster, with real control planes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from mcm.configuration import component_name
from mcm.main import LOG_BYTES
from provider import NAMESPACES, SECRETS, Client, ClusterConfig, Forbidden
from provider.providers.registration import REGISTRATIONS

from .control_planes import held_by_another, manifest, works

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("mcm"), pytest.mark.timeout(300)]

Eventually = Callable[..., Any]
Fleet = Any


async def test_a_deleted_registration_leaves_nothing(
    mcm: Any, fleet: Fleet, tenants: Any, state: Any, eventually: Eventually
) -> None:
    mcm.start()
    name = await fleet.register("a", tenants["one"].controllers_secret(), server=tenants["one"].server, profile="Core")
    found = await state(name, "Ready")
    assert found["profile"] == "Core"
    assert await asyncio.to_thread(mcm.instances) == [found["pid"]]
    limits = Path(f"/proc/{found['pid']}/limits").read_text()
    [line] = [line for line in limits.splitlines() if line.startswith("Max file size")]
    assert line.split()[3:5] == [str(4 * LOG_BYTES)] * 2
    _, metrics = await asyncio.to_thread(mcm.get, "/metrics")
    assert f'mcm_instance_up{{cluster="{name}"}} 1.0' in metrics
    assert f'mcm_instance_pss_bytes{{cluster="{name}"}}' in metrics

    await fleet.client.delete(REGISTRATIONS, name)
    await eventually(lambda: not mcm.instances() and not mcm.directories())
    # It is in the summaries until the registration was told, or is known to be gone.
    await eventually(lambda: asyncio.to_thread(mcm.clusters), lambda found: name not in found)
    await eventually(lambda: asyncio.to_thread(mcm.get, "/metrics"), lambda answer: name not in answer[1])


async def test_a_killed_instance_comes_back(
    mcm: Any, fleet: Fleet, tenants: Any, one: Client, state: Any, eventually: Eventually
) -> None:
    mcm.start()
    name = await fleet.register("a", tenants["one"].controllers_secret(), server=tenants["one"].server)
    before = await state(name, "Ready")
    os.kill(before["pid"], signal.SIGKILL)
    found = await state(name, "Ready", lambda found: found["pid"] != before["pid"])
    assert found["restarts"] > before["restarts"]
    assert found["exits"]["Killed"] == before["exits"].get("Killed", 0) + 1
    assert found["message"] == ""
    await works(one, eventually)


async def test_instances_die_with_a_killed_mcm_and_a_new_one_starts_them_again(
    mcm: Any, fleet: Fleet, tenants: Any, one: Client, state: Any, eventually: Eventually
) -> None:
    mcm.start()
    kept = await fleet.register("kept", tenants["one"].controllers_secret(), server=tenants["one"].server)
    deleted = await fleet.register("deleted", tenants["two"].controllers_secret(), server=tenants["two"].server)
    left = await fleet.register("left", tenants["two"].controllers_secret(), server=tenants["two"].server)
    old = {(await state(name, "Ready"))["pid"] for name in (kept, deleted, left)}
    running = ("True", "InstanceRunning", fleet.uid_at(tenants["two"].server))
    await eventually(lambda: fleet.told("left"), lambda told: told == running)
    assert await asyncio.to_thread(mcm.end, signal.SIGKILL) == -signal.SIGKILL
    await eventually(lambda: not mcm.instances())
    await fleet.client.delete(REGISTRATIONS, deleted)
    await fleet.withdraw("left")
    assert await fleet.told("left") == running

    mcm.start()
    found = await state(kept, "Ready")
    assert found["pid"] not in old
    assert mcm.directories() == [component_name(kept)]
    await eventually(lambda: fleet.told("left"), lambda told: told == ("False", "Ended", ""))
    await works(one, eventually)


async def test_control_planes_that_do_not_answer_disturb_no_other(
    mcm: Any, fleet: Fleet, tenants: Any, one: Client, state: Any, eventually: Eventually
) -> None:
    secret, foreign = tenants["one"].controllers_secret(), tenants["two"].controllers_secret()
    async with silent() as address:
        mcm.start()
        names = {
            "silent": await fleet.register("silent", secret, server=f"https://{address}"),
            "refused": await fleet.register("refused", secret, server="https://127.0.0.1:1"),
            "foreign": await fleet.register("foreign", foreign, server=tenants["one"].server),
        }
        good = await fleet.register("good", secret, server=tenants["one"].server)
        before = await state(good, "Ready")
        await works(one, eventually)

        def told() -> dict[str, Any]:
            return {stem: mcm.clusters()[name] for stem, name in names.items()}

        words = {"refused": "Connect call failed", "foreign": "certificate", "silent": "does not answer"}
        found = await eventually(
            lambda: asyncio.to_thread(told),
            lambda found: all(word in found[stem]["message"] for stem, word in words.items()),
        )
        # No process is started for what it could not work with.
        assert {(summary["state"], summary["pid"]) for summary in found.values()} == {("Pending", None)}
        refused = ("False", "APIServerUnreachable", fleet.uid_at("https://127.0.0.1:1"))
        await eventually(lambda: fleet.told("refused"), lambda told: told == refused)
        status = (await fleet.client.get(REGISTRATIONS, names["refused"]))["status"]
        [condition] = [item for item in status["conditions"] if item["type"] == "Running"]
        assert "https://127.0.0.1:1" in condition["message"]
        assert (await asyncio.to_thread(mcm.get, "/readyz"))[0] == 200
        after = await state(good, "Ready")
        assert (after["pid"], after["restarts"]) == (before["pid"], before["restarts"])


async def test_an_instance_makes_way_for_another_controller_manager(
    mcm: Any, fleet: Fleet, tenants: Any, two: Client, state: Any, eventually: Eventually
) -> None:
    """Somebody else's holds the Lease of the tenant, as kube-controller-manager does by default."""
    mcm.start()
    name = await fleet.register("a", tenants["two"].controllers_secret(), server=tenants["two"].server)
    await state(name, "Ready")
    async with held_by_another(two, "kube-controller-manager"):
        foreign = ("False", "ForeignControllerManager", fleet.uid_at(tenants["two"].server))
        await eventually(lambda: fleet.told("a"), lambda told: told == foreign)
        # Why it is ended may be told before it is.
        await eventually(lambda: not mcm.instances())
    await state(name, "Ready")


async def test_sigterm_ends_every_instance(mcm: Any, fleet: Fleet, tenants: Any, state: Any) -> None:
    mcm.start()
    for stem in ("one", "two"):
        await fleet.register(stem, tenants[stem].controllers_secret(), server=tenants[stem].server)
    for stem in ("one", "two"):
        await state(fleet.name(stem), "Ready")
    assert len(await asyncio.to_thread(mcm.instances)) == 2
    assert await asyncio.to_thread(mcm.end) == 0
    assert not mcm.instances()
    assert not mcm.directories()
    assert {await fleet.told(stem) for stem in ("one", "two")} == {("False", "Ended", "")}


async def test_mcm_may_read_registrations_and_single_secrets_and_write_a_status_only(
    api_server: Any, fleet: Fleet, tenants: Any, eventually: Eventually
) -> None:
    name = await fleet.register("a", tenants["one"].controllers_secret(), server=tenants["one"].server)
    await fleet.client.create(SECRETS, manifest("v1", "Secret", "other", namespace=fleet.namespace))
    async with Client(ClusterConfig.load(api_server.mcm_kubeconfig)) as mcm:
        before = await fleet.client.get(REGISTRATIONS, name)
        # The API server goes by a binding some milliseconds after it was written.
        assert (await eventually(lambda: mcm.get(SECRETS, "a", namespace=fleet.namespace)))["data"]
        for attempt in (
            mcm.get(SECRETS, "other", namespace=fleet.namespace),
            mcm.list(SECRETS, namespace=fleet.namespace),
            mcm.list(SECRETS),
            mcm.delete(SECRETS, "a", namespace=fleet.namespace),
            mcm.delete(REGISTRATIONS, name),
            mcm.patch(REGISTRATIONS, name, {"spec": {"services": []}}),
            mcm.replace(REGISTRATIONS, before, subresource="status"),
            mcm.list(NAMESPACES),
        ):
            with pytest.raises(Forbidden):
                await attempt
        changes = {"spec": {"services": []}, "metadata": {"labels": {"a": "b"}, "finalizers": ["a.test/b"]}}
        body = {**changes, "status": {"instance": {"controlPlaneUID": "uid-1"}}}
        after = await mcm.patch(REGISTRATIONS, name, body, subresource="status")
        assert after["status"] == before["status"] | body["status"]
        assert after["spec"] == before["spec"]
        assert {"labels", "finalizers"}.isdisjoint(after["metadata"])


@contextlib.asynccontextmanager
async def silent() -> AsyncIterator[str]:
    """A server that accepts and never says anything."""
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
