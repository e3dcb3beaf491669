"""Changes of registrations: never two instances, and no unnecessary restarts."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from kplane.pki.authorities import CONTROLLERS_USER
from kplane.pki.kubeconfig import render_kubeconfig
from kplane.pki.primitives import issue_client
from kplane.provider import Client, Event, Informer, NotFound
from kplane.provider.client.resources import NAMESPACES, SERVICE_ACCOUNTS
from kplane.provider.providers.kplane import REGISTRATIONS

from .control_planes import manifest, works

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("mcm"), pytest.mark.timeout(300)]

Eventually = Callable[..., Any]
Fleet = Any
Told = tuple[str, str, str]
"""Status and reason of the condition Running, and the control plane UID of the instance."""


@pytest.fixture
def mcm(shared_mcm: Any) -> Any:
    return shared_mcm


@contextlib.asynccontextmanager
async def looked_at(mcm: Any) -> AsyncIterator[set[tuple[int, ...]]]:
    """Collect each set of pids of instances that exist at the same time."""
    pid_sets: set[tuple[int, ...]] = set()

    async def look() -> None:
        while True:
            pid_sets.add(tuple(await asyncio.to_thread(mcm.instances)))

    async with running(look()):
        yield pid_sets


@contextlib.asynccontextmanager
async def followed(fleet: Fleet, name: str, *, pid: int) -> AsyncIterator[list[tuple[Told, bool]]]:
    """Collect the successive reports of a registration, each with whether process `pid` existed at that time."""
    history: list[tuple[Told, bool]] = []

    def note(event: Event) -> None:
        history.append((fleet.instance_in(event.object), Path(f"/proc/{pid}").exists()))

    async with running(Informer(fleet.client, REGISTRATIONS, name=name).run(note)):
        yield history


@contextlib.asynccontextmanager
async def running(work: Coroutine[Any, Any, Any]) -> AsyncIterator[None]:
    """Run an endless task within the block. Fails if the task has ended."""
    task = asyncio.create_task(work)
    try:
        yield
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_switched_registration_never_has_two_instances(
    mcm: Any, fleet: Fleet, tenants: Any, one: Client, two: Client, state: Any, eventually: Eventually
) -> None:
    old_uid, new_uid = fleet.uid_at(tenants["one"].server), fleet.uid_at(tenants["two"].server)
    name = await fleet.register("a", tenants["one"].controllers_secret(), server=tenants["one"].server)
    old_pid = (await state(name, "Ready"))["pid"]
    await works(one, eventually)
    await eventually(lambda: fleet.told("a"), lambda told: told == ("True", "InstanceRunning", old_uid))
    await fleet.put_secret("moved", tenants["two"].controllers_secret())

    async with looked_at(mcm) as pid_sets, followed(fleet, name, pid=old_pid) as history:
        await eventually(lambda: history and (old_pid,) in pid_sets)
        await fleet.resolve("a", server=tenants["two"].server, secret="moved")
        new_pid = (await state(name, "Ready", lambda found: found["server"] == tenants["two"].server))["pid"]
        await eventually(lambda: (new_pid,) in pid_sets)
        await eventually(lambda: history[-1][0] == ("True", "InstanceRunning", new_uid))
    assert new_pid != old_pid
    assert max(len(pids) for pids in pid_sets) == 1

    # The end of the old instance is reported before the new instance, and the old instance does not appear again.
    # The reports of the new instance depend on the speed of the machine, but in the first report it does not run.
    order = [uid for uid, _ in itertools.groupby(uid for (_, _, uid), _ in history)]
    assert order[:3] == [old_uid, "", new_uid]
    assert old_uid not in order[1:]
    assert {(status, reason) for (status, reason, uid), _ in history if not uid} == {("False", "Ended")}
    assert next(status for (status, _, uid), _ in history if uid == new_uid) == "False"
    # The old process has ended before any other report.
    assert not [report for report, alive in history if report[2] != old_uid and alive]

    await works(two, eventually)
    # The old control plane has no controllers any more.
    namespace = f"lonely-{uuid.uuid4().hex[:8]}"
    await one.create(NAMESPACES, manifest("v1", "Namespace", namespace))
    await works(two, eventually)
    with pytest.raises(NotFound):
        await one.get(SERVICE_ACCOUNTS, "default", namespace=namespace)


async def test_invalid_keys_end_no_instance_and_are_logged(
    mcm: Any, fleet: Fleet, tenants: Any, state: Any, eventually: Eventually
) -> None:
    tenant = tenants["one"]
    secret, ca = tenant.controllers_secret(), tenant.authorities.serving.certificate
    client, other_client = (issue_client(tenant.authorities.client, user=CONTROLLERS_USER) for _ in range(2))
    pair = dataclasses.replace(client, key=other_client.key)
    kubeconfig = render_kubeconfig(server=tenant.server, ca=ca, user=CONTROLLERS_USER, client=pair)
    name = await fleet.register("a", secret, server=tenant.server)
    pid = (await state(name, "Ready"))["pid"]

    def renewals() -> int:
        return mcm.log.read_text().count("is renewed")

    renewals_before = renewals()
    for invalid_keys, words in (
        ({"sa.key": b"garbage"}, f"cluster {name}: invalid key sa.key"),
        ({"ca.crt": b"garbage"}, f"cluster {name}: invalid key ca.crt"),
        ({"kubeconfig": kubeconfig}, ": the client certificate and key for"),
    ):
        await fleet.put_secret("a", secret | invalid_keys)
        await eventually(lambda words=words: words in mcm.log.read_text())
    # Meanwhile the same process follows all other changes, and then the new valid credentials.
    await eventually(lambda: renewals() == renewals_before + 1)
    renewed = issue_client(tenant.authorities.client, user=CONTROLLERS_USER, groups=("system:masters",))
    kubeconfig = render_kubeconfig(server=tenant.server, ca=ca, user=CONTROLLERS_USER, client=renewed)
    await fleet.put_secret("a", secret | {"kubeconfig": kubeconfig})
    await eventually(lambda: renewals() == renewals_before + 2)
    after = await state(name, "Ready")
    assert (after["pid"], after["restarts"], after["exits"]) == (pid, 0, {})
