"""Write holds of a migration: begin and release of a hold, and the Secret that replicas of the gateway serve."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kplane.api import ControlPlane
from kplane.api.names import HOLDS_ANNOTATION, IN_FLIGHT_ANNOTATION, SERVED_ANNOTATION, gateway_secret_name
from kplane.controlplane_operator.controlplanes.migration.cut import Cutter
from kplane.controlplane_operator.controlplanes.migration.hold import Holds
from kplane.controlplane_operator.gateway import Gateway
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.watch.cache import Store
from kplane.provider.client.resources import SECRETS

UID = "b1946ac9-2f3a-4a3e-8d4c-6a5f0c7b8e11"


def lease(
    *, age_seconds: float = 1.0, holds: bool = False, name: str = "replica", in_flight: Any = None
) -> dict[str, Any]:
    renewed = datetime.now(UTC) - timedelta(seconds=age_seconds)
    annotations = {HOLDS_ANNOTATION: json.dumps({UID: "2026-01-01"})} if holds else {}
    if in_flight is not None:
        annotations[IN_FLIGHT_ANNOTATION] = json.dumps({UID: in_flight})
    return {
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"renewTime": renewed.isoformat(), "leaseDurationSeconds": 15},
    }


@pytest.mark.parametrize(
    ("leases", "over"),
    [
        ([], False),
        ([{"age_seconds": 60.0}], False),
        ([{}], True),
        ([{}, {"age_seconds": 60.0, "holds": True}], True),
        ([{}, {"holds": True}], False),
    ],
    ids=["none", "only one that has ended", "one", "one besides one that has ended", "one still holds"],
)
async def test_hold_is_over_if_live_replicas_exist_and_none_holds(leases: list[dict[str, Any]], over: bool) -> None:
    async def found(*_: Any, **__: Any) -> Any:
        return SimpleNamespace(items=[lease(**options) for options in leases])

    context: Any = SimpleNamespace(client=SimpleNamespace(list=found), stores=SimpleNamespace(secrets=Store(SECRETS)))
    holds = Holds(context, Gateway(url="https://api.example.org", ca=b"", namespace="kplane-gateway"))
    body = {"kind": "ControlPlane", "apiVersion": CONTROL_PLANES.api_version, "metadata": {"name": "acme", "uid": UID}}
    assert await holds.are_over(ControlPlane.model_validate({**body, "spec": {}})) is over


def change(path: str, *, seconds: float) -> dict[str, str]:
    began = datetime.now(UTC) - timedelta(seconds=seconds)
    return {"method": "POST", "path": path, "client": "192.0.2.7", "began": began.isoformat()}


@pytest.mark.parametrize(
    ("in_flight", "message"),
    [
        (None, "at replicas busy of the gateway, changes are still in flight"),
        (
            {"count": 3, "oldest": [change("/a", seconds=61), change(f"/x\x1b{'y' * 500}", seconds=3)]},
            r"busy, 3 changes are in flight: POST /a of client 192\.0\.2\.7 for \d+ s, POST /x\?y{127} of .* 1 more",
        ),
        ({"count": 1, "oldest": []}, "at replica busy, 1 change is in flight, which began less than some seconds ago"),
    ],
    ids=["not named", "named", "too young"],
)
async def test_stop_writes_error_names_replicas_and_changes_in_flight(in_flight: Any, message: str) -> None:
    leases = [
        lease(name="quiet", holds=True),
        lease(name="busy", in_flight=in_flight),
        lease(name="gone", age_seconds=60.0),
    ]

    async def patch(*_: Any, **__: Any) -> dict[str, Any]:
        return {"metadata": {"name": "controlplane-acme", "namespace": "kplane-gateway"}}

    async def found(*_: Any, **__: Any) -> Any:
        return SimpleNamespace(items=leases)

    context: Any = SimpleNamespace(
        gateway=Gateway(url="https://api.example.org", ca=b"", namespace="kplane-gateway"),
        client=SimpleNamespace(list=found, patch=patch),
        stores=SimpleNamespace(secrets=SimpleNamespace(apply=lambda _: None)),
    )
    cutter = Cutter(context, homes=cast("Any", None))
    body = {"kind": "ControlPlane", "apiVersion": CONTROL_PLANES.api_version, "metadata": {"name": "acme", "uid": UID}}
    control_plane = ControlPlane.model_validate({**body, "spec": {}})
    with pytest.raises(ConditionError, match=message):
        await cutter.stop_writes(control_plane, cast("Any", None), seconds=0.1)


@pytest.mark.parametrize(
    ("served", "expired", "followed"),
    [
        ([41], 0, True),
        ([41, 40], 0, False),
        ([40], 0, False),
        ([], 0, False),
        # The Envoy of a controller that hangs serves its last configuration after the Lease has expired.
        ([41, 40], 1, False),
        ([41, 41], 1, False),
    ],
)
async def test_followed_is_true_if_every_replica_serves_the_secret(
    served: list[int], expired: int, followed: bool
) -> None:
    """`expired` is the number of the last replicas whose Leases have expired."""
    live = len(served) - expired
    leases = [lease(age_seconds=1.0 if number < live else 60.0) for number in range(len(served))]
    for replica_lease, version in zip(leases, served, strict=True):
        replica_lease["metadata"]["annotations"][SERVED_ANNOTATION] = json.dumps({"secrets": str(version)})

    async def found(*_: Any, **__: Any) -> Any:
        return SimpleNamespace(items=leases)

    secrets = Store(SECRETS)
    metadata = {"name": gateway_secret_name("acme"), "namespace": "kplane-gateway", "uid": "1", "resourceVersion": "41"}
    secrets.apply({"metadata": metadata})
    context: Any = SimpleNamespace(client=SimpleNamespace(list=found), stores=SimpleNamespace(secrets=secrets))
    holds = Holds(context, Gateway(url="https://api.example.org", ca=b"", namespace="kplane-gateway"))
    body = {"kind": "ControlPlane", "apiVersion": CONTROL_PLANES.api_version, "metadata": {"name": "acme", "uid": UID}}
    assert await holds.followed(ControlPlane.model_validate({**body, "spec": {}}), seconds=0.0) is followed
