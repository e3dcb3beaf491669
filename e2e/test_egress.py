"""Tenants' API servers connect to their etcd, and to what their class allows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

import pytest

from e2e.installation import NAMESPACE
from e2e.kubectl import Kubectl, KubectlFailed
from e2e.platform import Platform
from e2e.tenant import Tenant
from e2e.waiting import eventually

_CLOSED: Final = "allowedDestinations-of-the-class-of-this-control-plane-are-empty"
_REFUSED: Final = "allowedDestinations of the class of this control plane have no"
_TEST_NETWORK: Final = "203.0.113.0/24"
_PROBE: Final = (
    "import json, socket, sys",
    "def tried(target):",
    "    host, _, port = target.rpartition(':')",
    "    try:",
    "        socket.create_connection((host, int(port)), timeout=5).close()",
    "    except OSError as error:",
    "        return str(error)",
    "    return 'connected'",
    "print(json.dumps({name: tried(target) for name, target in json.loads(sys.argv[1]).items()}))",
)


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


def _from_pod(kubectl: Kubectl, targets: Mapping[str, str], *, of: str, namespace: str = NAMESPACE) -> dict[str, str]:
    """Connect to each target from a pod that has Python."""
    printed = kubectl("exec", of, "-n", namespace, "--", "python3", "-c", "\n".join(_PROBE), json.dumps(targets))
    found: dict[str, str] = json.loads(printed)
    return found


def _beside_api_server(kubectl: Kubectl, targets: Mapping[str, str], *, tenant: Tenant) -> dict[str, str]:
    """Connect to each target from the network of a tenant's API server, whose image has no other program."""
    namespace = f"kplane-cp-{tenant.name}"
    [pod] = kubectl.items("pods", "-n", namespace, "-l", "app.kubernetes.io/component=kube-apiserver")
    image = kubectl(
        *("get", "deployment", "kplane-operator", "-n", NAMESPACE),
        "-o=jsonpath={.spec.template.spec.containers[0].image}",
    )
    where = (pod["metadata"]["name"], "-n", namespace)
    kubectl(
        *("debug", *where, "--container=probe", f"--image={image}", "--image-pull-policy=IfNotPresent"),
        *("--profile=restricted", "--", "python3", "-c", "\n".join(_PROBE), json.dumps(targets)),
    )
    printed = eventually("the probe's answer", lambda: kubectl("logs", *where, "--container=probe").strip())
    found: dict[str, str] = json.loads(printed)
    return found


@pytest.mark.k8s_needs("pods")
def test_packets_arrive_at_etcd_and_dns_only(kubectl: Kubectl, acme: Tenant, globex: Tenant) -> None:
    """The NetworkPolicies, which kind's network plugin enforces since kind 0.24.

    They bound no traffic to the pod's own node: this is Kubernetes' rule. So kubelets and the management API are kept
    from tenants by the API server itself, as the other test shows.
    """
    if "kindnet" not in kubectl("get", "daemonsets", "-n", "kube-system", "-o=name"):
        pytest.skip("the network plugin of this cluster is not kindnet, so it may not enforce NetworkPolicies")

    def address(selector: str, namespace: str) -> str:
        pod, *_ = kubectl.items("pods", "-n", namespace, "-l", selector)
        return str(pod["status"]["podIP"])

    etcd = address("app.kubernetes.io/component=etcd", NAMESPACE)
    neighbour = address("app.kubernetes.io/component=kube-apiserver", f"kplane-cp-{globex.name}")
    dns = address("k8s-app=kube-dns", "kube-system")
    allowed = {"etcd": f"{etcd}:2379", "dns": f"{dns}:53"}
    forbidden = {
        "another tenant": f"{neighbour}:6443",
        "peers of etcd": f"{etcd}:2380",
        "metrics of DNS": f"{dns}:9153",
        "DNS elsewhere": f"{neighbour}:53",
        "metadata": "169.254.169.254:80",
    }
    found = _beside_api_server(kubectl, {**allowed, **forbidden}, tenant=acme)
    assert {name for name, result in found.items() if result == "connected"} == set(allowed)
    # They are there, for those who may reach them.
    from_operator = _from_pod(kubectl, {**allowed, **forbidden}, of="deployment/kplane-operator")
    assert {"etcd", "dns", "another tenant", "metrics of DNS"} <= {
        name for name, result in from_operator.items() if result == "connected"
    }
    from_mcm = _from_pod(kubectl, {"etcd": allowed["etcd"]}, of="statefulset/kplane-mcm")
    assert from_mcm["etcd"] != "connected"
