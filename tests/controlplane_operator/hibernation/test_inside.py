"""What inside a control plane keeps it awake, and when it wakes for what is due."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from kplane.controlplane_operator.hibernation.cron import next_time
from kplane.controlplane_operator.hibernation.inside import Inside, look_inside
from kplane.provider import Client, NotFound
from kplane.provider.client.listing import ObjectList

NOW = datetime(2026, 11, 23, 12, 0, 30, tzinfo=UTC)
NOON = {"spec": {"schedule": "0 12 * * *", "timeZone": "UTC"}}


def at(seconds: float) -> str:
    return (NOW + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


class Tenant:
    """Answers as an API server with these objects, by the plural of their kind."""

    def __init__(self, objects: dict[str, list[dict[str, Any]]]) -> None:
        self._objects = objects

    async def list(self, resource: Any, **_: Any) -> ObjectList:
        if resource.plural == "horizontalpodautoscalers" and resource.plural not in self._objects:
            raise NotFound(404, "NotFound", "the server could not find the requested resource")
        return ObjectList(self._objects.get(resource.plural, []), "1")


async def inside(**objects: Any) -> Inside:
    metadata = {"name": "one", "namespace": "shop"}
    filled = {plural: [{"metadata": metadata, **obj}] for plural, obj in objects.items()}
    return await look_inside(cast("Client", Tenant(filled)), now=NOW)


def finished(seconds: float, *, ttl: int | None) -> dict[str, Any]:
    condition = {"type": "Complete", "status": "True", "lastTransitionTime": at(seconds)}
    return {"spec": {"ttlSecondsAfterFinished": ttl}, "status": {"conditions": [condition]}}


def token(expiration: str) -> dict[str, Any]:
    return {"data": {"expiration": base64.b64encode(expiration.encode()).decode()}}


async def test_a_fresh_one_has_nothing_due() -> None:
    assert await inside() == Inside()
    quiet = {
        "namespaces": {},
        "leases": {"spec": {"renewTime": at(-61)}},
        "certificatesigningrequests": {"status": {"certificate": "LS0t"}},
        "jobs": finished(-9, ttl=None),
        "cronjobs": {"spec": {"schedule": "* * * * *", "suspend": True}},
        "secrets": token("never"),
    }
    assert await inside(**quiet) == Inside()


@pytest.mark.parametrize(
    ("plural", "obj", "said"),
    [
        ("namespaces", {"metadata": {"name": "shop", "deletionTimestamp": at(-5)}}, "Namespace shop is being deleted"),
        ("horizontalpodautoscalers", {}, "HorizontalPodAutoscaler shop/one scales by load"),
        ("leases", {"spec": {"renewTime": at(-59)}}, "Lease shop/one says that its node reports"),
        ("certificatesigningrequests", {}, "CertificateSigningRequest shop/one is pending"),
        ("certificatesigningrequests", {"status": {"conditions": [{"type": "Approved"}]}}, "is pending"),
        ("jobs", {"status": {"active": 1}}, "Job shop/one runs"),
        ("jobs", {}, "Job shop/one runs"),
        ("jobs", finished(-90, ttl=60), "Job shop/one is due"),
        ("cronjobs", {"spec": {"schedule": "* * * * *"}}, "CronJob shop/one is due"),
        ("cronjobs", NOON, "CronJob shop/one is due"),
        ("cronjobs", {"spec": {"schedule": "@every 1h"}}, "cannot compute"),
        ("cronjobs", {"spec": {"schedule": "0 0 31 2 *"}}, "cannot compute"),
        ("cronjobs", {"spec": {"schedule": "0 0 1 1 *", "timeZone": "../../etc"}}, "cannot compute"),
    ],
)
async def test_what_keeps_it_awake(plural: str, obj: dict[str, Any], said: str) -> None:
    found = await inside(**{plural: obj})
    assert said in found.kept
    assert found.next_wake is None


@pytest.mark.parametrize(
    ("plural", "obj", "seconds"),
    [
        ("jobs", finished(-10, ttl=3600), 3590),
        ("jobs", finished(-3700, ttl=3600), None),
        ("jobs", {"spec": {"suspend": True}}, None),
        ("certificatesigningrequests", {"status": {"conditions": [{"type": "Denied"}]}}, None),
        ("secrets", token(at(600)), 600),
        ("secrets", token(at(-600)), None),
        # Ten seconds ahead.
        ("cronjobs", {"spec": {"schedule": "0 15 * * *", "timeZone": "Europe/Berlin"}}, 7160),
        ("cronjobs", {"spec": {"schedule": "5 12 * * *", "timeZone": "UTC"}}, 260),
        ("cronjobs", NOON | {"status": {"lastScheduleTime": at(-30)}}, 86360),
    ],
)
async def test_when_it_wakes_for_what_is_due(plural: str, obj: dict[str, Any], seconds: float | None) -> None:
    found = await inside(**{plural: obj})
    assert found == Inside(next_wake=NOW + timedelta(seconds=seconds) if seconds is not None else None)


async def test_the_first_of_all_times_counts() -> None:
    found = await inside(jobs=finished(-10, ttl=3600), secrets=token(at(600)))
    assert found.next_wake == NOW + timedelta(seconds=600)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("@hourly", "2026-11-23T13:00:00+00:00"),
        ("@midnight", "2026-11-24T00:00:00+00:00"),
        ("*/15 * * * ?", "2026-11-23T12:15:00+00:00"),
        ("30 9 * * MON-FRI", "2026-11-24T09:30:00+00:00"),
    ],
)
def test_schedules_are_read_as_kubernetes_does(schedule: str, expected: str) -> None:
    time = next_time(schedule, zone="UTC", after=NOW)
    assert time is not None
    assert time.isoformat() == expected
