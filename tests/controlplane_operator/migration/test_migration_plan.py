"""Plans of migrations: estimates, and blockers with their remedies."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kplane.api import ControlPlane, ControlPlaneClass, ControlPlaneMode, EndpointType, Home, MigrationPlan, Volume
from kplane.api.reasons import Reason
from kplane.controlplane_operator.controlplanes.migration import plan
from kplane.controlplane_operator.controlplanes.migration.plan import Planner
from kplane.controlplane_operator.gateway import Gateway
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.data.revision import MOST_RAISED
from kplane.data.room import Room
from kplane.data.usage import Usage

GATEWAY = Gateway(url="https://api.example.org", ca=b"", namespace="kplane-gateway")
BEHIND = f"{GATEWAY.url}/clusters/acme/control-plane"
VIRTUAL, DEDICATED = Home(mode=ControlPlaneMode.VIRTUAL), Home(mode=ControlPlaneMode.DEDICATED, slot=1)

DEDICATED_SMALL = Home(mode=ControlPlaneMode.DEDICATED, slot=1, volume=Volume(size="5Mi"))


_ROOM = Room(used=10 << 20, quota=100 << 20)


_REQUEST_BYTES = 1_572_864
"""Default limit of etcd for a request."""


class Homes:
    """Connects to the etcd of each mode, which has a fixed revision."""

    def __init__(self, revisions: dict[ControlPlaneMode, int], *, room: Room) -> None:
        self._revisions = revisions
        self._room = room

    def __call__(self, control_plane: ControlPlane) -> Any:
        return SimpleNamespace(connect=self._connect)

    @contextlib.asynccontextmanager
    async def _connect(self, control_plane: ControlPlane) -> AsyncIterator[Any]:
        mode = control_plane.home.mode
        if mode not in self._revisions:
            raise ConditionError(Reason.MIGRATING, "it does not answer")

        async def revision() -> int:
            return self._revisions[mode]

        async def accepts(key: bytes, *, size: int) -> bool:
            assert key.startswith(b"/registry/")
            return size <= _REQUEST_BYTES

        client = SimpleNamespace(revision=revision, room=self._room, accepts=accepts)
        yield SimpleNamespace(client=client, prefix="/registry/")


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    async def estimate(*_: Any, **__: Any) -> Usage:
        return Usage(5000, 3 << 20)

    monkeypatch.setattr(plan, "estimate", estimate)

    async def room(client: Any) -> Room:
        return client.room  # type: ignore[no-any-return]

    monkeypatch.setattr(plan, "room_in", room)


async def planned(
    target: Home,
    *,
    gateway: Gateway | None = GATEWAY,
    address: str = BEHIND,
    annotations: dict[str, str] | None = None,
    conditions: tuple[dict[str, Any], ...] = (),
    chosen: dict[str, Any] | None = None,
    revisions: dict[ControlPlaneMode, int] | None = None,
    taken: bool = False,
    room: Room = _ROOM,
    returns: bool = False,
    quota: int = 8 << 30,
) -> MigrationPlan:
    home = VIRTUAL if target.mode is ControlPlaneMode.DEDICATED else DEDICATED
    target_body, home_body = target.model_dump(by_alias=True), home.model_dump(by_alias=True)
    control_plane = ControlPlane.model_validate(
        {
            "metadata": {"name": "acme", "uid": "uid", "annotations": annotations or {}},
            "spec": {"mode": target.mode},
            "status": {
                "home": home_body,
                "endpoint": BEHIND,
                "clusterPath": "acme",
                "endpoints": [{"type": kind, "url": address} for kind in (EndpointType.EXTERNAL, EndpointType.JOIN)],
                "conditions": conditions,
                "migration": {"from": target_body, "to": home_body, "step": "Retaining"} if returns else None,
            },
        }
    )

    def check_target(_: ControlPlane) -> None:
        if taken:
            raise ConditionError(Reason.CLUSTER_PATH_IN_USE, "path acme is that of another control plane")

    known_revisions = (
        revisions if revisions is not None else {ControlPlaneMode.VIRTUAL: 9000, ControlPlaneMode.DEDICATED: 9000}
    )
    context, homes = cast("Any", SimpleNamespace(gateway=gateway)), Homes(known_revisions, room=room)
    planner = Planner(context, homes=homes, check_target=check_target, quota_bytes=quota)
    control_plane_class = (
        ControlPlaneClass.model_validate({"metadata": {"name": "small"}, "spec": chosen}) if chosen else None
    )
    return await planner.plan(control_plane, target=target, chosen=control_plane_class)


@pytest.mark.parametrize("target", [VIRTUAL, DEDICATED], ids=["to Virtual", "to Dedicated"])
async def test_plan_without_blockers_has_size_duration_and_hold_time(target: Home) -> None:
    migration_plan = await planned(target)
    assert migration_plan.blockers == []
    assert (migration_plan.keys, migration_plan.bytes) == (5000, 3 << 20)
    assert migration_plan.seconds > 0
    assert migration_plan.hold_milliseconds == 720


async def test_plan_of_return_checks_quota_of_shared_etcd_only() -> None:
    """The shared etcd keeps the former revisions of the same keys until it compacts them."""
    nearly_full = Room(used=89 << 20, quota=100 << 20)
    migration_plan = await planned(VIRTUAL, room=nearly_full, returns=True)
    assert [blocker.reason for blocker in migration_plan.blockers] == ["EtcdQuota"]
    assert (await planned(DEDICATED, quota=4 << 20, returns=True)).blockers == []


@pytest.mark.parametrize(("largest", "blocked"), [(1 << 20, False), (_REQUEST_BYTES, True), (1_500_000, False)])
async def test_plan_has_blocker_for_object_beyond_request_limit_of_shared_etcd(
    monkeypatch: pytest.MonkeyPatch, *, largest: int, blocked: bool
) -> None:
    async def estimate(*_: Any, **__: Any) -> Usage:
        return Usage(5000, 3 << 20, largest)

    monkeypatch.setattr(plan, "estimate", estimate)
    blockers = (await planned(VIRTUAL)).blockers
    assert [blocker.reason for blocker in blockers] == ["RequestTooLarge"] * blocked
    assert all("--max-request-bytes" in blocker.message for blocker in blockers)
    # An etcd of mode Dedicated is kplane's own, and accepts every object.
    assert (await planned(DEDICATED)).blockers == []


async def test_plan_counts_bytes_of_raised_revisions() -> None:
    room = Room(used=80 << 20, quota=100 << 20)
    assert (await planned(VIRTUAL, room=room)).blockers == []
    revisions = {ControlPlaneMode.VIRTUAL: 9000, ControlPlaneMode.DEDICATED: 209_000}
    (blocker,) = (await planned(VIRTUAL, room=room, revisions=revisions)).blockers
    assert blocker.reason == "EtcdQuota"
    assert "it has 3145728 bytes, a higher revision takes 12300060" in blocker.message


async def test_plan_prefers_quota_of_volume_to_usual_quota() -> None:
    large = Home(mode=ControlPlaneMode.DEDICATED, slot=1, volume=Volume(size="10Gi"))
    assert (await planned(large, quota=4 << 20)).blockers == []


@pytest.mark.parametrize(
    ("target", "given", "reason", "told"),
    [
        (DEDICATED, {"gateway": None}, "ClientsOnOwnAddress", "install the gateway, or move by hand"),
        (DEDICATED, {"address": "https://10.0.0.9:6443"}, "ClientsOnOwnAddress", "Set spec.endpointPolicy to Gateway"),
        (
            DEDICATED,
            {"annotations": {"controlplane.kplane.dev/rotate": "2026"}},
            "RotationUnderWay",
            "wait until that is done",
        ),
        (
            DEDICATED,
            {
                "conditions": (
                    {
                        "type": "UpToDate",
                        "status": "False",
                        "reason": "Behind",
                        "message": "1.35.1 runs",
                        "lastTransitionTime": "2026-11-25T00:00:00Z",
                    },
                )
            },
            "VersionDiffers",
            "1.35.1 runs",
        ),
        (DEDICATED, {"chosen": {"modesAllowed": ["Virtual"]}}, "ModeNotAllowed", "name one that allows Dedicated"),
        (DEDICATED, {"quota": 4 << 20}, "EtcdQuota", "the etcd of its own has a quota of 4194304"),
        (DEDICATED_SMALL, {}, "EtcdQuota", "set a larger spec.dedicated.volume.size"),
        (VIRTUAL, {"taken": True}, "ClusterPathInUse", "path acme is that of another control plane"),
        (
            VIRTUAL,
            {"chosen": {"virtual": {"storage": {"quota": "1Mi"}}}},
            "StorageQuota",
            "raise spec.virtual.storage.quota of the class",
        ),
        (
            VIRTUAL,
            {"room": Room(used=89 << 20, quota=100 << 20)},
            "EtcdQuota",
            "uses 93323264 of its quota of 104857600",
        ),
        (VIRTUAL, {"revisions": {ControlPlaneMode.DEDICATED: 9000}}, "NoSharedEtcd", "it does not answer"),
        (
            VIRTUAL,
            {"revisions": {ControlPlaneMode.VIRTUAL: 1, ControlPlaneMode.DEDICATED: MOST_RAISED + 9000}},
            "RevisionTooFar",
            "the shared etcd is at revision 1, and has to be above",
        ),
    ],
)
async def test_plan_reports_blocker_with_reason_and_message(
    target: Home, given: dict[str, Any], reason: str, told: str
) -> None:
    (blocker,) = (await planned(target, **given)).blockers
    assert blocker.reason == reason
    assert told in blocker.message
