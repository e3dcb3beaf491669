"""Schedule of snapshots: times of creation and deletion, by a clock that the test sets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import Mock

import pytest

from kplane.api.names import SCHEDULED_AT_ANNOTATION, SCHEDULED_FOR_ANNOTATION
from kplane.controlplane_operator.kinds import CONTROL_PLANE_SNAPSHOTS
from kplane.controlplane_operator.schedule import Schedule
from kplane.controlplane_operator.snapshots.metrics import SnapshotMetrics
from kplane.controlplane_operator.snapshots.scheduler import SnapshotScheduler
from kplane.controlplane_operator.watch.stores import Stores
from kplane.provider import AlreadyExists, Client, Resource

NOON = datetime(2026, 5, 5, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
KEY = ("", "acme")


class Cluster(Client):
    """Keeps snapshots, as an API server does."""

    def __init__(self, stores: Stores) -> None:
        self.stores = stores
        self.version = 100

    async def create(self, resource: Resource, manifest: Any, **_: Any) -> dict[str, Any]:
        assert resource is CONTROL_PLANE_SNAPSHOTS
        if self.stores.snapshots.get(("", manifest["metadata"]["name"])) is not None:
            raise AlreadyExists(409, "AlreadyExists", "it exists")
        self.version += 1
        metadata = {**manifest["metadata"], "uid": manifest["metadata"]["name"], "resourceVersion": str(self.version)}
        created = {**manifest, "metadata": metadata}
        self.stores.snapshots.apply(created)
        return created

    async def delete(self, resource: Resource, name: str, **_: Any) -> None:
        obj = self.stores.snapshots.get(("", name))
        assert obj is not None
        self.stores.snapshots.remove(obj)


class World:
    def __init__(self, **settings: Any) -> None:
        self.now = NOON
        self.stores = Stores()
        self.client = Cluster(self.stores)
        context = Mock(client=self.client, stores=self.stores)
        self.scheduler = SnapshotScheduler(context, now=lambda: self.now)
        self.settings(**settings)
        self.control_plane()

    def settings(self, **settings: Any) -> None:
        self.client.version += 1
        self.stores.classes.apply(
            {
                "metadata": {"name": "hourly", "uid": "c", "resourceVersion": str(self.client.version)},
                "spec": {"snapshots": {"schedule": "0 * * * *", "retain": 2, **settings}},
            }
        )

    def control_plane(self, **metadata: Any) -> None:
        self.client.version += 1
        created = (NOON - 10 * HOUR).isoformat()
        fields = {"name": "acme", "uid": "u", "creationTimestamp": created, **metadata}
        self.stores.control_planes.apply(
            {
                "metadata": {**fields, "resourceVersion": str(self.client.version)},
                "spec": {"classRef": {"name": "hourly"}},
                "status": {"endpoint": "https://acme"},
            }
        )

    def names(self) -> list[str]:
        return sorted(snapshot["metadata"]["name"] for snapshot in self.stores.snapshots)

    def becomes(self, name: str, phase: str) -> None:
        obj = self.stores.snapshots.get(("", name))
        assert obj is not None
        self.client.version += 1
        metadata = {**obj["metadata"], "resourceVersion": str(self.client.version)}
        status = {"phase": phase, **({"completionTime": self.now.isoformat()} if phase == "Completed" else {})}
        self.stores.snapshots.apply({**obj, "metadata": metadata, "status": status})

    async def look(self) -> float | None:
        result = await self.scheduler.reconcile(KEY)
        return result.requeue_after_seconds if result is not None else None

    async def take(self) -> str:
        before = set(self.names())
        await self.look()
        (name,) = set(self.names()) - before
        self.becomes(name, "Completed")
        return name


async def test_scheduler_makes_one_snapshot_for_all_missed_times() -> None:
    world = World()
    world.now = NOON + 20 * timedelta(minutes=1)
    await world.look()
    assert world.names() == ["acme-202605051200"]
    await world.look()
    assert world.names() == ["acme-202605051200"]
    annotations = next(iter(world.stores.snapshots))["metadata"]["annotations"]
    assert annotations == {SCHEDULED_FOR_ANNOTATION: "u", SCHEDULED_AT_ANNOTATION: NOON.isoformat()}


async def test_scheduler_uses_another_name_if_an_import_has_the_name() -> None:
    world = World()
    world.stores.snapshots.apply(
        {
            "metadata": {"name": "acme-202605051200", "uid": "imported", "resourceVersion": "1"},
            "spec": {"controlPlaneRef": {"name": "acme"}},
        }
    )
    world.now = NOON + timedelta(minutes=20)
    await world.look()
    await world.look()
    assert world.names() == ["acme-202605051200", "acme-202605051200-u"]


async def test_new_control_plane_gets_no_snapshot_before_next_time() -> None:
    world = World()
    world.control_plane(creationTimestamp=(NOON + timedelta(minutes=1)).isoformat())
    world.now = NOON + 30 * timedelta(minutes=1)
    delay = await world.look()
    assert world.names() == []
    assert delay is not None
    assert timedelta(minutes=30) <= timedelta(seconds=delay) <= timedelta(minutes=36)


async def test_control_plane_from_the_future_gets_its_due_snapshot() -> None:
    """Its creation time stays after a clock that was two days ahead is corrected."""
    world = World()
    world.control_plane(creationTimestamp=(NOON + timedelta(days=2)).isoformat())
    world.now = NOON + 20 * timedelta(minutes=1)
    await world.look()
    assert world.names() == ["acme-202605051200"]


async def test_next_snapshot_is_made_after_delay_of_control_plane() -> None:
    world = World()
    world.now = NOON + timedelta(minutes=20)
    await world.take()
    delay = Schedule("0 * * * *").delay("u", at=NOON + HOUR)
    assert timedelta(0) < delay < timedelta(minutes=6)
    world.now = NOON + HOUR + delay - timedelta(seconds=2)
    remaining_delay = await world.look()
    assert remaining_delay == pytest.approx(2, abs=0.1)
    assert len(world.names()) == 1
    world.now = NOON + HOUR + delay
    await world.take()
    assert world.names() == ["acme-202605051200", "acme-202605051300"]


async def test_retention_keeps_good_snapshots_while_newest_fails() -> None:
    world = World()
    snapshots = []
    for hour in range(3):
        world.now = NOON + hour * HOUR + timedelta(minutes=10)
        snapshots.append(await world.take())
    world.now = NOON + 3 * HOUR + timedelta(minutes=10)
    await world.look()
    newest = "acme-202605051500"
    assert world.names() == [*snapshots[1:], newest]
    world.becomes(newest, "Failed")
    # While a snapshot fails, no further snapshot is made, and no good snapshot is deleted.
    world.now = NOON + 5 * HOUR + timedelta(minutes=10)
    await world.look()
    assert world.names() == [*snapshots[1:], newest]
    world.becomes(newest, "Completed")
    await world.look()
    assert world.names() == [snapshots[2], newest, "acme-202605051700"]


async def test_retention_keeps_snapshots_of_users_and_of_other_uids() -> None:
    world = World(retain=1)
    for name, uid in (("by-hand", None), ("former", "before")):
        annotations = {SCHEDULED_FOR_ANNOTATION: uid, SCHEDULED_AT_ANNOTATION: NOON.isoformat()} if uid else {}
        body = {"metadata": {"name": name, "annotations": annotations}, "spec": {"controlPlaneRef": {"name": "acme"}}}
        await world.client.create(CONTROL_PLANE_SNAPSHOTS, body)
        world.becomes(name, "Completed")
    for hour in range(3):
        world.now = NOON + hour * HOUR + timedelta(minutes=10)
        await world.take()
    await world.look()
    assert world.names() == ["acme-202605051400", "by-hand", "former"]


async def test_no_snapshot_if_paused_or_schedule_is_invalid() -> None:
    world = World(schedule="0 25 * * *")
    assert await world.look() is None
    world.settings()
    world.control_plane(annotations={"controlplane.kplane.dev/paused": "true"})
    assert await world.look() is None
    assert world.names() == []


async def test_metrics_report_newest_snapshot_and_due_time() -> None:
    world = World()
    metrics = SnapshotMetrics(world.stores, now=lambda: world.now)

    def told() -> list[float]:
        return [sample.value for family in metrics.collect() for sample in family.samples]

    assert told() == [(NOON - 10 * HOUR).timestamp(), NOON.timestamp()]
    world.now = NOON + timedelta(minutes=20)
    await world.take()
    assert told() == [world.now.timestamp(), NOON.timestamp()]


@pytest.mark.parametrize("text", ["", "0 * * *", "61 * * * *", "0 0 30 2 *", "@daily"])
def test_schedule_raises_value_error_for_invalid_text(text: str) -> None:
    with pytest.raises(ValueError, match="is no schedule"):
        Schedule(text)


async def test_retention_ignores_snapshots_with_times_in_the_future() -> None:
    world = World(retain=2)
    for day in (2, 3):
        time = (NOON + timedelta(days=day)).isoformat()
        annotations = {SCHEDULED_FOR_ANNOTATION: "u", SCHEDULED_AT_ANNOTATION: time}
        body = {
            "metadata": {"name": f"ahead-{day}", "annotations": annotations},
            "spec": {"controlPlaneRef": {"name": "acme"}},
        }
        await world.client.create(CONTROL_PLANE_SNAPSHOTS, body)
        world.becomes(f"ahead-{day}", "Completed")
    world.now = NOON + timedelta(minutes=10)
    snapshot = await world.take()
    await world.look()
    assert world.names() == [snapshot, "ahead-2", "ahead-3"]
    # The clock was behind. Snapshots count as soon as their time has come.
    world.now = NOON + timedelta(days=3, hours=1)
    await world.look()
    assert snapshot not in world.names()
