"""Holder and duration of the Lease of a tenant's controllers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from kplane.mcm.instance.state import BlockingReason
from kplane.mcm.instance.tenant_lease import TIMINGS, TRY_SECONDS, Holder, TenantLease
from kplane.mcm.reasons import Reason
from kplane.provider import Cluster
from kplane.provider.client.limits import AnswerLimits
from kplane.provider.coordination.lease import clock
from kplane.provider.errors import ClusterNotOwned

from .start_gate_world import FaultServer, Leases, answer, guarded, released

FORBIDDEN = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\n{}"
UNAUTHORIZED = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\n{}"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[FaultServer]:
    server = FaultServer(tmp_path)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def test_refusal_of_accepted_credentials_is_reported_until_it_ends(server: FaultServer) -> None:
    async with released(tenant_lease(server)) as lease:

        async def refused(found: bytes | Leases) -> bool:
            server.answer = found
            await lease.acquire(server.config)
            return "refuses the credentials of its controllers" in lease.refusal

        # Credentials of a user may never have been allowed to hold the Lease. The blocking reason names the rights.
        assert not await refused(FORBIDDEN)
        assert await refused(UNAUTHORIZED)
        assert not await refused(server.leases)
        assert await refused(FORBIDDEN)
        assert not await refused(server.leases)


@pytest.mark.parametrize(
    ("seconds", "free_after"),
    [(15, 15.0), (10**9, 600.0), (-1, 15.0), ("many", 15.0)],
    ids=["usual", "too long", "negative", "no number"],
)
async def test_lease_duration_counts_by_the_clock_of_mcm(server: FaultServer, seconds: Any, free_after: float) -> None:
    now = [0.0]
    # mcm does not trust the clock of a holder. In this Lease it is years behind.
    server.leases.hold("theirs", seconds=seconds, renewTime="2020-01-01T00:00:00.000000Z")
    async with released(tenant_lease(server, now=lambda: now[0])) as lease:
        assert await lease.acquire(server.config) is not None
        now[0] = free_after - 0.1
        assert await lease.acquire(server.config) is not None
        assert lease.seconds_left == 0.0
        now[0] = free_after
        assert await lease.acquire(server.config) is None
        assert lease.seconds_left == 120.0


@pytest.mark.parametrize(
    ("fleet", "uid", "follows"),
    [("one", "1", True), ("other", "1", False), ("one", "2", False), ("one", None, False)],
    ids=["same", "fleet", "registration", "unknown"],
)
async def test_only_an_mcm_of_the_same_fleet_takes_over_a_lease_at_once(
    server: FaultServer, fleet: str, uid: str | None, follows: bool
) -> None:
    """Two management clusters may have fleets and registrations of the same names, but no uid in common."""
    old_lease = tenant_lease(server, uid="1")
    assert await old_lease.acquire(server.config) is None
    async with released(tenant_lease(server, fleet=fleet, uid=uid)) as lease:
        reason = await lease.acquire(server.config)
        assert (reason is None) == follows
        if reason is not None:
            assert "'mcm-0_" in reason.message
        # The old holder still runs. The holder has noticed the loss, and does not take the Lease back.
        for _ in range(2):
            assert (await old_lease.acquire(server.config) is None) == (not follows)
            assert (await lease.acquire(server.config) is None) == follows
    await old_lease.release()


async def test_mcm_without_its_shard_lease_does_not_take_over_the_lease(server: FaultServer) -> None:
    """The late mcm was stopped before it could acquire the Lease, and another mcm of its fleet acquired it."""
    owned = False

    def before_write(name: str) -> float | None:
        if not owned:
            raise ClusterNotOwned(f"cluster {name} has another owner")
        return None

    async with (
        released(tenant_lease(server)) as owner_lease,
        released(tenant_lease(server, before_write=before_write)) as late_lease,
    ):
        assert await owner_lease.acquire(server.config) is None
        reason = await late_lease.acquire(server.config)
        assert reason is not None
        assert reason.message == "another mcm works on it: cluster a has another owner"
        assert await owner_lease.acquire(server.config) is None
        owned = True
        assert await late_lease.acquire(server.config) is None


async def test_two_mcm_with_unknown_uid_never_both_hold_the_lease(server: FaultServer) -> None:
    first, second = tenant_lease(server, uid=None), tenant_lease(server, uid=None)
    assert await first.acquire(server.config) is None
    for _ in range(2):
        reason = await second.acquire(server.config)
        assert reason is not None
        assert reason.reason is Reason.FOREIGN_CONTROLLER_MANAGER
        assert await first.acquire(server.config) is None
    await first.release()
    assert await second.acquire(server.config) is None
    await second.release()


async def test_silent_api_server_does_not_delay_the_release(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kplane.mcm.instance.tenant_lease._RELEASE_SECONDS", 0.05)
    lease = tenant_lease(server)
    assert await lease.acquire(server.config) is None
    server.answer = None
    await lease.release()
    assert lease.seconds_left == 0.0


async def test_lease_with_deeply_nested_fields_is_judged_by_its_holder(server: FaultServer) -> None:
    spec = b'{"holderIdentity":"theirs","x":%s%s}' % (b"[" * 1000, b"]" * 1000)
    body = b'{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"a"},"spec":%s}' % spec
    server.answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    async with released(tenant_lease(server)) as lease:
        reason = await lease.acquire(server.config)
    assert reason is not None
    assert reason.reason is Reason.FOREIGN_CONTROLLER_MANAGER


GUARD = "webhook 'guard.example.com' of ValidatingWebhookConfiguration guard-0 (Ignore, 10 s)"
WRITE_LIMIT_SECONDS = 34
"""Time after which an API server gives up a write, even for slow webhooks (k8s.io/apiserver/pkg/endpoints/handlers)."""


def refusal(code: int, message: str) -> bytes:
    return answer(f"{code} Error", {"kind": "Status", "reason": "Error", "message": message, "code": code})


def test_longest_renewal_ends_before_the_renew_deadline() -> None:
    assert WRITE_LIMIT_SECONDS < TRY_SECONDS
    # A renewal begins at most 36 s after the previous renewal, and takes at most the write limit of an API server.
    assert TIMINGS.retry_seconds * 1.2 + WRITE_LIMIT_SECONDS < TIMINGS.renew_deadline_seconds


async def test_write_delayed_by_a_webhook_acquires_the_lease(server: FaultServer) -> None:
    guarded(server.leases)
    server.write_after_seconds = 0.5
    reasons = list[BlockingReason]()

    async def delayed(why: BlockingReason) -> None:
        reasons.append(why)

    async with released(tenant_lease(server, timeout_seconds=0.1)) as lease:
        for _ in range(2):  # acquire the Lease, then renew it
            assert await lease.acquire(server.config, delayed=delayed) is None
    (reason, _) = reasons
    assert reason.reason is Reason.WEBHOOK_REFUSED
    assert reason.message.startswith(f"{GUARD} of its control plane holds up or refuses the Lease kube-system/kube-con")


async def test_endless_write_is_attributed_to_webhooks_on_leases(server: FaultServer) -> None:
    guarded(server.leases)
    server.write_after_seconds = 60.0
    async with released(tenant_lease(server, timeout_seconds=0.1)) as lease:
        reason = await lease.acquire(server.config, seconds=0.3)
    assert reason is not None
    assert reason.reason is Reason.WEBHOOK_REFUSED
    assert GUARD in reason.message
    assert "guard-1" not in reason.message


async def test_webhook_on_leases_among_many_others_is_named(server: FaultServer) -> None:
    guarded(server.leases)
    webhooks = server.leases.configurations["validatingwebhookconfigurations"]
    webhooks += webhooks[1:] * 500  # as many values as about 50 real webhooks have
    server.write_after_seconds = 60.0
    async with released(tenant_lease(server, timeout_seconds=0.5)) as lease:
        reason = await lease.acquire(server.config, seconds=1.0)
    assert reason is not None
    assert reason.reason is Reason.WEBHOOK_REFUSED
    assert GUARD in reason.message


async def test_slow_write_succeeds_if_webhooks_are_too_many_to_read(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded(server.leases)
    monkeypatch.setattr("kplane.mcm.instance.tenant_lease._WEBHOOK_LIMITS", AnswerLimits(values=4))
    server.write_after_seconds = 0.5
    async with released(tenant_lease(server, timeout_seconds=0.2)) as lease:
        assert await lease.acquire(server.config) is None


async def test_read_is_answered_while_a_webhook_holds_up_the_write(server: FaultServer) -> None:
    async with released(tenant_lease(server)) as lease:
        assert not await lease.observe()
        assert await lease.acquire(server.config) is None
        server.write_after_seconds = 60.0
        async with asyncio.TaskGroup() as tasks:
            look_task = tasks.create_task(lease.acquire(server.config))
            await asyncio.sleep(0)
            assert await lease.observe()
            assert not look_task.done()
            _ = look_task.cancel()
        server.answer = FORBIDDEN
        assert not await lease.observe()


async def test_endless_write_without_webhooks_is_api_server_unreachable(server: FaultServer) -> None:
    server.write_after_seconds = 60.0
    async with released(tenant_lease(server, timeout_seconds=0.1)) as lease:
        reason = await lease.acquire(server.config, seconds=0.3)
    assert reason is not None
    assert reason.reason is Reason.API_SERVER_UNREACHABLE
    assert "no answer within 0.3 s" in reason.message


async def test_endless_write_is_reported_without_right_to_list_webhooks(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object, **__: object) -> bool:
        return await asyncio.Event().wait()

    monkeypatch.setattr(server.leases, "forbidden", frozenset({"GET"}))
    async with released(tenant_lease(server, timeout_seconds=0.5)) as lease:
        monkeypatch.setattr("kplane.provider.coordination.lease.Lease.try_acquire", never)
        reason = await lease.acquire(server.config, seconds=2.0)
    assert reason is not None
    assert "an admission webhook or a slow etcd holds up the write" in reason.message
    assert "failed to list its webhooks" in reason.message
    assert "you may not" in reason.message


async def test_silent_api_server_is_given_up_before_a_slow_write(server: FaultServer) -> None:
    guarded(server.leases)
    async with released(tenant_lease(server, timeout_seconds=0.1)) as lease:
        assert await lease.acquire(server.config) is None
        server.answer = None
        async with asyncio.timeout(TRY_SECONDS / 2):
            reason = await lease.acquire(server.config)
    assert reason is not None
    assert reason.reason is Reason.API_SERVER_UNREACHABLE


@pytest.mark.parametrize(
    "refused",
    [
        refusal(500, 'Internal error occurred: failed calling webhook "guard.example.com": connection refused'),
        refusal(403, 'admission webhook "guard.example.com" denied the request: no'),
    ],
    ids=["failed", "denied"],
)
async def test_refusal_by_a_webhook_names_it_and_not_the_credentials(server: FaultServer, refused: bytes) -> None:
    guarded(server.leases, policy="Fail")
    async with released(tenant_lease(server)) as lease:
        assert await lease.acquire(server.config) is None
        server.leases.refusal = refused
        reason = await lease.acquire(server.config)
        assert lease.refusal == ""
    assert reason is not None
    assert reason.reason is Reason.WEBHOOK_REFUSED
    # The name of a webhook may be in several objects.
    assert "of ValidatingWebhookConfiguration guard-0" in reason.message
    assert "of ValidatingWebhookConfiguration guard-1" in reason.message
    assert "exclude namespace kube-system" in reason.message


def tenant_lease(
    server: FaultServer,
    *,
    fleet: str = "one",
    uid: str | None = "1",
    before_write: Callable[[str], float | None] | None = None,
    now: Callable[[], float] = clock,
    timeout_seconds: float = 5.0,
) -> TenantLease:
    holder = Holder(name="mcm-0", fleet=fleet, uid=lambda _: uid, before_write=before_write)
    cluster = Cluster("a", config=server.config)
    program = "kube-controller-manager"
    return TenantLease(cluster, program=program, holder=holder, now=now, timeout_seconds=timeout_seconds)
