"""Connections that kplane's NetworkPolicies allow, on a cluster that enforces NetworkPolicies.

By Kubernetes' rules, a NetworkPolicy does not restrict traffic between a pod and its own node. So only a cluster of
several nodes shows the policies for kubelets and the management API. test_egress.py shows that
tenants reach no kubelet.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Final

import pytest

from e2e.installation import NAMESPACE
from e2e.kubectl import Kubectl, Object
from e2e.packets import PORTS, Bystanders, pod_of, reached_beside, reached_from
from e2e.platform import Platform
from e2e.tenant import Tenant
from e2e.waiting import eventually

pytestmark = pytest.mark.k8s_needs("pods")

_ALLOWED_PORT: Final = PORTS[-1]
_METADATA: Final = {"metadata": "tcp/169.254.169.254/80", "metadata by TLS": "tcp/169.254.169.254/443"}
_ETCD_METRICS: Final = 2381


@pytest.fixture(scope="module")
def bystanders(installation: None, kubectl: Kubectl, module_platform: Platform) -> Iterator[Bystanders]:
    """Two pods beside kplane, on a cluster that enforces NetworkPolicies."""
    pods = Bystanders(kubectl, module_platform.name("bystanders"))
    try:
        pods.create()
        if not pods.policies_are_enforced():
            reason = "this cluster does not enforce NetworkPolicies: a pod that one closes was reached"
            if os.environ.get("E2E_POLICIES") == "enforced":
                pytest.fail(reason)
            pytest.skip(reason)
        yield pods
    finally:
        pods.delete()


@pytest.fixture(scope="module")
def dedicated(bystanders: Bystanders, module_platform: Platform) -> Tenant:
    """A dedicated control plane, whose class allows a single port of a bystander."""
    name = module_platform.name("own")
    destinations = [{"cidr": f"{bystanders.address}/32", "ports": [_ALLOWED_PORT]}]
    module_platform.create("ControlPlaneClass", name, deletionPolicy="Destroy", allowedDestinations=destinations)
    module_platform.create("ControlPlane", name, classRef={"name": name}, mode="Dedicated")
    module_platform.becomes_ready("ControlPlane", name)
    return module_platform.tenant(name)


def _namespace(tenant: Tenant) -> str:
    return f"kplane-cp-{tenant.name}"


def _tcp(pod: Object, port: int) -> str:
    return f"tcp/{pod['status']['podIP']}/{port}"


def _dns(kubectl: Kubectl) -> dict[str, str]:
    address = kubectl.items("pods", "-n", "kube-system", "-l", "k8s-app=kube-dns")[0]["status"]["podIP"]
    return {"DNS": f"udp/{address}/53", "DNS by TCP": f"tcp/{address}/53"}


def _metrics_of_dns(kubectl: Kubectl) -> dict[str, str]:
    return {"metrics of DNS": _dns(kubectl)["DNS by TCP"].removesuffix("/53") + "/9153"}


def _other_nodes(kubectl: Kubectl, *, of: Object) -> dict[str, str]:
    """Return targets for kubelets and the management API on all nodes except the node of the pod."""
    targets = {}
    for node in kubectl.items("nodes"):
        name, addresses = node["metadata"]["name"], node["status"]["addresses"]
        address = next(entry["address"] for entry in addresses if entry["type"] == "InternalIP")
        if name != of["spec"]["nodeName"]:
            targets[f"kubelet of {name}"] = f"tcp/{address}/10250"
            if "node-role.kubernetes.io/control-plane" in node["metadata"]["labels"]:
                targets["management API"] = f"tcp/{address}/6443"
    return targets


def _shared_etcd(kubectl: Kubectl) -> dict[str, str]:
    pod = pod_of(kubectl, "etcd", namespace=NAMESPACE)
    ports = {"shared etcd": 2379, "its peers": 2380, "its metrics": _ETCD_METRICS}
    return {name: _tcp(pod, port) for name, port in ports.items()}


def _dedicated_pods(kubectl: Kubectl, tenant: Tenant) -> tuple[Object, Object, Object]:
    api_server, etcd, proxy = (
        pod_of(kubectl, component, namespace=_namespace(tenant))
        for component in ("kube-apiserver", "etcd", "egress-proxy")
    )
    return api_server, etcd, proxy


def _all_reached(kubectl: Kubectl, targets: Mapping[str, str], *, but: set[str]) -> None:
    """Check that the targets except `but` answer the operator, which may connect to any address."""

    def reached() -> set[str]:
        return reached_from(kubectl, targets, of="deployment/kplane-operator", namespace=NAMESPACE)

    eventually("an answer of each target", reached, lambda found: found == set(targets) - but)


def test_tenant_api_server_reaches_only_shared_etcd_and_dns(
    bystanders: Bystanders, kubectl: Kubectl, acme: Tenant, globex: Tenant
) -> None:
    """Even a compromised API server reaches only the client port of the shared etcd, and the pods of DNS."""
    own = pod_of(kubectl, "kube-apiserver", namespace=_namespace(acme))
    neighbour = pod_of(kubectl, "kube-apiserver", namespace=_namespace(globex))
    targets = {
        **_shared_etcd(kubectl),
        **_dns(kubectl),
        **_metrics_of_dns(kubectl),
        **bystanders.targets(),
        **_other_nodes(kubectl, of=own),
        "another tenant": _tcp(neighbour, 6443),
    }
    _all_reached(kubectl, targets, but={"its peers", "its metrics"})
    reached_names = reached_beside(kubectl, {**targets, **_METADATA}, pod=own)
    assert reached_names == {"shared etcd", *_dns(kubectl)}


def test_dedicated_pods_reach_only_own_and_allowed_targets(
    bystanders: Bystanders, kubectl: Kubectl, dedicated: Tenant, acme: Tenant
) -> None:
    """The API server reaches its etcd and proxy, the proxy allowed destinations, and etcd only itself."""
    api_server, etcd, proxy = _dedicated_pods(kubectl, dedicated)
    [egress] = proxy["spec"]["containers"][0]["ports"]
    targets = {
        **_shared_etcd(kubectl),
        **_dns(kubectl),
        **_metrics_of_dns(kubectl),
        **bystanders.targets(),
        "own etcd": _tcp(etcd, 2379),
        "peers of it": _tcp(etcd, 2380),
        "metrics of it": _tcp(etcd, _ETCD_METRICS),
        "own proxy": _tcp(proxy, egress["containerPort"]),
        "own API server": _tcp(api_server, 6443),
        "another tenant": _tcp(pod_of(kubectl, "kube-apiserver", namespace=_namespace(acme)), 6443),
    }
    assert _reached_of(kubectl, targets, api_server) == {"own etcd", "own proxy", "own API server", *_dns(kubectl)}
    assert _reached_of(kubectl, targets, proxy) == {f"bystander:{_ALLOWED_PORT}", "own proxy", *_dns(kubectl)}
    assert _reached_of(kubectl, targets, etcd) == {"own etcd", "peers of it", "metrics of it"}


def _reached_of(kubectl: Kubectl, targets: Mapping[str, str], pod: Object) -> set[str]:
    """Connect from a tenant's pod. A pod always reaches itself."""
    return reached_beside(kubectl, {**targets, **_other_nodes(kubectl, of=pod), **_METADATA}, pod=pod)


