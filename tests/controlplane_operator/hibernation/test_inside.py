"""Check of the inside of a control plane: objects that keep it awake, and the time of its next wake."""

from __future__ import annotations

import asyncio
import base64
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from kplane.api import HibernationStatus
from kplane.controlplane_operator.hibernation.inside import Inside, look_inside
from kplane.controlplane_operator.hibernation.service_accounts import ServiceAccount
from kplane.provider import Client, NotFound
from kplane.provider.client.listing import ObjectList

NOW = datetime(2026, 11, 23, 12, 0, 30, tzinfo=UTC)
NOON = {"spec": {"schedule": "0 12 * * *", "timeZone": "UTC"}}


def at(seconds: float) -> str:
    return (NOW + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


class Tenant:
    """Fake API server with these objects, by the plural of their kind."""

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


async def test_inside_is_empty_without_active_or_due_objects() -> None:
    assert await inside() == Inside()
    objects = {
        "namespaces": {},
        "leases": {"spec": {"renewTime": at(-61)}},
        "certificatesigningrequests": {"status": {"certificate": "LS0t"}},
        "jobs": finished(-9, ttl=None),
        "cronjobs": {"spec": {"schedule": "* * * * *", "suspend": True}},
        "secrets": token("never"),
    }
    assert await inside(**objects) == Inside()


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
        ("cronjobs", {"spec": {"schedule": "@every 59s"}}, "CronJob shop/one is due"),
        ("cronjobs", {"spec": {"schedule": "0 0 32 1 *"}}, "cannot compute"),
        ("cronjobs", {"spec": {"schedule": "0 0 1 1 *", "timeZone": "../../etc"}}, "cannot compute"),
    ],
)
async def test_active_or_due_object_keeps_control_plane_awake(plural: str, obj: dict[str, Any], said: str) -> None:
    result = await inside(**{plural: obj})
    assert said in result.kept
    assert result.next_wake is None


@pytest.mark.parametrize(
    ("plural", "obj", "seconds"),
    [
        ("jobs", finished(-10, ttl=3600), 3590),
        ("jobs", finished(-3700, ttl=3600), None),
        ("jobs", {"spec": {"suspend": True}}, None),
        ("certificatesigningrequests", {"status": {"conditions": [{"type": "Denied"}]}}, None),
        ("secrets", token(at(600)), 600),
        ("secrets", token(at(-600)), None),
        # A control plane wakes ten seconds before a CronJob is due.
        ("cronjobs", {"spec": {"schedule": "0 15 * * *", "timeZone": "Europe/Berlin"}}, 7160),
        ("cronjobs", {"spec": {"schedule": "5 12 * * *", "timeZone": "UTC"}}, 260),
        ("cronjobs", NOON | {"status": {"lastScheduleTime": at(-30)}}, 86360),
        ("cronjobs", NOON | {"status": {"lastScheduleTime": at(2 * 86400)}}, 86360),
        ("cronjobs", {"spec": {"schedule": "0 15 */2 * 3", "timeZone": "UTC"}}, 10760),
        ("cronjobs", {"spec": {"schedule": "@every 1h"}, "status": {"lastScheduleTime": at(-600)}}, 2990),
        ("cronjobs", {"spec": {"schedule": "0 0 31 2 *"}}, None),
    ],
)
async def test_next_wake_is_time_of_due_object(plural: str, obj: dict[str, Any], seconds: float | None) -> None:
    result = await inside(**{plural: obj})
    assert result == Inside(next_wake=NOW + timedelta(seconds=seconds) if seconds is not None else None)


def deleted_namespace(seconds: float) -> dict[str, Any]:
    """Return a namespace deleted `seconds` ago, in a control plane with an API service that is down."""
    message = "Discovery failed for some groups, 1 failing: metrics.k8s.io/v1beta1: stale GroupVersion discovery"
    condition = {"type": "NamespaceDeletionDiscoveryFailure", "status": "True", "message": message}
    return {"metadata": {"name": "shop", "deletionTimestamp": at(-seconds)}, "status": {"conditions": [condition]}}


async def test_namespace_stuck_in_deletion_is_reported_with_cause() -> None:
    first_result = await inside(namespaces=deleted_namespace(240))
    assert (first_result.kept, first_result.stuck) == ("Namespace shop is being deleted", "")
    later_result = await inside(namespaces=deleted_namespace(360))
    assert later_result.stuck == later_result.kept
    assert "metrics.k8s.io/v1beta1" in later_result.kept
    assert "kubectl get apiservices" in later_result.kept


