"""Leader election of operators: replicas of an installation take turns, a second installation is refused."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from kplane.controlplane_operator import leadership
from kplane.controlplane_operator.config import ElectionSettings
from kplane.controlplane_operator.leadership import AnotherOperator, Leadership
from kplane.provider import ClusterConfig
from kplane.provider.client.resources import LEASES
from kplane.provider.contracts import EngagementTarget
from kplane.provider.coordination.lease import LeaseTimings
from kplane.provider.testing import FakeCluster

QUICK = LeaseTimings(duration_seconds=2, renew_deadline_seconds=1.5, retry_seconds=0.1)
LONG = LeaseTimings(duration_seconds=60, renew_deadline_seconds=40.0, retry_seconds=0.1)


@pytest.fixture
async def hub(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeCluster]:
    """The management cluster, with the empty Lease that an installation brings."""
    cluster = FakeCluster("hub")
    monkeypatch.setattr(leadership, "Client", lambda *_, **__: cluster.make_client())
    await cluster.client.create(LEASES, {"metadata": {"namespace": "kube-system", "name": "kplane-operator"}})
    yield cluster
    await cluster.aclose()


def operator(state: Path, *, pods: str | None = None, timings: LeaseTimings = QUICK) -> Leadership:
    settings = ElectionSettings(namespace="kplane-system", pods=pods, timings=timings)
    return Leadership(settings, config=ClusterConfig("https://hub.invalid"), state_dir=state, work=_works)


async def _works(_: EngagementTarget) -> None:
    await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def working(member: Leadership) -> AsyncIterator[None]:
    """Run the work of an operator inside the block."""
    async with member:
        running = asyncio.create_task(member.run(cast("EngagementTarget", None)))
        failed = asyncio.create_task(member.wait_failed())
        try:
            while not member.leading and not failed.done():
                await asyncio.wait({failed}, timeout=0.01)
            if failed.done():
                await failed
            yield
        finally:
            for task in (running, failed):
                task.cancel()
            await asyncio.wait({running, failed})


async def spec_of(hub: FakeCluster) -> dict[str, Any]:
    spec: dict[str, Any] = (await hub.client.get(LEASES, "kplane-operator", namespace="kube-system"))["spec"]
    return spec


async def killed(hub: FakeCluster, member: Leadership) -> None:
    """Leave the Lease in the state that a killed leader leaves."""
    async with working(member):
        held = await spec_of(hub)
    assert not (await spec_of(hub))["holderIdentity"]
    await hub.client.patch(LEASES, "kplane-operator", {"spec": held}, namespace="kube-system")


async def test_operator_of_same_directory_replaces_killed_leader_at_once(hub: FakeCluster, tmp_path: Path) -> None:
    await killed(hub, operator(tmp_path, timings=LONG))
    async with asyncio.timeout(LONG.duration_seconds / 2), working(operator(tmp_path, timings=LONG)):
        assert (await spec_of(hub))["holderIdentity"]


async def test_operator_of_copied_directory_waits_for_lease_expiry(hub: FakeCluster, tmp_path: Path) -> None:
    await killed(hub, operator(tmp_path / "a", timings=LONG))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5), working(operator(tmp_path / "b", timings=LONG)):
            pass


async def test_second_operator_of_directory_is_standby_while_first_lives(hub: FakeCluster, tmp_path: Path) -> None:
    async with working(operator(tmp_path)):
        holder = (await spec_of(hub))["holderIdentity"]
        second = operator(tmp_path)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0), working(second):
                pass
        assert second.role() == f"standby, the leader is {holder}"
        assert not second.leading


async def test_operator_of_other_directory_is_refused_with_leader_name(hub: FakeCluster, tmp_path: Path) -> None:
    async with working(operator(tmp_path / "a")):
        since = (await spec_of(hub))["acquireTime"]
        with pytest.raises(AnotherOperator, match=f":{tmp_path}/a of another installation .* since {since}"):
            async with working(operator(tmp_path / "b")):
                pass


async def test_operator_of_other_release_is_refused_with_leader_pod(
    hub: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "kplane-operator-5f")
    async with working(operator(tmp_path / "a", pods="kplane-system/kplane")):
        with pytest.raises(AnotherOperator, match="operator kplane-system/kplane-operator-5f of another"):
            async with working(operator(tmp_path / "b", pods="kplane-system/other")):
                pass
        with pytest.raises(AnotherOperator):
            async with working(operator(tmp_path / "c")):
                pass


async def test_replica_of_release_waits_and_takes_over(hub: FakeCluster, tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(working(operator(tmp_path / "a", pods="ns/kplane")))
        second = working(operator(tmp_path / "b", pods="ns/kplane"))
        following = asyncio.create_task(second.__aenter__())
        await asyncio.wait({following}, timeout=1.0)
        assert not following.done()
        await stack.aclose()
        await following
        await second.__aexit__(None, None, None)


async def test_operator_of_other_directory_replaces_dead_leader(hub: FakeCluster, tmp_path: Path) -> None:
    await killed(hub, operator(tmp_path / "a"))
    async with asyncio.timeout(30.0), working(operator(tmp_path / "b")):
        pass
