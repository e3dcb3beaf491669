"""A hold counts when each gateway that is there has confirmed it, and at least one is there."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from kplane.api import ControlPlane
from kplane.api.names import HOLDS_ANNOTATION
from kplane.controlplane_operator.controlplanes.migration.hold import Holds
from kplane.controlplane_operator.gateway import Gateway
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.controlplane_operator.watch.cache import Store
from kplane.provider.client.resources import SECRETS

UID = "b1946ac9-2f3a-4a3e-8d4c-6a5f0c7b8e11"


def lease(*, age_seconds: float = 1.0, holds: bool = False) -> dict[str, Any]:
    renewed = datetime.now(UTC) - timedelta(seconds=age_seconds)
    annotations = {HOLDS_ANNOTATION: json.dumps({UID: "2026-01-01"})} if holds else {}
    return {
        "metadata": {"name": "replica", "annotations": annotations},
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
async def test_a_hold_is_over_when_a_gateway_says_so_and_none_holds(leases: list[dict[str, Any]], over: bool) -> None:
    async def found(*_: Any, **__: Any) -> Any:
        return SimpleNamespace(items=[lease(**each) for each in leases])

    context: Any = SimpleNamespace(client=SimpleNamespace(list=found), stores=SimpleNamespace(secrets=Store(SECRETS)))
    holds = Holds(context, Gateway(url="https://api.example.org", ca=b"", namespace="kplane-gateway"))
    body = {"kind": "ControlPlane", "apiVersion": CONTROL_PLANES.api_version, "metadata": {"name": "acme", "uid": UID}}
    assert await holds.are_over(ControlPlane.model_validate({**body, "spec": {}})) is over