@pytest.mark.parametrize(
    ("hours", "next_hours"),
    [(1, 2), (1.9, 2), (2.1, 4), (3, 4), (5, 8), (100, 128)],
)
async def test_namespace_deletion_keeps_awake_for_an_hour_only(hours: float, next_hours: float) -> None:
    first_result = await inside(namespaces=deleted_namespace(3599))
    assert first_result.kept
    result = await inside(namespaces=deleted_namespace(3600 * hours))
    # The cause is known while the control plane sleeps.
    assert "metrics.k8s.io/v1beta1" in result.stuck
    assert result == Inside(stuck=result.stuck, next_wake=NOW + timedelta(hours=next_hours - hours))


async def test_longest_cause_of_stuck_namespace_fits_into_status() -> None:
    kinds = ("DiscoveryFailure", "GroupVersionParsingFailure", "ContentFailure")
    types = [f"NamespaceDeletion{kind}" for kind in kinds] + [
        "NamespaceFinalizersRemaining",
        "NamespaceContentRemaining",
    ]
    namespace = deleted_namespace(4000)
    namespace["metadata"]["name"] = "n" * 63
    namespace["status"]["conditions"] = [{"type": kind, "status": "True", "message": "x" * 999} for kind in types]
    status = {"since": NOW, "reason": "Idle", "stuckNamespace": (await inside(namespaces=namespace)).stuck}
    assert len(HibernationStatus.model_validate(status).stuck_namespace or "") > 2500


async def test_node_lease_of_far_future_does_not_keep_awake() -> None:
    assert (await inside(leases={"spec": {"renewTime": at(50)}})).kept
    assert await inside(leases={"spec": {"renewTime": at(2 * 86400)}}) == Inside()


async def test_future_namespace_deletion_counts_from_first_check() -> None:
    first_seen: dict[str, datetime] = {}
    client = cast("Client", Tenant({"namespaces": [deleted_namespace(-2 * 86400)]}))
    results = [
        await look_inside(client, now=NOW + timedelta(minutes=minutes), first_seen=first_seen)
        for minutes in (0, 4, 6, 59)
    ]
    assert [bool(result.stuck) for result in results] == [False, False, True, True]
    assert all(result.kept for result in results)
    last_result = await look_inside(client, now=NOW + timedelta(hours=1), first_seen=first_seen)
    assert last_result == Inside(stuck=last_result.stuck, next_wake=NOW + timedelta(hours=2))
    assert last_result.stuck
    await look_inside(cast("Client", Tenant({})), now=NOW, first_seen=first_seen)
    assert first_seen == {}


@pytest.mark.parametrize("seconds", [-50, 0, 50])
async def test_namespace_deletion_keeps_awake_again_at_its_next_attempt(seconds: float) -> None:
    result = await inside(namespaces=deleted_namespace(4 * 3600 + seconds))
    assert result.kept == "Namespace shop is being deleted, and its controllers try again"
    assert "metrics.k8s.io/v1beta1" in result.stuck
    assert result.next_wake is None


async def test_inside_has_existing_service_accounts_of_all_namespaces() -> None:
    account = {"metadata": {"namespace": "shop", "name": "robot", "uid": "1"}}
    result = await inside(serviceaccounts=account)
    assert result.credentials.accounts == (ServiceAccount("shop", "robot", "1"),)


async def test_next_wake_is_earliest_of_all_due_times() -> None:
    result = await inside(jobs=finished(-10, ttl=3600), secrets=token(at(600)))
    assert result.next_wake == NOW + timedelta(seconds=600)


async def test_missed_cron_job_keeps_awake_or_wakes_before_next_time() -> None:
    # The last run is unknown, as after the failed creation of a Job.
    job = {"metadata": {"name": "one", "namespace": "shop"}, "spec": {"schedule": "0 * * * *", "timeZone": "UTC"}}
    client = cast("Client", Tenant({"cronjobs": [job]}))
    for second in range(-10, 70):
        now = NOW.replace(second=0) + timedelta(seconds=second)
        result = await look_inside(client, now=now)
        assert result.kept or result.next_wake == NOW.replace(minute=59, second=50), second


async def test_check_of_many_cron_jobs_yields_to_other_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """With turns of zero seconds, their number does not depend on the speed of the processor."""
    monkeypatch.setattr("kplane.controlplane_operator.hibernation.inside._TURN_SECONDS", 0)
    spec = {"schedule": "59 23 29 2 *", "timeZone": "Europe/Berlin"}
    jobs = [{"metadata": {"name": str(number), "namespace": "shop"}, "spec": spec} for number in range(50)]
    task = asyncio.ensure_future(look_inside(cast("Client", Tenant({"cronjobs": jobs})), now=NOW))
    turns = 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > len(jobs)
