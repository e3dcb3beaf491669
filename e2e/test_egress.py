"""Tenants' API servers connect only to the destinations of their class. test_packets.py covers the NetworkPolicies."""

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


def test_tenant_cannot_reach_kubelet_outside_allowed_destinations(platform: Platform) -> None:
    """The tenant creates a Node with an arbitrary address, and requests its kubelet.

    Without allowed destinations, the API server has no proxy. With other destinations, the proxy refuses the address.
    """
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
    patch = json.dumps({"spec": {"allowedDestinations": [{"cidr": _TEST_NETWORK, "ports": [10250]}]}})
    platform.kubectl("patch", "controlplaneclass", name, "--type=merge", f"--patch={patch}")
    eventually("the proxy answers", kubelet, lambda said: _REFUSED in said, timeout_seconds=300.0)
