"""Deletion of an adopted control plane whose API server is away."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import cast
from unittest.mock import AsyncMock, Mock

import pytest

from kplane.api import ControlPlane
from kplane.controlplane_operator.backends.adopted import AdoptedProvisioner
from kplane.controlplane_operator.backends.cluster_claims import ClusterClaims
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.watch.stores import Stores
from kplane.provider import NotFound


@pytest.mark.parametrize(
    ("since", "given_up"),
    [(timedelta(seconds=-10), False), (timedelta(seconds=-25), True), (timedelta(days=2), True)],
)
async def test_failed_revocation_is_retried_until_20_seconds_or_a_future_time(
    since: timedelta, *, given_up: bool
) -> None:
    stores, events = Stores(), Mock()
    missing = AsyncMock(side_effect=NotFound(404, "NotFound", "no Secret"))
    secrets = SimpleNamespace(open=AsyncMock(), is_lost=lambda _: False)
    context = SimpleNamespace(stores=stores, events=events, secrets=secrets, client=SimpleNamespace(get=missing))
    provisioner = AdoptedProvisioner(
        cast("OperatorContext", context), default_credentials=None, clusters=ClusterClaims(stores)
    )
    deletion_time = (datetime.now(UTC) + since).isoformat()
    control_plane = ControlPlane.model_validate(
        {
            "metadata": {"name": "acme", "uid": "u", "deletionTimestamp": deletion_time},
            "spec": {"endpointRef": {"name": "gone"}},
            "status": {"endpoint": "https://10.0.0.1:6443"},
        }
    )
    if given_up:
        await provisioner.shut_down(control_plane)
        assert events.record.call_args.kwargs["reason"] == "CredentialsNotRevoked"
    else:
        with pytest.raises(ConditionError, match="the published identity of the controllers is gone"):
            await provisioner.shut_down(control_plane)
