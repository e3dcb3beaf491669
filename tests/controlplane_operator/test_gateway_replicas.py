"""Route confirmation: gateway replicas that must serve a control plane before it is Ready."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from kplane.api import ControlPlane
from kplane.api.names import SERVED_ANNOTATION, gateway_secret_name
from kplane.api.reasons import Reason
from kplane.controlplane_operator.controlplanes import gateway_replicas
from kplane.controlplane_operator.controlplanes.gateway_replicas import RouteConfirmation
from kplane.controlplane_operator.gateway import Gateway
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.watch.cache import Store
from kplane.provider.client.resources import SECRETS

NAMESPACE = "kplane-gateway"


class Replicas:
    """Leases of replicas by name. `later` has a change for a given reading."""

    def __init__(self) -> None:
        self.leases: dict[str, dict[str, Any]] = {}
        self.readings = 0
        self.later: dict[int, Any] = {}

    def put(self, name: str, *, secrets: int | None, control_planes: int = 100, age_seconds: float = 1.0) -> None:
        renewed = datetime.now(UTC) - timedelta(seconds=age_seconds)
        served = {"controlplanes": str(control_planes), "secrets": str(secrets)}
        annotations = {SERVED_ANNOTATION: json.dumps(served)} if secrets is not None else {}
        self.leases[name] = {
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"renewTime": renewed.isoformat(), "leaseDurationSeconds": 15},
        }

    async def list(self, *_: Any, **__: Any) -> Any:
        self.readings += 1
        if self.readings in self.later:
            self.later[self.readings]()
        return SimpleNamespace(items=list(self.leases.values()))


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]

    async def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(gateway_replicas, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(gateway_replicas.asyncio, "sleep", sleep)
    return now


@pytest.fixture
def replicas() -> Replicas:
    return Replicas()


@pytest.fixture
def confirmation(replicas: Replicas) -> RouteConfirmation:
    secrets = Store(SECRETS)
    for name, version in (("acme", "40"), ("globex", "41")):
        metadata = {"name": gateway_secret_name(name), "namespace": NAMESPACE, "resourceVersion": version, "uid": name}
        secrets.apply({"metadata": metadata})
    gateway = Gateway(url="https://api.example.org", ca=b"", namespace=NAMESPACE)
    context: Any = SimpleNamespace(client=replicas, stores=SimpleNamespace(secrets=secrets), gateway=gateway)
    return RouteConfirmation(context)


def control_plane(name: str = "acme", *, published: bool = False) -> ControlPlane:
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": "39"}
    body: dict[str, Any] = {"kind": "ControlPlane", "apiVersion": CONTROL_PLANES.api_version, "metadata": metadata}
    body |= {"spec": {}, "status": {"endpoint": "https://127.0.0.1:6443"} if published else {}}
    return ControlPlane.model_validate(body)


async def test_wait_returns_at_once_without_replicas(
    confirmation: RouteConfirmation, replicas: Replicas, clock: list[float]
) -> None:
    assert await confirmation.wait(control_plane(), is_new=True) == ""
    clock[0] += 1.0
    replicas.put("dead", secrets=1, age_seconds=60)
    replicas.put("dead since its clock was ahead", secrets=1, age_seconds=-2 * 86400)
    replicas.put("starts", secrets=None)
    assert await confirmation.wait(control_plane("globex"), is_new=True) == ""
    assert replicas.readings == 2


async def test_wait_returns_when_every_replica_serves_the_secret(
    confirmation: RouteConfirmation, replicas: Replicas
) -> None:
    replicas.put("one", secrets=40)
    replicas.put("two", secrets=39)
    replicas.later[3] = lambda: replicas.put("two", secrets=40)
    assert await confirmation.wait(control_plane(), is_new=True) == ""
    assert replicas.readings == 3
    assert await confirmation.wait(control_plane(), is_new=True) == ""
    assert replicas.readings == 3, "the same Secret is confirmed once"


async def test_wait_needs_the_control_plane_itself_unless_it_is_published(
    confirmation: RouteConfirmation, replicas: Replicas
) -> None:
    replicas.put("one", secrets=40, control_planes=38)
    with pytest.raises(ConditionError, match="one does not yet") as pending:
        await confirmation.wait(control_plane(), is_new=True)
    assert pending.value.reason is Reason.ROUTE_PENDING
    assert await confirmation.wait(control_plane(published=True), is_new=True) == ""


async def test_wait_names_the_replica_that_is_behind_for_long(
    confirmation: RouteConfirmation, replicas: Replicas, clock: list[float]
) -> None:
    replicas.put("good", secrets=50)
    replicas.put("slow", secrets=39)
    for _ in range(4):
        with pytest.raises(ConditionError, match="slow does not yet"):
            await confirmation.wait(control_plane(), is_new=True)
    message = "these replicas of the gateway do not serve it for 10 s, see their logs: slow"
    assert await confirmation.wait(control_plane(), is_new=True) == message
    time_before = clock[0]
    assert await confirmation.wait(control_plane("globex"), is_new=True) == message
    assert clock[0] == time_before, "no other control plane waits for it"
    assert await confirmation.wait(control_plane(), is_new=False) == message
    clock[0] += 1.0
    replicas.put("slow", secrets=41)
    assert await confirmation.wait(control_plane(), is_new=False) == ""


async def test_wait_reads_no_lease_unless_the_secret_is_new(
    confirmation: RouteConfirmation, replicas: Replicas
) -> None:
    replicas.put("slow", secrets=39)
    assert await confirmation.wait(control_plane(), is_new=False) == ""
    assert replicas.readings == 0


async def test_wait_raises_gateway_behind_while_no_replica_serves(
    confirmation: RouteConfirmation, replicas: Replicas
) -> None:
    replicas.put("one", secrets=39)
    reasons = []
    for _ in range(7):
        with pytest.raises(ConditionError) as failure:
            await confirmation.wait(control_plane(), is_new=True)
        reasons.append(failure.value.reason)
    assert reasons[0] is Reason.ROUTE_PENDING
    assert reasons[-1] is Reason.GATEWAY_BEHIND
