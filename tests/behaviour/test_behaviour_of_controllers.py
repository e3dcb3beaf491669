"""Behaviour of Kubernetes controllers that users rely on, on a virtual control plane with an instance of mcm.

The profile is Nodeless, the default. The cluster has no nodes, so the tests act as the kubelet.
"""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kplane.provider import Client, ClusterConfig, Invalid
from kplane.provider.errors import Forbidden

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(240)]

Object = dict[str, Any]

DEPLOYMENT, REPLICA_SET, STATEFUL_SET = "apps/v1/Deployment", "apps/v1/ReplicaSet", "apps/v1/StatefulSet"
JOB, CRON_JOB = "batch/v1/Job", "batch/v1/CronJob"
CLAIM, CONFIG_MAP, NAMESPACE, POD = "v1/PersistentVolumeClaim", "v1/ConfigMap", "v1/Namespace", "v1/Pod"
REQUEST = "certificates.k8s.io/v1/CertificateSigningRequest"
HOLD = "example.com/hold"


def pod_template(app: str, *, image: str = "app:1", **spec: Any) -> Object:
    return {"metadata": {"labels": {"app": app}}, "spec": {"containers": [{"name": app, "image": image}], **spec}}


def workload(app: str, *, replicas: int, **spec: Any) -> Object:
    template = spec.pop("template", None) or pod_template(app)
    return {"replicas": replicas, "selector": {"matchLabels": {"app": app}}, "template": template, **spec}


