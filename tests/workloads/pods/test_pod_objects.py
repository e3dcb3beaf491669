"""Kubernetes objects of a component. test_pod_runtime.py shows that the API server accepts these objects."""

from __future__ import annotations

import base64
import dataclasses

import pytest

from kplane.workloads import (
    FILES,
    SCRATCH,
    File,
    Lifetime,
    Port,
    Reach,
    RestartPolicy,
    RuntimeFailure,
    Scheduling,
    Storage,
)
from kplane.workloads.pods.objects import check_supported, disruption_budget, files_secret, network_policy, workload
from kplane.workloads.pods.service import service
from kplane.workloads.pods.settings import Placement

from .conftest import SETTINGS, server

PLACEMENT = Placement("namespace", "server")


def deployment(component, **settings):
    effective = dataclasses.replace(SETTINGS, **settings)
    return workload(component, placement=PLACEMENT, image=effective.images["server"], settings=effective)["spec"]


def test_pod_runs_as_non_root_with_minimal_capabilities():
    pod = deployment(server("x"))["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
    }
    files = next(volume for volume in pod["volumes"] if volume["name"] == "files")
    assert files["secret"] == {"secretName": "server-files", "defaultMode": 0o440}


def test_pod_has_resources_readiness_probe_and_grace_period():
    pod = deployment(server("x", grace_seconds=9.5), pull_secrets=("registry",))["template"]["spec"]
    container = pod["containers"][0]
    assert container["resources"] == {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "https", "scheme": "HTTPS"}
    assert "livenessProbe" not in container
    # The Service drops the pod from its endpoints before the container gets SIGTERM.
    assert container["lifecycle"]["preStop"] == {"sleep": {"seconds": 5}}
    assert pod["terminationGracePeriodSeconds"] == 15
    assert pod["imagePullSecrets"] == [{"name": "registry"}]


def test_startup_probe_allows_10_minutes_before_liveness_probe():
    container = deployment(server("x", liveness_path="/livez?exclude=etcd"))["template"]["spec"]["containers"][0]
    http_get = {"path": "/livez?exclude=etcd", "port": "https", "scheme": "HTTPS"}
    assert container["startupProbe"]["httpGet"] == container["livenessProbe"]["httpGet"] == http_get
    startup = container["startupProbe"]
    # Requests wait for a waking API server, so the probe runs each second.
    assert startup["periodSeconds"] == 1
    assert startup["periodSeconds"] * startup["failureThreshold"] == 600


def test_scheduling_of_the_component_reaches_the_pod_template():
    scheduling = Scheduling(
        node_selector={"pool": "tenants"},
        tolerations=({"key": "pool", "operator": "Exists"},),
        affinity={"nodeAffinity": {}},
        priority_class="tenants",
        topology_spread=({"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"},),
    )
    spec = deployment(server("x", scheduling=scheduling))
    pod = spec["template"]["spec"]
    assert pod["nodeSelector"] == {"pool": "tenants"}
    assert pod["tolerations"] == [{"key": "pool", "operator": "Exists"}]
    assert pod["affinity"] == {"nodeAffinity": {}}
    assert pod["priorityClassName"] == "tenants"
    assert pod["topologySpreadConstraints"] == [
        {
            "maxSkew": 2,
            "topologyKey": "rack",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": spec["selector"],
        }
    ]


def test_pods_without_scheduling_are_spread_over_nodes_and_zones():
    pod = deployment(server("x"))["template"]["spec"]
    assert [constraint["topologyKey"] for constraint in pod["topologySpreadConstraints"]] == [
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
    ]
    assert not {"nodeSelector", "tolerations", "affinity", "priorityClassName"} & set(pod)


def test_single_component_becomes_a_statefulset_of_one_replica():
    """The pod of a StatefulSet starts only after the former pod has ended."""
    stateful_set = workload(
        server("x", single=True), placement=PLACEMENT, image=SETTINGS.images["server"], settings=SETTINGS
    )
    assert (stateful_set["spec"]["serviceName"], stateful_set["spec"]["replicas"]) == ("server", 1)
    assert "strategy" not in stateful_set["spec"]
    assert "volumeClaimTemplates" not in stateful_set["spec"]


