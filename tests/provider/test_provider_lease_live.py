"""A Lease on the real API server, with an identity that has permissions for this Lease only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from kplane.provider import Client, ClusterConfig, Election, Lease, NotFound
from kplane.provider.client.resources import LEASES
from kplane.provider.coordination.lease import LeaseTimings, clock
from kplane.provider.errors import Forbidden, LeaseLost

pytestmark = pytest.mark.integration

TIMINGS = LeaseTimings(duration_seconds=60, renew_deadline_seconds=40, retry_seconds=0.3)
"""Longer than any test, so that no Lease expires during a test on a slow machine."""
RULE = {
    "apiGroups": ["coordination.k8s.io"],
    "resources": ["leases"],
    "resourceNames": ["mine"],
    "verbs": ["get", "watch", "create", "update"],
}


@pytest.fixture
async def limited(service_account: Callable[..., Awaitable[ClusterConfig]]) -> AsyncIterator[Client]:
    async with Client(await service_account([RULE])) as client:
        yield client


@pytest.fixture
def lease(limited: Client, namespace: str) -> Callable[..., Lease]:
    def make(identity: str, *, name: str = "mine", now: Callable[[], float] = clock, **more: Any) -> Lease:
        options = {"timings": TIMINGS, "labels": {"of": "test"}, "now": now, **more}
        return Lease(limited, namespace=namespace, name=name, identity=identity, **options)

    return make


@pytest.fixture
async def empty(client: Client, namespace: str) -> None:
    """A Lease as the chart makes it."""
    await client.create(LEASES, {"metadata": {"name": "mine", "namespace": namespace}})


async def spec(client: Client, namespace: str) -> dict[str, Any]:
    found: dict[str, Any] = (await client.get(LEASES, "mine", namespace=namespace))["spec"]
    return found


@pytest.mark.usefixtures("empty")
async def test_lease_without_holder_is_acquired_at_once_and_released(
    client: Client, namespace: str, lease: Callable[..., Lease]
) -> None:
    first, second = lease("first"), lease("second")
    assert await first.try_acquire()
    assert not await second.try_acquire()
    assert (second.holder, second.held) == ("first", False)
    told = await spec(client, namespace)
    assert (told["holderIdentity"], told["leaseDurationSeconds"], told["leaseTransitions"]) == ("first", 60, 1)
    await first.renew()
    assert (await spec(client, namespace))["renewTime"] > told["renewTime"]
    await first.release()
    assert not first.held
    assert await second.try_acquire()
    assert (await spec(client, namespace))["leaseTransitions"] == 2


async def test_missing_lease_is_created_and_acquired_at_once(lease: Callable[..., Lease]) -> None:
    first, second = lease("first"), lease("second")
    assert await first.try_acquire()
    assert not await second.try_acquire()
    assert second.obstacle.startswith(f"{second} is held by first since ")


async def test_missing_strict_lease_is_acquired_after_its_duration(
    client: Client, namespace: str, lease: Callable[..., Lease], stepped_clock: Any
) -> None:
    first, second = lease("first", strict=True, now=stepped_clock), lease("second")
    assert not await first.try_acquire()
    assert (await client.get(LEASES, "mine", namespace=namespace))["metadata"]["labels"] == {"of": "test"}
    assert not await second.try_acquire()
    # Each attempt renews the Lease, which would expire otherwise.
    for _ in range(2):
        stepped_clock.skip(TIMINGS.duration_seconds / 2 - 1)
        assert not await first.try_acquire()
    stepped_clock.skip(2)
    assert await first.try_acquire()
    assert not await second.try_acquire()


async def test_release_keeps_strict_lease_that_was_not_acquired_yet(lease: Callable[..., Lease]) -> None:
    """The holder of the deleted Lease may still be working."""
    first, second = lease("first", strict=True), lease("second")
    assert not await first.try_acquire()
    await first.release()
    assert not await second.try_acquire()
    assert second.holder == "first"


@pytest.mark.usefixtures("empty")
async def test_lease_is_taken_over_when_patience_ends(lease: Callable[..., Lease]) -> None:
    asked = []

    def patience(holder: str, duration_seconds: int) -> float:
        asked.append((holder, duration_seconds))
        return 0.0 if holder == "first" else 60.0

    first, second, third = lease("first"), lease("second"), lease("third", patience=patience)
    assert await first.try_acquire()
    assert not await second.try_acquire()
    assert await third.try_acquire()
    assert asked == [("first", 60)]
    with pytest.raises(LeaseLost, match="held by third"):
        await first.renew()


@pytest.mark.usefixtures("empty")
async def test_deleted_lease_is_recreated_by_its_holder(
    client: Client, namespace: str, lease: Callable[..., Lease]
) -> None:
    first = lease("first")
    assert await first.try_acquire()
    await client.delete(LEASES, "mine", namespace=namespace)
    await first.renew()
    assert first.held
    assert (await spec(client, namespace))["holderIdentity"] == "first"


@pytest.mark.usefixtures("empty")
async def test_renewal_keeps_annotations_of_others(client: Client, namespace: str, lease: Callable[..., Lease]) -> None:
    first = lease("first")
    assert await first.try_acquire()
    await client.patch(LEASES, "mine", {"metadata": {"annotations": {"by": "somebody"}}}, namespace=namespace)
    await first.renew()
    found = await client.get(LEASES, "mine", namespace=namespace)
    assert found["metadata"]["annotations"] == {"by": "somebody"}


@pytest.mark.usefixtures("empty")
async def test_lease_is_lost_when_its_holder_identity_changes(
    client: Client, namespace: str, lease: Callable[..., Lease]
) -> None:
    first, second = lease("first"), lease("second")
    assert await first.try_acquire()
    assert not await second.try_acquire()
    await client.patch(LEASES, "mine", {"spec": {"holderIdentity": "second"}}, namespace=namespace)
    with pytest.raises(LeaseLost, match="held by second"):
        await first.renew()
    # Another process wrote the holder, so the second process does not hold the Lease.
    assert not await second.try_acquire()


@pytest.mark.usefixtures("empty")
async def test_takeover_does_not_recreate_deleted_lease(
    client: Client, namespace: str, lease: Callable[..., Lease], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process would hold the new Lease at once, although another process may have held a newer Lease."""
    first = lease("first")
    read = first._read

    async def read_then_deleted() -> Any:
        found = await read()
        await client.delete(LEASES, "mine", namespace=namespace)
        return found

    monkeypatch.setattr(first, "_read", read_then_deleted)
    assert not await first.try_acquire()
    with pytest.raises(NotFound):
        await client.get(LEASES, "mine", namespace=namespace)


async def test_lease_of_another_name_is_forbidden(lease: Callable[..., Lease]) -> None:
    with pytest.raises(Forbidden):
        await lease("first", name="another").try_acquire()


@pytest.mark.usefixtures("empty")
async def test_election_moves_on_graceful_stop_and_ends_on_edited_holder(
    client: Client, limited: Client, namespace: str, lease: Callable[..., Lease]
) -> None:
    working: list[str] = []
    begun = asyncio.Event()

    def run(name: str) -> asyncio.Task[None]:
        async def work() -> None:
            working.append(name)
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                working.remove(name)

        return asyncio.create_task(Election(lease(name), watching=limited).run(work))

    first = run("first")
    async with asyncio.timeout(60):
        await begun.wait()
    begun.clear()
    second = run("second")
    first.cancel()
    async with asyncio.timeout(60):
        await begun.wait()
    assert working == ["second"]
    await client.patch(LEASES, "mine", {"spec": {"holderIdentity": "nobody"}}, namespace=namespace)
    with pytest.raises(LeaseLost):
        await second
    assert working == []
    with pytest.raises(asyncio.CancelledError):
        await first
