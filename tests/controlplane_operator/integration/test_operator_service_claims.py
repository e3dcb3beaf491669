"""Several registrations of a control plane: each service has a single holder, and moves once it has stopped."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from kplane.api.names import ALLOW_REGISTRATION_LABEL
from kplane.controlplane_operator.kinds import CONTROL_PLANE_REGISTRATIONS, CONTROL_PLANES
from kplane.provider import Event, Informer
from kplane.provider.client.resources import SECRETS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

Adopt = Callable[..., Awaitable[dict[str, Any]]]
REGISTRATION = "ControlPlaneRegistration"


async def register(field: Any, *names: str, control_plane: str, **spec: Any) -> list[str]:
    """Create registrations at once, and return their names by age."""
    request = {"services": ["Controllers"], "controlPlaneRef": {"name": control_plane}, **spec}
    registrations = await asyncio.gather(*(field.create(REGISTRATION, name, **request) for name in names))
    ages = {registration["metadata"]["name"]: _age(registration) for registration in registrations}
    return sorted(names, key=lambda name: ages[name])


def _age(found: dict[str, Any]) -> tuple[str, str]:
    return found["metadata"]["creationTimestamp"], found["metadata"]["uid"]


async def register_later(field: Any, name: str, *, than: str, control_plane: str) -> None:
    """Create a registration that is younger than `than`. Creation times have a resolution of a second."""
    elder = (await field.get(REGISTRATION, than))["metadata"]["creationTimestamp"]
    await register(field, name, control_plane=control_plane)
    while (await field.get(REGISTRATION, name))["metadata"]["creationTimestamp"] == elder:
        await field.client.delete(CONTROL_PLANE_REGISTRATIONS, name)
        await field.gone(CONTROL_PLANE_REGISTRATIONS, name)
        await register(field, name, control_plane=control_plane)


async def created(field: Any, name: str) -> str:
    """Return the creation time of a registration, in whole seconds."""
    return str((await field.get(REGISTRATION, name))["metadata"]["creationTimestamp"])


async def oldest_served(field: Any, names: list[str]) -> str:
    """Wait until a single registration is ready, created in the oldest second, and return its name."""

    async def served() -> list[str]:
        stored = [await field.get(REGISTRATION, name) for name in names]
        oldest = min(registration["metadata"]["creationTimestamp"] for registration in stored)
        ready = [registration for registration in stored if (registration.get("status") or {}).get("ready")]
        return [
            registration["metadata"]["name"]
            for registration in ready
            if len(ready) == 1 and registration["metadata"]["creationTimestamp"] == oldest
        ]

    return str((await field.eventually(served, lambda found: len(found) == 1))[0])


async def message(field: Any, name: str) -> str:
    conditions = (await field.get(REGISTRATION, name))["status"]["conditions"]
    return next(str(condition["message"]) for condition in conditions if condition["type"] == "Ready")


async def say(field: Any, name: str, **status: Any) -> None:
    """Apply status fields of a registration as mcm does."""
    body = {"metadata": {"name": name}, "status": status}
    await field.client.apply(CONTROL_PLANE_REGISTRATIONS, body, subresource="status", field_manager="mcm", force=True)


async def announce(field: Any, name: str) -> None:
    uid = (await field.get(REGISTRATION, name))["status"]["controlPlaneUID"]
    await say(field, name, instance={"controlPlaneUID": uid, "services": ["Controllers"]})


@contextlib.asynccontextmanager
async def ready_at_once(field: Any, names: list[str]) -> AsyncIterator[list[set[str]]]:
    """Record the set of ready registrations after each change of a registration."""
    history: list[set[str]] = [set()]

    def note(event: Event) -> None:
        if event.name not in names:
            return
        ready = event.kind != "DELETED" and (event.object.get("status") or {}).get("ready") is True
        history.append(history[-1] | {event.name} if ready else history[-1] - {event.name})

    mirror = Informer(field.client, CONTROL_PLANE_REGISTRATIONS)
    task = asyncio.create_task(mirror.run(note))
    try:
        await mirror.synced.wait()
        yield history
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_service_goes_to_oldest_registration_and_then_to_the_next(field: Any, adopt: Adopt) -> None:
    await adopt("claimed")
    names = [f"claimed-{letter}" for letter in "abcd"]
    async with ready_at_once(field, names) as history:
        # The operator may reconcile the registrations in any order.
        by_age = await register(field, *names, control_plane="claimed")
        while by_age:
            holder = await oldest_served(field, by_age)
            waiting = [name for name in by_age if name != holder]
            await announce(field, holder)
            for name in waiting:
                await field.becomes(REGISTRATION, name, "ServiceTaken")
                text = await message(field, name)
                same_second = await created(field, name) == await created(field, holder)
                reason = "was created in the same second and has it already" if same_second else "is older"
                assert f"registration {holder}, which {reason}, has Controllers" in text
            await field.client.delete(CONTROL_PLANE_REGISTRATIONS, holder)
            if waiting:
                # The deletion waits until mcm confirms the end of the instance, and no other instance starts before.
                phrase = f"registration {holder} runs Controllers for control plane claimed still"
                await field.eventually(lambda name=waiting[0]: message(field, name), lambda told, it=phrase: it in told)
            assert (await field.get(REGISTRATION, holder))["metadata"]["deletionTimestamp"]
            await say(field, holder)
            await field.gone(CONTROL_PLANE_REGISTRATIONS, holder)
            by_age = waiting
    assert max(map(len, history)) == 1


@pytest.mark.parametrize(
    "change", [{"services": []}, {"controlPlaneRef": {"name": "elsewhere"}}], ids=["asks for nothing", "moves"]
)
async def test_released_service_is_handed_over_after_instance_ends(
    field: Any, adopt: Adopt, change: dict[str, Any]
) -> None:
    await adopt("left")
    elder, younger = "left-a", "left-b"
    await register(field, elder, control_plane="left")
    await field.becomes(REGISTRATION, elder, "Resolved")
    await register_later(field, younger, than=elder, control_plane="left")
    await announce(field, elder)
    await field.becomes(REGISTRATION, younger, "ServiceTaken")
    await field.client.patch(CONTROL_PLANE_REGISTRATIONS, elder, {"spec": change})
    await field.eventually(lambda: message(field, younger), lambda told: "still; wait until that has ended" in told)
    assert (await field.get(REGISTRATION, younger))["status"]["ready"] is False
    await say(field, elder)
    await field.becomes(REGISTRATION, younger, "Resolved")
    # The elder registration requests the service again.
    await announce(field, younger)
    spec = {"services": ["Controllers"], "controlPlaneRef": {"name": "left"}}
    await field.client.patch(CONTROL_PLANE_REGISTRATIONS, elder, {"spec": spec})
    await field.becomes(REGISTRATION, younger, "ServiceTaken")
    await field.becomes(REGISTRATION, elder, "ServiceTaken")
    await say(field, younger)
    await field.becomes(REGISTRATION, elder, "Resolved")
    for name in (elder, younger):
        await field.client.delete(CONTROL_PLANE_REGISTRATIONS, name)


async def test_registration_without_secret_access_does_not_hold_service(field: Any, adopt: Adopt) -> None:
    """Otherwise users with write access to registrations only could deprive a tenant of its controllers."""
    await field.client.apply(
        SECRETS,
        {"metadata": {"name": "theirs", "namespace": "default", "labels": {}}, "data": {"kubeconfig": "e30="}},
        force=True,
    )
    secret = {"name": "theirs", "namespace": "default"}
    await register(field, "theirs", control_plane="targeted", kubeconfigSecretRef=secret)
    await register_later(field, "owners", than="theirs", control_plane="targeted")
    await adopt("targeted")
    await field.becomes(REGISTRATION, "theirs", "SecretNotAllowed")
    await field.becomes(REGISTRATION, "owners", "Resolved")

    # With the label of the Secret's owner, the registration counts like others.
    allowed = {"metadata": {"labels": {ALLOW_REGISTRATION_LABEL: "true"}}}
    await field.client.patch(SECRETS, "theirs", allowed, namespace="default")
    await field.becomes(REGISTRATION, "owners", "ServiceTaken")
    await field.becomes(REGISTRATION, "theirs", "Resolved")
    await field.client.delete(SECRETS, "theirs", namespace="default")
    await field.becomes(REGISTRATION, "theirs", "SecretNotFound")
    await field.becomes(REGISTRATION, "owners", "Resolved")
    for name in ("theirs", "owners"):
        await field.client.delete(CONTROL_PLANE_REGISTRATIONS, name)


async def test_class_registers_only_unregistered_control_planes(field: Any, adopt: Adopt) -> None:
    async def registered() -> set[str]:
        items = (await field.client.list(CONTROL_PLANE_REGISTRATIONS)).items
        return {item["metadata"]["name"] for item in items if item["spec"]["controlPlaneRef"]["name"] == "served"}

    await field.create("ControlPlaneClass", "serving", defaultServices=["Controllers"])
    await register(field, "by-hand", control_plane="served")
    await adopt("served", classRef={"name": "serving"})
    await field.becomes(REGISTRATION, "by-hand", "Resolved")
    await field.becomes("ControlPlane", "served", "Reconciled")
    assert await registered() == {"by-hand"}
    # The registration no longer references the control plane.
    await field.client.patch(CONTROL_PLANE_REGISTRATIONS, "by-hand", {"spec": {"controlPlaneRef": {"name": "none"}}})
    await field.becomes(REGISTRATION, "served", "Resolved")
    await register_later(field, "by-hand-again", than="served", control_plane="served")
    await field.becomes(REGISTRATION, "by-hand-again", "ServiceTaken")
    assert "registration served, which is older" in await message(field, "by-hand-again")
    # The class does not recreate the default registration, because a user's registration remains.
    await field.client.delete(CONTROL_PLANE_REGISTRATIONS, "served")
    await field.becomes(REGISTRATION, "by-hand-again", "Resolved")
    await field.client.patch(CONTROL_PLANES, "served", {"metadata": {"labels": {"looked": "again"}}})
    await field.becomes("ControlPlane", "served", "Reconciled")
    assert await registered() == {"by-hand-again"}
    # The deletion does not wait for a default registration that does not exist.
    await field.client.delete(CONTROL_PLANES, "served")
    await field.gone(CONTROL_PLANES, "served", timeout=25.0)
    for name in ("by-hand", "by-hand-again"):
        await field.client.delete(CONTROL_PLANE_REGISTRATIONS, name)
