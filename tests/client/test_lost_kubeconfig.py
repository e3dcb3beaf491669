"""A lost kubeconfig Secret is waited for. A Secret that was never published is an error."""

from __future__ import annotations

import base64
import re
from typing import Any, cast

import pytest

import kplane.client.control_planes
from kplane.client import ControlPlanes, NoKubeconfig
from kplane.provider import Client, NotFound
from kplane.provider.client.resources import SECRETS

KEYS = ("kubeconfig", "kubeconfig-external")
READY = {"type": "Ready", "status": "True", "reason": "Reconciled", "message": "m"}
READY["lastTransitionTime"] = "2026-11-26T12:00:00Z"


class Cluster:
    """A cluster with a control plane whose Secret appears after `after` reads."""

    def __init__(
        self, *, keys: tuple[str, ...] = ("kubeconfig", "kubeconfig-external"), after: int, **status: Any
    ) -> None:
        self._keys, self._left = keys, after
        self._status = {"phase": "Ready", "conditions": [READY], **status}

    async def get(self, resource: Any, name: str, *, namespace: str | None = None) -> dict[str, Any]:
        del namespace
        if resource is not SECRETS:
            return {"metadata": {"name": name}, "spec": {}, "status": self._status}
        self._left -= 1
        if self._left >= 0:
            raise NotFound(404, "NotFound", name, details={"name": name})
        return {"data": {key: base64.b64encode(b"text").decode() for key in self._keys}}

    def connect(self) -> ControlPlanes:
        return ControlPlanes(cast("Client", self))


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({}, "has published no kubeconfig yet"),
        (
            {"endpoint": "https://a"},
            "kplane-cp-acme/controlplane-acme-kubeconfig is gone, and the operator has not written",
        ),
        ({"endpoint": "https://a", "phase": "Hibernated"}, "is gone; .* kplane wake acme"),
    ],
)
async def test_error_of_missing_kubeconfig_names_cause(status: dict[str, Any], said: str) -> None:
    with pytest.raises(NoKubeconfig, match=said):
        await Cluster(after=9, **status).connect().kubeconfig("acme")


async def test_error_of_secret_without_key_names_key() -> None:
    control_planes = Cluster(after=0, keys=("kubeconfig",), endpoint="https://a").connect()
    assert await control_planes.kubeconfig("acme", internal=True) == "text"
    with pytest.raises(NoKubeconfig, match=re.escape("has no key kubeconfig-external")):
        await control_planes.kubeconfig("acme")


async def test_restored_kubeconfig_waits_for_lost_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kplane.client.control_planes, "_POLL_SECONDS", 0.0)
    assert await Cluster(after=5, endpoint="https://a").connect().restored_kubeconfig("acme") == "text"


async def test_restored_kubeconfig_times_out_if_secret_stays_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kplane.client.control_planes, "_POLL_SECONDS", 0.0)
    control_planes = Cluster(after=10**9, endpoint="https://a").connect()
    with pytest.raises(NoKubeconfig, match="is gone"):
        await control_planes.restored_kubeconfig("acme", timeout_seconds=0.1)


async def test_restored_kubeconfig_does_not_wait_for_unpublished_secret() -> None:
    with pytest.raises(NoKubeconfig, match="has published no kubeconfig yet"):
        await Cluster(after=10**9).connect().restored_kubeconfig("acme", timeout_seconds=60)