def owned_by(owner: Object) -> Object:
    kind = {"apiVersion": owner["apiVersion"], "kind": owner["kind"]}
    return {**kind, "blockOwnerDeletion": True, "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}


def true_conditions(found: Object) -> set[str]:
    return {
        condition["type"]
        for condition in found.get("status", {}).get("conditions", ())
        if condition["status"] == "True"
    }


async def test_namespace_terminates_after_last_finalizer_of_its_objects(tenant: Any) -> None:
    await tenant.create(CONFIG_MAP, "held", metadata={"finalizers": [HOLD]})
    await tenant.create(CONFIG_MAP, "free")
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = await tenant.create(CLAIM, "data", spec=spec)
    assert claim["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]  # which a controller removes
    await tenant.delete(NAMESPACE, tenant.namespace)
    remaining = "NamespaceFinalizersRemaining"
    namespace = await tenant.settled(NAMESPACE, tenant.namespace, lambda found: remaining in true_conditions(found))
    assert namespace["status"]["phase"] == "Terminating"
    assert await tenant.names(CONFIG_MAP) == ["held"]
    await tenant.patch(CONFIG_MAP, "held", {"metadata": {"finalizers": None}})
    await tenant.eventually(lambda: tenant.is_gone(NAMESPACE, tenant.namespace))


async def test_foreground_deletion_removes_owner_after_dependents(tenant: Any) -> None:
    owner = await tenant.create(CONFIG_MAP, "owner")
    metadata = {"ownerReferences": [owned_by(owner)], "finalizers": [HOLD]}
    await tenant.create(CONFIG_MAP, "dependent", metadata=metadata)
    await tenant.delete(CONFIG_MAP, "owner", propagation="Foreground")
    await tenant.settled(CONFIG_MAP, "dependent", lambda found: "deletionTimestamp" in found["metadata"])
    assert (await tenant.get(CONFIG_MAP, "owner"))["metadata"]["finalizers"] == ["foregroundDeletion"]
    await tenant.patch(CONFIG_MAP, "dependent", {"metadata": {"finalizers": None}})
    await tenant.eventually(lambda: tenant.is_gone(CONFIG_MAP, "owner"))


async def test_orphan_deletion_keeps_dependents_without_owner(tenant: Any) -> None:
    owner = await tenant.create(CONFIG_MAP, "owner")
    await tenant.create(CONFIG_MAP, "dependent", metadata={"ownerReferences": [owned_by(owner)]})
    await tenant.delete(CONFIG_MAP, "owner", propagation="Orphan")
    await tenant.eventually(lambda: tenant.is_gone(CONFIG_MAP, "owner"))
    assert "ownerReferences" not in (await tenant.get(CONFIG_MAP, "dependent"))["metadata"]


async def test_background_deletion_removes_owner_before_dependents(tenant: Any) -> None:
    owner = await tenant.create(CONFIG_MAP, "owner")
    metadata = {"ownerReferences": [owned_by(owner)], "finalizers": [HOLD]}
    await tenant.create(CONFIG_MAP, "dependent", metadata=metadata)
    await tenant.delete(CONFIG_MAP, "owner", propagation="Background")
    assert await tenant.is_gone(CONFIG_MAP, "owner")
    await tenant.settled(CONFIG_MAP, "dependent", lambda found: "deletionTimestamp" in found["metadata"])
    await tenant.patch(CONFIG_MAP, "dependent", {"metadata": {"finalizers": None}})
    await tenant.eventually(lambda: tenant.is_gone(CONFIG_MAP, "dependent"))


async def test_resource_quota_counts_and_limits_objects(tenant: Any) -> None:
    quota, counted = "v1/ResourceQuota", "count/services"
    await tenant.create(quota, "few", spec={"hard": {counted: "1"}})
    await tenant.settled(quota, "few", lambda found: found.get("status", {}).get("used") == {counted: "0"})
    service = {"ports": [{"port": 80}], "clusterIP": "None"}
    await tenant.create("v1/Service", "one", spec=service)
    assert (await tenant.get(quota, "few"))["status"]["used"] == {counted: "1"}
    with pytest.raises(Forbidden, match="exceeded quota"):
        await tenant.create("v1/Service", "two", spec=service)
    # Only the controller decreases the count after a deletion. Admission only increases it.
    await tenant.delete("v1/Service", "one")
    await tenant.settled(quota, "few", lambda found: found["status"]["used"] == {counted: "0"})
    await tenant.create("v1/Service", "two", spec=service)


async def test_namespace_gets_service_account_and_root_ca_again(tenant: Any) -> None:
    kinds = {"v1/ServiceAccount": "default", CONFIG_MAP: "kube-root-ca.crt"}
    uids = {}
    for kind, name in kinds.items():
        await tenant.eventually(lambda kind=kind, name=name: tenant.get(kind, name))
        uids[kind] = (await tenant.get(kind, name))["metadata"]["uid"]
        await tenant.delete(kind, name)
    for kind, name in kinds.items():
        await tenant.settled(kind, name, lambda found, kind=kind: found["metadata"]["uid"] != uids[kind])
    # A Pod needs both to reach its API server: a token of the ServiceAccount, and the CA of the ConfigMap.
    path = f"/api/v1/namespaces/{tenant.namespace}/serviceaccounts/default/token"
    answer = await tenant.client.request("POST", path, body={"spec": {"expirationSeconds": 600}})
    trusted = (await tenant.get(CONFIG_MAP, "kube-root-ca.crt"))["data"]["ca.crt"]
    config = ClusterConfig(
        server=tenant.client.config.server, ca_data=trusted.encode(), token=answer["status"]["token"]
    )
    async with Client(config, field_manager="kplane") as pod:
        review = await pod.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body={})
    assert review["status"]["userInfo"]["username"] == f"system:serviceaccount:{tenant.namespace}:default"


async def test_aggregated_cluster_role_has_rules_of_selected_roles(tenant: Any) -> None:
    kind, label = "rbac.authorization.k8s.io/v1/ClusterRole", {f"example.com/{tenant.namespace}": "yes"}
    whole, part = f"{tenant.namespace}-whole", f"{tenant.namespace}-part"
    rule = {"apiGroups": ["example.com"], "resources": ["widgets"], "verbs": ["get"]}
    await tenant.create(kind, whole, aggregationRule={"clusterRoleSelectors": [{"matchLabels": label}]}, rules=[])
    await tenant.create(kind, part, metadata={"labels": label}, rules=[rule])
    await tenant.settled(kind, whole, lambda found: found["rules"] == [rule])
    await tenant.delete(kind, part)
    await tenant.settled(kind, whole, lambda found: not found["rules"])
    # Built-in ClusterRoles of Kubernetes are aggregated in the same way.
    admin = await tenant.settled(kind, "admin", lambda found: found["rules"])
    assert any("deployments" in rule.get("resources", ()) for rule in admin["rules"])


async def test_deployment_rolls_out_and_back(tenant: Any, kubectl: Callable[..., Awaitable[str]]) -> None:
    async def rolled_out(*, revision: int) -> Object:
        def done(found: Object) -> bool:
            status = found.get("status", {})
            if status.get("observedGeneration") != found["metadata"]["generation"]:
                return False  # the counts are of a former generation
            counts = [status.get(key, 0) for key in ("replicas", "updatedReplicas", "availableReplicas")]
            revised = found["metadata"].get("annotations", {}).get("deployment.kubernetes.io/revision")
            return revised == str(revision) and counts == [2, 2, 2]

        deployment: Object = await tenant.settled(DEPLOYMENT, "web", done)
        return deployment

    async def images() -> set[str]:
        return {pod["spec"]["containers"][0]["image"] for pod in await tenant.found(POD)}

    await tenant.create(DEPLOYMENT, "web", spec=workload("web", replicas=2))
    assert "Available" in true_conditions(await rolled_out(revision=1))
    await kubectl(tenant.kubeconfig, "set", "image", "deployment/web", "web=app:2", "-n", tenant.namespace)
    await rolled_out(revision=2)
    await tenant.eventually(images, lambda found: found == {"app:2"})
    await kubectl(tenant.kubeconfig, "rollout", "undo", "deployment/web", "-n", tenant.namespace)
    await rolled_out(revision=3)
    await tenant.eventually(images, lambda found: found == {"app:1"})
    sizes = [replica_set["spec"]["replicas"] for replica_set in await tenant.found(REPLICA_SET)]
    assert sorted(sizes) == [0, 2]


async def test_stateful_set_creates_pods_in_order_and_keeps_claims(tenant: Any) -> None:
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    templates = [{"metadata": {"name": "data"}, "spec": claim}]
    spec = workload("db", replicas=2, serviceName="db", volumeClaimTemplates=templates)
    await tenant.create(STATEFUL_SET, "db", spec=spec)
    await tenant.eventually(lambda: tenant.names(POD), lambda names: names == ["db-0"])
    await tenant.settled(STATEFUL_SET, "db", lambda found: found["status"].get("availableReplicas") == 2)
    first, second = await tenant.found(POD)
    assert [first["metadata"]["name"], second["metadata"]["name"]] == ["db-0", "db-1"]
    assert second["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] == "data-db-1"
    await tenant.patch(STATEFUL_SET, "db", {"spec": {"replicas": 1}})
    await tenant.eventually(lambda: tenant.names(POD), lambda names: names == ["db-0"])
    assert await tenant.names(CLAIM) == ["data-db-0", "data-db-1"]


async def test_job_is_complete_after_its_pods_succeeded(tenant: Any) -> None:
    template = pod_template("sum", restartPolicy="Never")
    await tenant.create(JOB, "sum", spec={"completions": 2, "parallelism": 2, "template": template})
    await tenant.settled(JOB, "sum", lambda found: found["status"].get("active") == 2, run_pods=False)
    await tenant.run_pods(phase="Succeeded")
    job = await tenant.settled(JOB, "sum", lambda found: "Complete" in true_conditions(found))
    assert job["status"]["succeeded"] == 2


async def test_cron_job_creates_the_job_that_is_due(tenant: Any) -> None:
    template = {"spec": {"template": pod_template("report", restartPolicy="Never")}}
    spec = {"schedule": "* * * * *", "concurrencyPolicy": "Forbid", "jobTemplate": template}
    await tenant.create(CRON_JOB, "report", spec=spec)
    # The last run was two minutes ago, so a run is due and the test does not wait for the next full minute.
    before = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=2)
    status = {"lastScheduleTime": before.strftime("%Y-%m-%dT%H:%M:%SZ")}
    await tenant.patch(CRON_JOB, "report", {"status": status}, subresource="status")
    [job] = await tenant.eventually(lambda: tenant.found(JOB), lambda found: len(found) == 1)
    assert [owner["name"] for owner in job["metadata"]["ownerReferences"]] == ["report"]
    cron_job = await tenant.settled(CRON_JOB, "report", lambda found: found["status"].get("active"), run_pods=False)
    assert cron_job["status"]["active"][0]["name"] == job["metadata"]["name"]


async def test_finished_job_is_deleted_with_its_pods_after_ttl(tenant: Any) -> None:
    template = pod_template("brief", restartPolicy="Never")
    await tenant.create(JOB, "brief", spec={"ttlSecondsAfterFinished": 1, "template": template})
    await tenant.eventually(lambda: tenant.names(POD), lambda names: len(names) == 1)
    await tenant.run_pods(phase="Succeeded")
    await tenant.eventually(lambda: tenant.is_gone(JOB, "brief"))
    await tenant.eventually(lambda: tenant.names(POD), lambda names: not names)


async def test_endpoint_slices_follow_pods_of_the_service(tenant: Any) -> None:
    # Endpoints have the zone of the node, so the Node object must exist.
    node = f"node-{tenant.namespace}"
    await tenant.create("v1/Node", node)
    template = pod_template("api", nodeName=node, terminationGracePeriodSeconds=0)
    await tenant.create("v1/Service", "api", spec={"selector": {"app": "api"}, "ports": [{"port": 80}]})
    await tenant.create(REPLICA_SET, "api", spec=workload("api", replicas=2, template=template))

    async def published() -> dict[str, bool]:
        slices = await tenant.found("discovery.k8s.io/v1/EndpointSlice", selector="kubernetes.io/service-name=api")
        endpoints = [endpoint for endpoint_slice in slices for endpoint in endpoint_slice.get("endpoints") or ()]
        return {endpoint["addresses"][0]: endpoint["conditions"]["ready"] for endpoint in endpoints}

    await tenant.eventually(lambda: tenant.names(POD), lambda names: len(names) == 2)
    assert await published() == {}
    await tenant.run_pods()
    both = {"10.1.0.1": True, "10.1.0.2": True}
    await tenant.eventually(published, lambda found: found == both)
    pod = (await tenant.names(POD))[0]
    unready = {"conditions": [{"type": "Ready", "status": "False"}]}
    await tenant.patch(POD, pod, {"status": unready}, subresource="status")
    await tenant.eventually(published, lambda found: found == {**both, "10.1.0.1": False})
    await tenant.delete(REPLICA_SET, "api", propagation="Background")
    await tenant.eventually(published, lambda found: found == {})


def signing_request(name: str, *, organization: str, signer: str) -> tuple[Object, bytes]:
    """Return the spec of a CertificateSigningRequest, and its private key."""
    key = ec.generate_private_key(ec.SECP256R1())
    names = [(NameOID.ORGANIZATION_NAME, organization), (NameOID.COMMON_NAME, name)]
    subject = x509.Name([x509.NameAttribute(oid, value) for oid, value in names])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    encoded = base64.b64encode(request.public_bytes(serialization.Encoding.PEM)).decode()
    usages = ["digital signature", "client auth"]
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {"request": encoded, "signerName": f"kubernetes.io/{signer}", "usages": usages}, private


async def test_approved_certificate_signing_request_is_signed(tenant: Any) -> None:
    user = tenant.namespace
    spec, key = signing_request(user, organization="people", signer="kube-apiserver-client")
    await tenant.create(REQUEST, user, spec=spec)
    approved = {"type": "Approved", "status": "True", "reason": "Test"}
    await tenant.patch(REQUEST, user, {"status": {"conditions": [approved]}}, subresource="approval")
    signed = await tenant.settled(REQUEST, user, lambda found: "certificate" in found["status"])
    certificate = base64.b64decode(signed["status"]["certificate"])
    administrator = tenant.client.config
    config = ClusterConfig(
        server=administrator.server, ca_data=administrator.ca_data, client_certificate=certificate, client_key=key
    )
    async with Client(config, field_manager="kplane") as client:
        review = await client.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body={})
    assert review["status"]["userInfo"]["username"] == user
    assert "people" in review["status"]["userInfo"]["groups"]


