"""The first pass over a control plane is interrupted before its final status: its namespace records the progress.

The status of an adopted control plane records the adopted cluster.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kplane.api.names import controllers_secret_name, kubeconfig_secret_name, management_namespace
from kplane.controlplane_operator.controlplanes.passes import Pass
from kplane.controlplane_operator.controlplanes.reconciler import ControlPlaneReconciler
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.data import owner_of
from kplane.pki.kubeconfig import config_of
from kplane.provider import ClusterConfig, Conflict
from kplane.provider.client.resources import NAMESPACES, SECRETS

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

Adopt = Callable[..., Awaitable[dict[str, Any]]]


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[], Awaitable[None]]], None]:
    """Interrupt the next pass over a control plane before its status, after a call of the registered function."""
    report = ControlPlaneReconciler._report
    meanwhile: dict[str, Callable[[], Awaitable[None]]] = {}

    async def cut_off(self: ControlPlaneReconciler, one: Pass) -> None:
        if (do := meanwhile.pop(one.control_plane.name, None)) is not None:
            await do()
            raise Conflict(409, "Conflict", "the pass is cut off")
        await report(self, one)

    monkeypatch.setattr(ControlPlaneReconciler, "_report", cut_off)
    return meanwhile.__setitem__


async def test_deletion_after_interrupted_first_pass_releases_etcd_prefix(field: Any, cut: Any) -> None:
    prefix, claims = "/clusters/unbegun/", list[bool]()
    async with field.handle.tenants_etcd.client() as etcd:

        async def delete() -> None:
            control_plane = await field.get("ControlPlane", "unbegun")
            assert not control_plane.get("status")
            owner = await owner_of(etcd, prefix)
            assert owner is None or owner.uid == control_plane["metadata"]["uid"]
            claims.append(owner is not None)
            await field.client.delete(CONTROL_PLANES, "unbegun")

        # An etcd that has just started may fail the first pass before the operator claims the prefix.
        while not any(claims):
            cut("unbegun", delete)
            await field.create("ControlPlane", "unbegun", deletionPolicy="Destroy")
            await field.gone(CONTROL_PLANES, "unbegun")
        assert await owner_of(etcd, prefix) is None
        assert await etcd.count(prefix) == 0
    await field.gone(NAMESPACES, management_namespace("unbegun"))


async def test_deletion_after_interrupted_first_pass_revokes_credentials(field: Any, adopt: Adopt, cut: Any) -> None:
    issued: list[ClusterConfig] = []

    async def delete() -> None:
        status = (await field.get("ControlPlane", "guest"))["status"]
        assert status["clusterUID"]
        assert "endpoint" not in status
        for name in (kubeconfig_secret_name("guest"), controllers_secret_name("guest")):
            secret = await field.client.get(SECRETS, name, namespace=management_namespace("guest"))
            issued.append(config_of(secret))
        await field.client.delete(CONTROL_PLANES, "guest")

    cut("guest", delete)
    await adopt("guest")
    await field.gone(CONTROL_PLANES, "guest")
    assert len(issued) == 2
    for config in issued:
        await field.eventually(lambda config=config: field.refuses(config))


async def test_adopted_control_plane_continues_after_interrupted_first_pass(field: Any, adopt: Adopt, cut: Any) -> None:
    async def nothing() -> None:
        status = (await field.get("ControlPlane", "visitor"))["status"]
        assert status["clusterUID"]
        assert "endpoint" not in status

    cut("visitor", nothing)
    await adopt("visitor")
    status = (await field.becomes("ControlPlane", "visitor", "Reconciled"))["status"]
    assert (status["deletionPolicy"], bool(status["claimedAddress"])) == ("Retain", True)
