"""Storage measurements of tenants: their schedule, and the values that reach status and metrics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kplane.api import ControlPlane, ControlPlaneClass, StorageStatus
from kplane.api.conditions import STORAGE_SUFFICIENT
from kplane.controlplane_operator.errors import KeyspaceError
from kplane.controlplane_operator.shared_etcd import metering
from kplane.controlplane_operator.shared_etcd.metering import StorageMeter
from kplane.controlplane_operator.shared_etcd.quota import recorded, with_storage
from kplane.controlplane_operator.storage_metrics import StorageMetrics
from kplane.data import Usage

MIB = 1 << 20


class Etcd:
    """Fake for the shared etcd: returns sizes of tenants, and records which tenants were measured."""

    def __init__(self, **sizes: int) -> None:
        self.sizes = sizes
        self.size = 100 * MIB
        self.asked: list[str] = []
        self.failing: set[str] = set()
        self.full: set[str] = set()
        self.stored = {f"/clusters/{name}/": f"of {name}" for name in sizes}
        self.identified: dict[str, str | None] = {}

    @property
    def keyspace(self) -> Any:
        return self

    async def size_in_use(self) -> int:
        return self.size

    async def identities(self) -> dict[str, str]:
        return self.stored

    async def usage(self, prefix: str, *, share: float) -> Usage:
        assert share <= 0.1
        name = prefix.split("/")[2]
        self.asked.append(name)
        if name in self.failing:
            raise KeyspaceError("no answer")
        return Usage(self.sizes[name] // 1000, self.sizes[name])

    def taken(self) -> list[str]:
        names, self.asked = self.asked, []
        return names


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    fake = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(metering, "time", SimpleNamespace(monotonic=lambda: fake.now))
    return fake


def meter_of(etcd: Any, told: list[str] | None = None) -> StorageMeter:
    def tenants() -> dict[str, str]:
        return {name: f"/clusters/{name}/" for name in etcd.sizes}

    told = told if told is not None else []
    return StorageMeter(
        etcd,
        tenants=tenants,
        is_full=etcd.full.__contains__,
        measured=told.append,
        identified=etcd.identified.__setitem__,
    )


async def test_tenant_at_its_quota_is_measured_at_each_pass(clock: Any) -> None:
    etcd = Etcd(acme=MIB, globex=2 * MIB)
    meter = meter_of(etcd)
    await meter.look()
    etcd.taken()
    etcd.full.add("globex")
    for _ in range(2):
        clock.now += 30
        await meter.look()
        assert etcd.taken() == ["globex"]


async def test_meter_reports_the_identity_of_each_tenant_at_each_look(clock: Any) -> None:
    etcd = Etcd(acme=MIB, globex=2 * MIB)
    meter = meter_of(etcd)
    await meter.look()
    assert etcd.identified == {"acme": "of acme", "globex": "of globex"}
    etcd.taken()
    del etcd.stored["/clusters/acme/"]
    clock.now += 30
    await meter.look()
    assert etcd.identified == {"acme": None, "globex": "of globex"}
    assert etcd.taken() == []


async def test_usage_of_a_copy_needs_no_measurement(clock: Any) -> None:
    etcd, notifications = Etcd(acme=MIB), list[str]()
    meter = meter_of(etcd, notifications)
    meter.know("acme", Usage(180, MIB))
    await meter.look()
    assert (etcd.taken(), notifications, meter.usage("acme")) == ([], [], Usage(180, MIB))
    clock.now += 601
    await meter.look()
    assert (etcd.taken(), notifications) == (["acme"], ["acme"])


async def test_tenants_are_measured_every_ten_minutes_new_ones_at_once(clock: Any) -> None:
    etcd, notifications = Etcd(acme=MIB, globex=2 * MIB), list[str]()
    meter = meter_of(etcd, notifications)
    assert meter.usage("acme") is None
    await meter.look()
    assert etcd.taken() == notifications == ["acme", "globex"]
    assert meter.usage("acme") == Usage(MIB // 1000, MIB)
    clock.now += 30
    etcd.sizes["initech"] = 3 * MIB
    await meter.look()
    assert etcd.taken() == ["initech"]
    clock.now += 580
    await meter.look()
    assert etcd.taken() == ["acme", "globex"]


async def test_usage_of_removed_tenant_is_dropped() -> None:
    etcd = Etcd(acme=MIB)
    meter = meter_of(etcd)
    await meter.look()
    del etcd.sizes["acme"]
    await meter.look()
    assert meter.usage("acme") is None


async def test_large_tenant_is_measured_last(clock: Any) -> None:
    etcd = Etcd(huge=900 * MIB, acme=MIB, globex=2 * MIB)
    meter = meter_of(etcd)
    await meter.look()
    etcd.taken()
    clock.now += 600
    await meter.look()
    assert etcd.taken() == ["acme", "globex", "huge"]


async def test_all_tenants_are_measured_after_much_database_growth() -> None:
    etcd = Etcd(acme=MIB)
    meter = meter_of(etcd)
    for size, measured in (
        (100, True),
        (163, False),
        (164, True),
        (220, False),
        (110, False),
        (173, False),
        (174, True),
    ):
        etcd.size = size * MIB
        await meter.look()
        assert bool(etcd.taken()) is measured, size


async def test_failed_measurement_keeps_last_usage_and_delays_no_other(
    clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    etcd = Etcd(acme=MIB, globex=2 * MIB)
    meter = meter_of(etcd)
    await meter.look()
    etcd.failing = {"acme"}
    clock.now += 600
    etcd.taken()
    await meter.look()
    assert etcd.taken() == ["acme", "globex"]
    assert meter.usage("acme") == Usage(MIB // 1000, MIB)
    assert [record.getMessage() for record in caplog.records] == [
        "failed to measure a tenant in the shared etcd: no answer"
    ]


async def test_pass_ends_after_three_failed_measurements() -> None:
    etcd = Etcd(**{f"t{number}": MIB for number in range(10)})
    etcd.failing = set(etcd.sizes)
    await meter_of(etcd).look()
    assert len(etcd.taken()) == 3


def storage(size: int, *, keys: int = 200, quota: int | None = 100 * MIB) -> StorageStatus:
    return StorageStatus(keys=keys, bytes=size, quota_bytes=quota)


@pytest.mark.parametrize(
    ("known", "found", "written"),
    [
        (None, Usage(200, MIB), True),
        (storage(MIB), Usage(200, MIB), False),
        (storage(MIB), Usage(260, MIB + MIB // 2), False),
        (storage(MIB), Usage(200, 2 * MIB), True),
        (storage(MIB), Usage(300, MIB), True),
        (storage(50 * MIB), Usage(200, 54 * MIB), False),
        (storage(50 * MIB), Usage(200, 55 * MIB), True),
        (storage(50 * MIB), Usage(200, 45 * MIB), True),
        (storage(79 * MIB), Usage(200, 80 * MIB), True),
        (storage(80 * MIB), Usage(200, 79 * MIB), True),
        (storage(99 * MIB), Usage(200, 100 * MIB), True),
        (storage(100 * MIB), Usage(200, 99 * MIB), True),
        (storage(100 * MIB), Usage(200, 101 * MIB), False),
    ],
)
def test_only_significant_changes_are_recorded(known: StorageStatus | None, found: Usage, *, written: bool) -> None:
    after = recorded(known, usage=found, quota_bytes=100 * MIB)
    assert after == (storage(found.bytes, keys=found.keys) if written else known)


def test_changed_quota_applies_before_next_measurement() -> None:
    assert recorded(storage(MIB), usage=None, quota_bytes=2 * MIB) == storage(MIB, quota=2 * MIB)
    assert recorded(storage(MIB), usage=None, quota_bytes=None) == storage(MIB, quota=None)
    assert recorded(None, usage=None, quota_bytes=MIB) is None


@pytest.mark.parametrize(
    ("size", "quota", "reason"),
    [
        (79 * MIB, 100 * MIB, None),
        (80 * MIB, 100 * MIB, "NearStorageQuota"),
        (100 * MIB, 100 * MIB, "StorageQuotaReached"),
        (900 * MIB, 100 * MIB, "StorageQuotaReached"),
        (900 * MIB, None, None),
    ],
)
def test_storage_condition_warns_from_80_percent_of_quota(size: int, quota: int | None, reason: str | None) -> None:
    control_plane = ControlPlane.model_validate({"metadata": {"name": "acme"}, "spec": {"classRef": {"name": "small"}}})
    conditions = with_storage([], of=control_plane, storage=storage(size, quota=quota))
    assert [(condition.type, condition.status, condition.reason) for condition in conditions] == (
        [(STORAGE_SUFFICIENT, "False", reason)] if reason is not None else []
    )
    for condition in conditions:
        assert "raise spec.virtual.storage.quota of class small" in condition.message
    assert with_storage(conditions, of=control_plane, storage=storage(MIB)) == []


@pytest.mark.parametrize(
    ("quota", "expected"), [("256Mi", 256 * MIB), ("1k", 1000), ("0.5", 1), ("99999999T", 2**63 - 1), (None, None)]
)
def test_quota_is_parsed_as_a_quantity(quota: str | None, expected: int | None) -> None:
    spec = {"virtual": {"storage": {"quota": quota} if quota is not None else {}}}
    control_plane_class = ControlPlaneClass.model_validate({"metadata": {"name": "small"}, "spec": spec})
    assert control_plane_class.spec.storage_quota_bytes == expected


def test_storage_metrics_cover_each_measured_control_plane() -> None:
    def stored(name: str, **known: int) -> dict[str, Any]:
        return {"metadata": {"name": name, "uid": name}, "status": {"storage": known} if known else {}}

    stores: Any = SimpleNamespace(
        control_planes=[
            stored("acme", keys=1, bytes=10, quotaBytes=100),
            stored("globex", keys=2, bytes=20),
            stored("initech"),
        ]
    )
    measured = {"acme": Usage(3, 30)}
    families = StorageMetrics(stores, usage=measured.get).collect()
    assert {
        family.name: {sample.labels["control_plane"]: sample.value for sample in family.samples} for family in families
    } == {
        "kplane_control_plane_storage_keys": {"acme": 3, "globex": 2},
        "kplane_control_plane_storage_bytes": {"acme": 30, "globex": 20},
        "kplane_control_plane_storage_quota_bytes": {"acme": 100},
    }