@pytest.mark.parametrize(
    ("storage", "asked"),
    [
        (Storage(), {"size": "10Gi", "class": "usual"}),
        (Storage(size="20Gi"), {"size": "20Gi", "class": "usual"}),
        (Storage(size="20Gi", storage_class="fast"), {"size": "20Gi", "class": "fast"}),
    ],
)
def test_volume_claim_has_size_and_class_of_component_or_settings(storage: Storage, asked: dict[str, str]):
    settings = dataclasses.replace(SETTINGS, storage_class="usual", storage_size="10Gi")
    component = server("x", data=True, storage=storage)
    stateful_set = workload(component, placement=PLACEMENT, image=SETTINGS.images["server"], settings=settings)
    [claim] = stateful_set["spec"]["volumeClaimTemplates"]
    request = {"size": claim["spec"]["resources"]["requests"]["storage"], "class": claim["spec"]["storageClassName"]}
    assert request == asked


def test_pod_has_its_service_account_and_scratch_in_memory():
    component = server("x", service_account="server", scratch=True, args=(f"--state={SCRATCH}/state",))
    pod = deployment(component)["template"]["spec"]
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("server", True)
    container = pod["containers"][0]
    [scratch] = [mount for mount in container["volumeMounts"] if mount["name"] == "scratch"]
    assert container["args"] == [f"--state={scratch['mountPath']}/state"]
    assert {"name": "scratch", "emptyDir": {"medium": "Memory"}} in pod["volumes"]


def test_pull_policy_of_the_image_reaches_the_container():
    image = dataclasses.replace(SETTINGS.images["server"], pull_policy="Always")
    manifest = workload(server("x"), placement=PLACEMENT, image=image, settings=SETTINGS)
    assert manifest["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"] == "Always"
    assert deployment(server("x"))["template"]["spec"]["containers"][0]["imagePullPolicy"] == "IfNotPresent"


def test_only_files_without_reload_change_the_pod_template():
    def annotation(**files):
        return deployment(server("x", files=files))["template"]["metadata"]["annotations"]

    first = annotation(config=File(b"1"), crt=File(b"1", reloaded=True))
    assert annotation(config=File(b"1"), crt=File(b"2", reloaded=True)) == first
    assert annotation(config=File(b"2"), crt=File(b"1", reloaded=True)) != first


def test_network_policy_limits_ingress_and_egress():
    def policy(component, **settings):
        changed = dataclasses.replace(SETTINGS, **settings)
        return network_policy(component, placement=PLACEMENT, settings=changed)["spec"]

    open_policy = policy(server("x", reaches=(Reach(port=2379),)))
    assert open_policy["ingress"] == [{"ports": [{"protocol": "TCP", "port": 6443}]}]
    dns = [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]
    dns_servers = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
    }
    any_address = [
        {"namespaceSelector": {}},
        {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}},
        {"ipBlock": {"cidr": "::/0", "except": ["fe80::/10"]}},
    ]
    assert open_policy["egress"] == [
        {"ports": dns, "to": [dns_servers]},
        {"ports": [{"protocol": "TCP", "port": 2379}], "to": any_address},
    ]
    node_local = {"ipBlock": {"cidr": "169.254.20.10/32"}}
    other = policy(server("x", reaches=(Reach(port=2379),)), dns=(node_local,))
    assert other["egress"][0] == {"ports": dns, "to": [node_local]}

    unlimited_egress = policy(server("x", reaches=None))
    assert "egress" not in unlimited_egress
    assert unlimited_egress["policyTypes"] == ["Ingress"]

    guarded_policy = policy(server("x", reached_by=("friend",)))
    key = "controlplane.kplane.dev/component"
    friends = {"podSelector": {"matchExpressions": [{"key": key, "operator": "In", "values": ["friend"]}]}}
    assert guarded_policy["ingress"][0]["from"] == [friends]
    assert guarded_policy["egress"] == []
    assert guarded_policy["policyTypes"] == ["Ingress", "Egress"]

    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    ports = [{"protocol": "TCP", "port": 6443}]
    measured_component = server("x", metrics_port="https")
    assert policy(measured_component)["ingress"] == [{"ports": ports}]
    assert policy(measured_component, metrics_from=(peer,))["ingress"] == [{"ports": ports, "from": [peer]}]
    assert policy(measured_component, metrics_from=())["ingress"] == []
    assert policy(server("x"), metrics_from=(peer,))["ingress"] == [{"ports": ports}]

    # Clients of metrics reach only the metrics port. Other clients do not reach the metrics port.
    all_ports = (*server("x").ports, Port(number=2381, name="metrics"))
    etcd = server("x", ports=all_ports, reached_by=("friend",), metrics_port="metrics")
    metrics = [{"protocol": "TCP", "port": 2381}]
    assert policy(etcd, metrics_from=(peer,))["ingress"] == [
        {"ports": ports, "from": [friends]},
        {"ports": metrics, "from": [peer]},
    ]
    assert policy(etcd, metrics_from=())["ingress"] == [{"ports": ports, "from": [friends]}]

    # Clients do not reach the peer port.
    member = server("x", ports=(*server("x").ports, Port(number=2380, name="peer")), reached_by=("friend",))
    single_member = dataclasses.replace(member, peer_port="peer", operated=True)
    operator = {"podSelector": {"matchLabels": {"app": "operator"}}}
    clients = {"ports": ports, "from": [friends, operator]}
    assert policy(single_member, operator=operator)["ingress"] == [clients]
    other = {"podSelector": {"matchExpressions": [{"key": key, "operator": "In", "values": ["other"]}]}}
    group_policy = policy(dataclasses.replace(single_member, peers=("other",)), operator=operator)
    assert group_policy["ingress"] == [clients, {"ports": [{"protocol": "TCP", "port": 2380}], "from": [other]}]

    same_namespace = policy(server("x", reaches=(Reach(port=2379, component="etcd-a"),)))
    assert same_namespace["egress"][-1]["to"] == [{"podSelector": {"matchLabels": {key: "etcd-a"}}}]
    other_namespace = policy(server("x", reaches=(Reach(port=2379, namespace="kplane-system"),)))
    namespace_peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kplane-system"}}}
    assert other_namespace["egress"][-1]["to"] == [namespace_peer]

    network_egress = policy(server("x", reaches=(Reach(port=443, network="203.0.113.0/24"),)))
    assert network_egress["egress"][-1] == {
        "ports": [{"protocol": "TCP", "port": 443}],
        "to": [{"ipBlock": {"cidr": "203.0.113.0/24"}}],
    }


