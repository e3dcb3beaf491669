"""What the status of a class counts and tells, and how often it is written."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from api import ControlPlaneClass
from controlplane_operator import fanout
from controlplane_operator.class_use import named, unserved
from controlplane_operator.fanout import Queues, Stores, connect


def control_plane(
    name: str, *, chosen: str | None = "gold", version: int = 1, reason: str | None = None, adopted: bool = False
) -> dict[str, Any]:
    spec: dict[str, Any] = {"classRef": {"name": chosen}} if chosen is not None else {}
    if adopted:
        spec["endpointRef"] = {"name": "theirs"}
    conditions = [{"type": "Ready", "status": "False", "reason": reason}] if reason is not None else []
    return {
        "metadata": {"name": name, "uid": name, "resourceVersion": str(version)},
        "spec": spec,
        "status": {"conditions": conditions},
    }


def gold(**auth: str) -> ControlPlaneClass:
    return ControlPlaneClass.model_validate({"metadata": {"name": "gold"}, "spec": {"auth": auth}})


def test_what_cannot_be_acted_on_is_told_with_the_control_planes_that_it_concerns() -> None:
    users = [
        control_plane("a", adopted=True),
        control_plane("b", reason="RoleNotFound"),
        control_plane("c", reason="Provisioning"),
    ]
    [model, role] = unserved(gold(model="x509", defaultRole="tenant-admin"), users=users)
    assert "auth.model x509" in model
    assert "control plane a" in model
    assert "ClusterRole tenant-admin" in role
    assert "control plane b" in role
    assert unserved(gold(model="token"), users=[users[0], users[2]]) == []


def test_of_many_control_planes_a_few_are_named() -> None:
    assert named([control_plane("a")]) == "control plane a"
    many = named([control_plane(f"t{number}") for number in range(200)])
    assert many == "control planes t0, t1, t2, t3, t4 and 195 more"


@pytest.fixture
def wired(monkeypatch: pytest.MonkeyPatch) -> tuple[Stores, Queues]:
    monkeypatch.setattr(fanout, "_CLASS_SECONDS", 0.1)
    stores, queues = Stores(), Queues()
    connect(stores, queues=queues)
    return stores, queues


async def given(queues: Queues, seconds: float) -> list[str]:
    """Take what the queue of classes gives in that time."""
    taken = []
    try:
        async with asyncio.timeout(seconds):
            while True:
                key = await queues.classes.get()
                taken.append(key[1])
                queues.classes.done(key)
    except TimeoutError:
        return taken


async def test_many_control_planes_at_once_are_one_look_at_their_class(wired: tuple[Stores, Queues]) -> None:
    stores, queues = wired
    for number in range(200):
        stores.control_planes.apply(control_plane(f"t{number}"))
        await asyncio.sleep(0)
    assert await given(queues, 0.5) == ["gold"]
    for number in range(200):
        stores.control_planes.remove(control_plane(f"t{number}", version=2))
    assert await given(queues, 0.5) == ["gold"]


async def test_a_class_is_looked_at_for_what_its_status_tells_and_for_nothing_else(
    wired: tuple[Stores, Queues],
) -> None:
    stores, queues = wired
    stores.control_planes.apply(control_plane("a"))
    assert await given(queues, 0.3) == ["gold"]
    stores.control_planes.apply(control_plane("a", version=2, reason="Provisioning"))
    assert await given(queues, 0.3) == []
    stores.control_planes.apply(control_plane("a", version=3, reason="RoleNotFound"))
    assert await given(queues, 0.3) == ["gold"]
    stores.control_planes.apply(control_plane("a", version=4, chosen="silver"))
    assert sorted(await given(queues, 0.3)) == ["gold", "silver"]


async def test_the_status_of_a_class_wakes_none_of_its_control_planes(wired: tuple[Stores, Queues]) -> None:
    stores, queues = wired
    stores.control_planes.apply(control_plane("a"))
    written = {"metadata": {"name": "gold", "uid": "gold", "resourceVersion": "5"}, "spec": {}}
    stores.classes.apply(written)
    while len(queues.control_planes):
        queues.control_planes.done(await queues.control_planes.get())
    await given(queues, 0.3)
    stores.classes.apply({**written, "metadata": {**written["metadata"], "resourceVersion": "6"}, "status": {"a": 1}})
    assert len(queues.classes) == 0
    assert await given(queues, 0.3) == ["gold"]
    assert len(queues.control_planes) == 0
    spec = {"deletionPolicy": "Destroy"}
    stores.classes.apply({**written, "metadata": {**written["metadata"], "resourceVersion": "7"}, "spec": spec})
    assert len(queues.control_planes) == 1
    assert len(queues.classes) == 1
