"""Tenants' API servers connect to what their class allows. What a NetworkPolicy does is in test_packets.py."""

from __future__ import annotations

import json
from typing import Final

from e2e.kubectl import KubectlFailed
from e2e.platform import Platform
from e2e.waiting import eventually

_CLOSED: Final = "allowedDestinations-of-the-class-of-this-control-plane-are-empty"
_REFUSED: Final = "allowedDestinations of the class of this control plane have no"
_TEST_NETWORK: Final = "203.0.113.0/24"


def _node(address: str) -> str:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "machine"}}
    status = {
        "addresses": [{"type": "InternalIP", "address": address}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
    }
    return json.dumps({**node, "status": status})


def test_a_tenant_reaches_no_kubelet_unless_its_class_allows_it(platform: Platform) -> None:
    """A Node that the tenant made up leads its API server nowhere; then it leads to the proxy, which refuses it."""
    name = platform.name("walled")
    platform.create("ControlPlaneClass", name, deletionPolicy="Destroy")
    platform.create("ControlPlane", name, classRef={"name": name})
    platform.becomes_ready("ControlPlane", name)
    tenant = platform.tenant(name)
    tenant.kubectl("create", "-f", "-", stdin=_node("192.0.2.10"))
    tenant.kubectl("replace", "--subresource=status", "-f", "-", stdin=_node("192.0.2.10"))

    def kubelet() -> str:
        try:
            return tenant.kubectl("get", "--raw=/api/v1/nodes/machine/proxy/pods")
        except KubectlFailed as error:
            return str(error)

    assert _CLOSED in kubelet()
    allowed = json.dumps({"spec": {"allowedDestinations": [{"cidr": _TEST_NETWORK, "ports": [10250]}]}})
    platform.kubectl("patch", "controlplaneclass", name, "--type=merge", f"--patch={allowed}")
    eventually("the proxy answers", kubelet, lambda said: _REFUSED in said, timeout_seconds=300.0)
