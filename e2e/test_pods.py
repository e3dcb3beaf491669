"""Control planes as Pods: their objects, their rights, and the loss of Pods."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from e2e.kubectl import Kubectl, KubectlFailed, Object
from e2e.platform import Platform
from e2e.tenant import Tenant
from e2e.waiting import eventually

pytestmark = pytest.mark.k8s_needs("pods")

_PASSING = frozenset({"events", "events.events.k8s.io", "leases.coordination.k8s.io", "pods.metrics.k8s.io"})
"""Kinds whose objects other controllers create and delete."""


@pytest.fixture(scope="module")
def dedicated(module_platform: Platform) -> Tenant:
    """A dedicated control plane."""
    name = module_platform.name("own")
    module_platform.create("ControlPlane", name, mode="Dedicated", deletionPolicy="Destroy")
    module_platform.becomes_ready("ControlPlane", name)
    return module_platform.tenant(name)


@pytest.fixture(scope="module", params=["virtual", "dedicated"])
def tenant(request: pytest.FixtureRequest, dedicated: Tenant, tenants: tuple[Tenant, Tenant]) -> Tenant:
    """A control plane of each mode."""
    return tenants[0] if request.param == "virtual" else dedicated


def _namespace(tenant: Tenant) -> str:
    return f"kplane-cp-{tenant.name}"


def test_pods_meet_restricted_standard_and_have_no_token(kubectl: Kubectl, tenant: Tenant) -> None:
    """The Pods have no token of the management cluster, no host network, and no volumes of the host."""
    namespace = kubectl.get("namespace", _namespace(tenant))
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    pods = kubectl.items("pods", "-n", _namespace(tenant))
    assert pods
    for pod in pods:
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert not spec.get("hostNetwork")
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not [volume for volume in spec["volumes"] if "hostPath" in volume or "projected" in volume]
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"]["drop"] == ["ALL"]
            assert {"cpu", "memory"} <= set(container["resources"]["requests"])
            # Keys are in files of Secrets, because `kubectl describe` shows arguments and variables.
            assert "PRIVATE KEY" not in str(container)


def test_each_program_has_network_policy_and_disruption_budget(kubectl: Kubectl, tenant: Tenant) -> None:
    """With a PodDisruptionBudget, a drain evicts a single Pod at a time."""
    flags = ("-n", _namespace(tenant))
    programs = kubectl.names("deployments,statefulsets", *flags)
    assert "kube-apiserver" in programs
    assert kubectl.names("networkpolicies", *flags) == programs
    assert kubectl.names("poddisruptionbudgets", *flags) == programs
    assert kubectl.names("services", *flags) == programs
    for obj in kubectl.items("deployments,statefulsets,services,networkpolicies", *flags):
        assert obj["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "kplane"


def test_dedicated_etcd_stores_data_on_bound_claim(kubectl: Kubectl, dedicated: Tenant) -> None:
    [claim] = kubectl.items("persistentvolumeclaims", "-n", _namespace(dedicated))
    assert claim["metadata"]["name"] == "data-etcd-0"
    assert claim["status"]["phase"] == "Bound"


def _namespaced(kubectl: Kubectl, *, but: str) -> set[tuple[str, str, str]]:
    """Return kind, namespace and name of the objects in all namespaces except `but`."""
    printed = kubectl("api-resources", "--namespaced", "--verbs=list", "--output=name")
    resources = sorted(set(printed.split()) - _PASSING)
    objects = kubectl.items(",".join(resources), "--all-namespaces")
    keys = {(obj["kind"], obj["metadata"]["namespace"], obj["metadata"]["name"]) for obj in objects}
    return {key for key in keys if key[1] != but}


def test_control_plane_creates_objects_only_in_its_namespace(platform: Platform) -> None:
    """The deletion of the control plane removes the namespace and the volumes."""
    name = platform.name("bounded")
    before = _namespaced(platform.kubectl, but=f"kplane-cp-{name}")
    platform.create("ControlPlane", name, mode="Dedicated", deletionPolicy="Destroy")
    platform.becomes_ready("ControlPlane", name)
    assert _namespaced(platform.kubectl, but=f"kplane-cp-{name}") - before == set()
    platform.delete("ControlPlane", name)
    assert platform.kubectl.find("namespace", f"kplane-cp-{name}") is None
    volumes = platform.kubectl.items("persistentvolumes")
    claims = {
        volume["spec"].get("claimRef", {}).get("namespace")
        for volume in volumes
        if volume["status"]["phase"] == "Bound"
    }
    assert f"kplane-cp-{name}" not in claims


@contextmanager
def _asking(tenant: Tenant) -> Iterator[list[str]]:
    """Send requests to the tenant's API server continuously, each on a new connection, and yield the errors.

    A request without an answer within 20 s counts as an outage, even on a busy machine. Only the rollout may take long.
    """
    errors: list[str] = []
    answers, end = 0, threading.Event()

    def ask() -> None:
        nonlocal answers
        while not end.is_set():
            try:
                # kubectl retries some failures, so the whole command has a limit too.
                tenant.kubectl("get", "--raw=/api/v1/namespaces/default", "--request-timeout=20s", timeout_seconds=30.0)
                answers += 1
            except KubectlFailed as error:
                errors.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        eventually("an answer", lambda: errors or answers)
        before = answers
        yield errors
        during = answers - before
    finally:
        end.set()
        thread.join()
    assert errors or during > 0, "nothing was answered meanwhile"


def test_rollout_restart_of_api_server_fails_no_request(kubectl: Kubectl, tenant: Tenant) -> None:
    """The new Pod serves before the old Pod ends."""
    tenant.keep("before", "the rollout")
    deployment = ("deployment/kube-apiserver", "-n", _namespace(tenant))
    with _asking(tenant) as errors:
        kubectl("rollout", "restart", *deployment)
        kubectl("rollout", "status", *deployment, "--timeout=300s", timeout_seconds=310)
        eventually("one Pod", lambda: kubectl.names("pods", *_api_servers(tenant)), lambda pods: len(pods) == 1)
    assert errors == []
    assert tenant.kept("before") == "the rollout"


def _api_servers(tenant: Tenant) -> tuple[str, ...]:
    return ("-n", _namespace(tenant), "-l", "app.kubernetes.io/component=kube-apiserver")


def _identities(pods: list[Object]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def test_deleted_api_server_pod_is_replaced(kubectl: Kubectl, acme: Tenant, session_platform: Platform) -> None:
    """Controllers continue, and the endpoints in the status stay the same."""
    acme.keep("before", "the loss")
    status = session_platform.get("ControlPlane", acme.name)["status"]
    former_uids = _identities(kubectl.items("pods", *_api_servers(acme)))
    kubectl("delete", "pods", *_api_servers(acme), "--grace-period=0", "--force")
    eventually(
        "another Pod",
        lambda: _identities(kubectl.items("pods", *_api_servers(acme))),
        lambda found: bool(found) and not found & former_uids,
    )
    # The container answers a little longer than its Pod exists, if the Pod was deleted by force.
    kubectl("wait", "pods", *_api_servers(acme), "--for=condition=Ready", "--timeout=120s", timeout_seconds=130)
    acme.answers()
    assert acme.kept("before") == "the loss"
    session_platform.becomes_ready("ControlPlane", acme.name)
    after = session_platform.get("ControlPlane", acme.name)["status"]
    assert after["endpoints"] == status["endpoints"]
    acme.add_namespace("after-the-loss")


def test_data_survive_deletion_of_etcd_pod(kubectl: Kubectl, dedicated: Tenant) -> None:
    """A deleted Pod of etcd is replaced on the same volume."""
    dedicated.keep("before", "the loss")
    flags = ("-n", _namespace(dedicated))
    former_uid = kubectl.get("pod", "etcd-0", *flags)["metadata"]["uid"]
    kubectl("delete", "pod", "etcd-0", *flags, "--wait=false")
    eventually(
        "another etcd",
        lambda: kubectl.find("pod", "etcd-0", *flags),
        lambda pod: pod is not None and pod["metadata"]["uid"] != former_uid,
        timeout_seconds=180,
    )
    kubectl("wait", "pod/etcd-0", *flags, "--for=condition=Ready", "--timeout=180s", timeout_seconds=190)

    def is_kept_on() -> bool:
        # The Service has no address until the readiness probe of the only API server reaches etcd.
        dedicated.keep("after", "the loss")
        return True

    value = eventually("the data", lambda: dedicated.kept("before"), timeout_seconds=180)
    assert value == "the loss"
    eventually("it is written to again", is_kept_on, timeout_seconds=180)