async def test_kubelet_signing_request_is_approved_and_signed(tenant: Any) -> None:
    name = f"system:node:{tenant.namespace}"
    spec, _ = signing_request(name, organization="system:nodes", signer="kube-apiserver-client-kubelet")
    await tenant.create(REQUEST, tenant.namespace, spec=spec)
    signed = await tenant.settled(REQUEST, tenant.namespace, lambda found: "certificate" in found["status"])
    assert "Approved" in true_conditions(signed)


async def test_disruption_budget_counts_allowed_disruptions(tenant: Any) -> None:
    kind = "policy/v1/PodDisruptionBudget"
    await tenant.create(kind, "web", spec={"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}})
    await tenant.create(DEPLOYMENT, "web", spec=workload("web", replicas=3))
    budget = await tenant.settled(kind, "web", lambda found: found["status"].get("disruptionsAllowed") == 1)
    assert {key: budget["status"][key] for key in ("expectedPods", "currentHealthy", "desiredHealthy")} == {
        "expectedPods": 3,
        "currentHealthy": 3,
        "desiredHealthy": 2,
    }
    evicted, *_ = await tenant.names(POD)
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": evicted}}
    path = f"/api/v1/namespaces/{tenant.namespace}/pods/{evicted}/eviction"
    await tenant.client.request("POST", path, body=body)
    # The number of healthy Pods is lower until the replacement is healthy.
    reduced = await tenant.settled(kind, "web", lambda found: found["status"]["currentHealthy"] == 2, run_pods=False)
    assert reduced["status"]["disruptionsAllowed"] == 0
    await tenant.settled(kind, "web", lambda found: found["status"]["disruptionsAllowed"] == 1)
    assert evicted not in await tenant.names(POD)


async def test_validating_admission_policy_is_enforced_without_controller(tenant: Any) -> None:
    """Profile Nodeless omits the controller of policies, which only reports type warnings."""
    group, name = "admissionregistration.k8s.io/v1", tenant.namespace
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
    selector = {"matchLabels": {"kubernetes.io/metadata.name": name}}
    validation = {"expression": "object.metadata.name != 'unwanted'", "message": "not wanted here"}
    spec = {
        "matchConstraints": {"resourceRules": [rule], "namespaceSelector": selector},
        "validations": [validation],
    }
    await tenant.create(f"{group}/ValidatingAdmissionPolicy", name, spec=spec)
    binding = {"policyName": name, "validationActions": ["Deny"]}
    await tenant.create(f"{group}/ValidatingAdmissionPolicyBinding", name, spec=binding)

    async def refused() -> str:
        try:
            await tenant.create(CONFIG_MAP, "unwanted")
        except Invalid as error:
            return str(error)
        await tenant.delete(CONFIG_MAP, "unwanted")
        return ""

    assert "not wanted here" in await tenant.eventually(refused)
    await tenant.create(CONFIG_MAP, "wanted")
