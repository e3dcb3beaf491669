"""Registrations that change: never two instances, and no more restarts than need be."""

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
"""Status and reason of Running, and the control plane that the instance is for."""


@pytest.fixture
def mcm(shared_mcm: Any) -> Any:
    return shared_mcm


@contextlib.asynccontextmanager
async def looked_at(mcm: Any) -> AsyncIterator[set[tuple[int, ...]]]:
    """Within, the numbers of all instances that there were at one time."""
    seen: set[tuple[int, ...]] = set()

    async def look() -> None:
        while True:
            seen.add(tuple(await asyncio.to_thread(mcm.instances)))

    async with running(look()):
        yield seen


@contextlib.asynccontextmanager
async def followed(fleet: Fleet, name: str, *, pid: int) -> AsyncIterator[list[tuple[Told, bool]]]:
    """Within, what a registration says one after the other, and whether a process was there when we heard it."""
    history: list[tuple[Told, bool]] = []

    def note(event: Event) -> None:
        history.append((fleet.instance_in(event.object), Path(f"/proc/{pid}").exists()))

    async with running(Informer(fleet.client, REGISTRATIONS, name=name).run(note)):
        yield history


@contextlib.asynccontextmanager
async def running(work: Coroutine[Any, Any, Any]) -> AsyncIterator[None]:
    """Have something run that has no end of its own; fails where it had one."""
    task = asyncio.create_task(work)
    try:
        yield
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_a_switched_registration_has_one_instance_at_any_time(
    mcm: Any, fleet: Fleet, tenants: Any, one: Client, two: Client, state: Any, eventually: Eventually
) -> None:
    there, here = fleet.uid_at(tenants["one"].server), fleet.uid_at(tenants["two"].server)
    name = await fleet.register("a", tenants["one"].controllers_secret(), server=tenants["one"].server)
    old = (await state(name, "Ready"))["pid"]
    await works(one, eventually)
    await eventually(lambda: fleet.told("a"), lambda told: told == ("True", "InstanceRunning", there))
    await fleet.put_secret("moved", tenants["two"].controllers_secret())

    async with looked_at(mcm) as seen, followed(fleet, name, pid=old) as history:
        await eventually(lambda: history and (old,) in seen)
        await fleet.resolve("a", server=tenants["two"].server, secret="moved")
        new = (await state(name, "Ready", lambda found: found["server"] == tenants["two"].server))["pid"]
        await eventually(lambda: (new,) in seen)
        await eventually(lambda: history[-1][0] == ("True", "InstanceRunning", here))
    assert new != old
    assert max(len(pids) for pids in seen) == 1

    # Its end at the old one is told before anything of the new one, and nothing of the old one after that. What is told
    # of the new one on its way depends on how fast the machine is; at first it does not run.
    order = [uid for uid, _ in itertools.groupby(uid for (_, _, uid), _ in history)]
    assert order[:3] == [there, "", here]
    assert there not in order[1:]
    assert {(status, reason) for (status, reason, uid), _ in history if not uid} == {("False", "Ended")}
    assert next(status for (status, _, uid), _ in history if uid == here) == "False"
    # By then it has ended.
    assert not [told for told, alive in history if told[2] != there and alive]

    await works(two, eventually)
    # Nobody is left at the old one.
    lonely = f"lonely-{uuid.uuid4().hex[:8]}"
    await one.create(NAMESPACES, manifest("v1", "Namespace", lonely))
    await works(two, eventually)
    with pytest.raises(NotFound):
        await one.get(SERVICE_ACCOUNTS, "default", namespace=lonely)


async def test_keys_that_cannot_be_used_end_no_instance_and_are_told(
    mcm: Any, fleet: Fleet, tenants: Any, state: Any, eventually: Eventually
) -> None:
    tenant = tenants["one"]
    secret, ca = tenant.controllers_secret(), tenant.authorities.serving.certificate
    one, other = (issue_client(tenant.authorities.client, user=CONTROLLERS_USER) for _ in range(2))
    pair = dataclasses.replace(one, key=other.key)
    kubeconfig = render_kubeconfig(server=tenant.server, ca=ca, user=CONTROLLERS_USER, client=pair)
    name = await fleet.register("a", secret, server=tenant.server)
    pid = (await state(name, "Ready"))["pid"]

    def renewals() -> int:
        return mcm.log.read_text().count("is renewed")

    first = renewals()
    for broken, words in (
        ({"sa.key": b"garbage"}, f"cluster {name}: invalid key sa.key"),
        ({"ca.crt": b"garbage"}, f"cluster {name}: invalid key ca.crt"),
        ({"kubeconfig": kubeconfig}, ": the client certificate and key for"),
    ):
        await fleet.put_secret("a", secret | broken)
        await eventually(lambda words=words: words in mcm.log.read_text())
    # All else is followed meanwhile, and what can be used again: by the process that was there all along.
    await eventually(lambda: renewals() == first + 1)
    renewed = issue_client(tenant.authorities.client, user=CONTROLLERS_USER, groups=("system:masters",))
    kubeconfig = render_kubeconfig(server=tenant.server, ca=ca, user=CONTROLLERS_USER, client=renewed)
    await fleet.put_secret("a", secret | {"kubeconfig": kubeconfig})
    await eventually(lambda: renewals() == first + 2)
    after = await state(name, "Ready")
    assert (after["pid"], after["restarts"], after["exits"]) == (pid, 0, {})