def test_placeholders_in_files_are_replaced_if_names_files_is_set():
    config = f"ca: {FILES}/ca.crt".encode()
    secret = files_secret(
        server("x", files={"a": File(config, names_files=True), "b": File(config)}), placement=PLACEMENT
    )
    assert base64.b64decode(secret["data"]["a"]) == b"ca: /etc/kplane/ca.crt"
    assert base64.b64decode(secret["data"]["b"]) == config


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"lifetime": Lifetime.BOUND}, "pods outlive their operator; lifetime must be Independent"),
        ({"restart": RestartPolicy.NEVER}, "pods are started again; restart must be Always"),
    ],
)
def test_unsupported_lifetime_or_restart_policy_is_refused(fields, sentence):
    with pytest.raises(RuntimeFailure, match=f"Component x: {sentence}"):
        check_supported(server("x", **fields))


def test_group_is_spread_and_has_a_single_disruption_budget():
    first, second = (Placement("namespace", name, group="etcd") for name in ("etcd", "etcd-1"))
    component = server("x", data=True)
    group = {"app.kubernetes.io/managed-by": "kplane", "app.kubernetes.io/component": "etcd"}
    for placement in (first, second):
        manifest = workload(component, placement=placement, image=SETTINGS.images["server"], settings=SETTINGS)
        template = manifest["spec"]["template"]
        assert group.items() <= template["metadata"]["labels"].items()
        constraints = template["spec"]["topologySpreadConstraints"]
        assert [constraint["topologyKey"] for constraint in constraints] == [
            "kubernetes.io/hostname",
            "topology.kubernetes.io/zone",
        ]
        assert all(constraint["labelSelector"] == {"matchLabels": group} for constraint in constraints)
        # A member is ready only with a majority, so the other members need its address before it is ready.
        peer_service = service("x", placement=placement, ports={"peer": 2380}, settings=SETTINGS, exposed=None)
        assert peer_service["spec"]["publishNotReadyAddresses"] is True
    # Kubernetes refuses to evict a pod that two PodDisruptionBudgets select.
    assert disruption_budget(component, placement=second) is None
    budget = disruption_budget(component, placement=first)
    assert budget is not None
    assert budget["spec"] == {"maxUnavailable": 1, "selector": {"matchLabels": group}}


def test_ingress_admits_operator_only_to_operated_components():
    operator = {"podSelector": {"matchLabels": {"app": "operator"}}}
    settings = dataclasses.replace(SETTINGS, operator=operator)
    for operated in (True, False):
        component = server("x", reached_by=("y",), operated=operated)
        [rule] = network_policy(component, placement=PLACEMENT, settings=settings)["spec"]["ingress"]
        assert (operator in rule["from"]) is operated
        assert len(rule["from"]) == 1 + operated