def test_bystanders_and_mcm_reach_only_tenant_api_servers(
    bystanders: Bystanders, kubectl: Kubectl, dedicated: Tenant, acme: Tenant
) -> None:
    """Bystanders and mcm reach no etcd and no egress proxy. Bystanders reach no metrics."""
    api_server, etcd, proxy = _dedicated_pods(kubectl, dedicated)
    [egress] = proxy["spec"]["containers"][0]["ports"]
    [operator] = kubectl.items("pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=operator")
    mcm = pod_of(kubectl, "mcm", namespace=NAMESPACE)
    tenants = {
        "dedicated tenant": _tcp(api_server, 6443),
        "virtual tenant": _tcp(pod_of(kubectl, "kube-apiserver", namespace=_namespace(acme)), 6443),
    }
    etcds = {
        **_shared_etcd(kubectl),
        **{f"own etcd, {port}": _tcp(etcd, port) for port in (2379, 2380, _ETCD_METRICS)},
        "own proxy": _tcp(proxy, egress["containerPort"]),
    }
    metrics = {
        "metrics of the operator": _tcp(operator, 8080),
        "metrics of mcm": _tcp(mcm, 8081),
    }
    assert bystanders.reach({**tenants, **etcds, **metrics}) == set(tenants)
    reached_names = reached_from(kubectl, {**tenants, **etcds}, of="statefulset/kplane-mcm", namespace=NAMESPACE)
    assert reached_names == set(tenants)
