"""What a component becomes as objects of a cluster; that the API server takes them is shown in test_pod_runtime.py."""

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
    changed = dataclasses.replace(SETTINGS, **settings)
    return workload(component, placement=PLACEMENT, image=changed.images["server"], settings=changed)["spec"]


def test_pod_has_no_rights_it_does_not_need():
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


def test_pod_gets_the_resources_probes_and_time_to_end():
    pod = deployment(server("x", grace_seconds=9.5), pull_secrets=("registry",))["template"]["spec"]
    container = pod["containers"][0]
    assert container["resources"] == {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "https", "scheme": "HTTPS"}
    assert "livenessProbe" not in container
    # Clients are led elsewhere before it is asked to end.
    assert container["lifecycle"]["preStop"] == {"sleep": {"seconds": 5}}
    assert pod["terminationGracePeriodSeconds"] == 15
    assert pod["imagePullSecrets"] == [{"name": "registry"}]


def test_pod_that_starts_slowly_is_left_alone_and_one_that_hangs_is_not():
    container = deployment(server("x", liveness_path="/livez?exclude=etcd"))["template"]["spec"]["containers"][0]
    asked = {"path": "/livez?exclude=etcd", "port": "https", "scheme": "HTTPS"}
    assert container["startupProbe"]["httpGet"] == container["livenessProbe"]["httpGet"] == asked
    startup = container["startupProbe"]
    # Requests wait for API servers that wake.
    assert startup["periodSeconds"] == 1
    assert startup["periodSeconds"] * startup["failureThreshold"] == 600


def test_pods_run_where_they_are_scheduled_and_are_spread_among_themselves():
    scheduling = Scheduling(
        node_selector={"pool": "tenants"},
        tolerations=({"key": "pool", "operator": "Exists"},),
        affinity={"nodeAffinity": {}},
        priority_class="tenants",
        topology_spread=({"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"},),
    )
    described = deployment(server("x", scheduling=scheduling))
    pod = described["template"]["spec"]
    assert pod["nodeSelector"] == {"pool": "tenants"}
    assert pod["tolerations"] == [{"key": "pool", "operator": "Exists"}]
    assert pod["affinity"] == {"nodeAffinity": {}}
    assert pod["priorityClassName"] == "tenants"
    assert pod["topologySpreadConstraints"] == [
        {
            "maxSkew": 2,
            "topologyKey": "rack",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": described["selector"],
        }
    ]


def test_pods_that_nothing_is_said_of_are_spread_over_nodes_and_zones():
    pod = deployment(server("x"))["template"]["spec"]
    assert [each["topologyKey"] for each in pod["topologySpreadConstraints"]] == [
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
    ]
    assert not {"nodeSelector", "tolerations", "affinity", "priorityClassName"} & set(pod)


def test_of_what_is_single_no_pod_starts_before_the_last_one_has_ended():
    single = workload(server("x", single=True), placement=PLACEMENT, image=SETTINGS.images["server"], settings=SETTINGS)
    assert (single["spec"]["serviceName"], single["spec"]["replicas"]) == ("server", 1)
    assert "strategy" not in single["spec"]
    assert "volumeClaimTemplates" not in single["spec"]


@pytest.mark.parametrize(
    ("storage", "asked"),
    [
        (Storage(), {"size": "10Gi", "class": "usual"}),
        (Storage(size="20Gi"), {"size": "20Gi", "class": "usual"}),
        (Storage(size="20Gi", storage_class="fast"), {"size": "20Gi", "class": "fast"}),
    ],
)
def test_data_are_on_the_volume_that_is_asked_for(storage: Storage, asked: dict[str, str]):
    usual = dataclasses.replace(SETTINGS, storage_class="usual", storage_size="10Gi")
    component = server("x", data=True, storage=storage)
    made = workload(component, placement=PLACEMENT, image=SETTINGS.images["server"], settings=usual)
    [claim] = made["spec"]["volumeClaimTemplates"]
    found = {"size": claim["spec"]["resources"]["requests"]["storage"], "class": claim["spec"]["storageClassName"]}
    assert found == asked


def test_pod_that_is_somebody_gets_that_ones_token_and_room_in_memory():
    component = server("x", service_account="server", scratch=True, args=(f"--state={SCRATCH}/state",))
    pod = deployment(component)["template"]["spec"]
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("server", True)
    container = pod["containers"][0]
    [mounted] = [mount for mount in container["volumeMounts"] if mount["name"] == "scratch"]
    assert container["args"] == [f"--state={mounted['mountPath']}/state"]
    assert {"name": "scratch", "emptyDir": {"medium": "Memory"}} in pod["volumes"]


def test_nodes_pull_an_image_when_it_is_said():
    image = dataclasses.replace(SETTINGS.images["server"], pull_policy="Always")
    made = workload(server("x"), placement=PLACEMENT, image=image, settings=SETTINGS)
    assert made["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"] == "Always"
    assert deployment(server("x"))["template"]["spec"]["containers"][0]["imagePullPolicy"] == "IfNotPresent"


def test_template_changes_with_files_that_are_read_once_only():
    def annotation(**files):
        return deployment(server("x", files=files))["template"]["metadata"]["annotations"]

    first = annotation(config=File(b"1"), crt=File(b"1", reloaded=True))
    assert annotation(config=File(b"1"), crt=File(b"2", reloaded=True)) == first
    assert annotation(config=File(b"2"), crt=File(b"1", reloaded=True)) != first


def test_who_may_connect_and_where_to():
    def policy(component, **settings):
        changed = dataclasses.replace(SETTINGS, **settings)
        return network_policy(component, placement=PLACEMENT, settings=changed)["spec"]

    everybody = policy(server("x", reaches=(Reach(port=2379),)))
    assert everybody["ingress"] == [{"ports": [{"protocol": "TCP", "port": 6443}]}]
    dns = [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]
    servers = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
    }
    anybody = [
        {"namespaceSelector": {}},
        {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}},
        {"ipBlock": {"cidr": "::/0", "except": ["fe80::/10"]}},
    ]
    assert everybody["egress"] == [
        {"ports": dns, "to": [servers]},
        {"ports": [{"protocol": "TCP", "port": 2379}], "to": anybody},
    ]
    node_local = {"ipBlock": {"cidr": "169.254.20.10/32"}}
    other = policy(server("x", reaches=(Reach(port=2379),)), dns=(node_local,))
    assert other["egress"][0] == {"ports": dns, "to": [node_local]}

    anywhere = policy(server("x", reaches=None))
    assert "egress" not in anywhere
    assert anywhere["policyTypes"] == ["Ingress"]

    guarded = policy(server("x", reached_by=("friend",)))
    key = "controlplane.kplane.dev/component"
    friends = {"podSelector": {"matchExpressions": [{"key": key, "operator": "In", "values": ["friend"]}]}}
    assert guarded["ingress"][0]["from"] == [friends]
    assert guarded["egress"] == []
    assert guarded["policyTypes"] == ["Ingress", "Egress"]

    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    ports = [{"protocol": "TCP", "port": 6443}]
    measured = server("x", metrics_port="https")
    assert policy(measured)["ingress"] == [{"ports": ports}]
    assert policy(measured, metrics_from=(peer,))["ingress"] == [{"ports": ports, "from": [peer]}]
    assert policy(measured, metrics_from=())["ingress"] == []
    assert policy(server("x"), metrics_from=(peer,))["ingress"] == [{"ports": ports}]

    # Who reads metrics gets to nothing else, and who gets to the rest reads no metrics.
    both = (*server("x").ports, Port(number=2381, name="metrics"))
    etcd = server("x", ports=both, reached_by=("friend",), metrics_port="metrics")
    metrics = [{"protocol": "TCP", "port": 2381}]
    assert policy(etcd, metrics_from=(peer,))["ingress"] == [
        {"ports": ports, "from": [friends]},
        {"ports": metrics, "from": [peer]},
    ]
    assert policy(etcd, metrics_from=())["ingress"] == [{"ports": ports, "from": [friends]}]

    # Who is a client is no peer.
    member = server("x", ports=(*server("x").ports, Port(number=2380, name="peer")), reached_by=("friend",))
    alone = dataclasses.replace(member, peer_port="peer", operated=True)
    operator = {"podSelector": {"matchLabels": {"app": "operator"}}}
    clients = {"ports": ports, "from": [friends, operator]}
    assert policy(alone, operator=operator)["ingress"] == [clients]
    other = {"podSelector": {"matchExpressions": [{"key": key, "operator": "In", "values": ["other"]}]}}
    several = policy(dataclasses.replace(alone, peers=("other",)), operator=operator)
    assert several["ingress"] == [clients, {"ports": [{"protocol": "TCP", "port": 2380}], "from": [other]}]

    beside = policy(server("x", reaches=(Reach(port=2379, component="etcd-a"),)))
    assert beside["egress"][-1]["to"] == [{"podSelector": {"matchLabels": {key: "etcd-a"}}}]
    elsewhere = policy(server("x", reaches=(Reach(port=2379, namespace="kplane-system"),)))
    named = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kplane-system"}}}
    assert elsewhere["egress"][-1]["to"] == [named]

    opened = policy(server("x", reaches=(Reach(port=443, network="203.0.113.0/24"),)))
    assert opened["egress"][-1] == {
        "ports": [{"protocol": "TCP", "port": 443}],
        "to": [{"ipBlock": {"cidr": "203.0.113.0/24"}}],
    }


def test_a_file_names_the_directory_of_files_where_it_says_so():
    config = f"ca: {FILES}/ca.crt".encode()
    made = files_secret(
        server("x", files={"a": File(config, names_files=True), "b": File(config)}), placement=PLACEMENT
    )
    assert base64.b64decode(made["data"]["a"]) == b"ca: /etc/kplane/ca.crt"
    assert base64.b64decode(made["data"]["b"]) == config


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"lifetime": Lifetime.BOUND}, "pods outlive their operator; lifetime must be Independent"),
        ({"restart": RestartPolicy.NEVER}, "pods are started again; restart must be Always"),
    ],
)
def test_what_pods_do_not_do_is_refused(fields, sentence):
    with pytest.raises(RuntimeFailure, match=f"Component x: {sentence}"):
        check_supported(server("x", **fields))


def test_components_of_one_group_are_spread_and_a_drain_takes_one_at_a_time():
    first, second = (Placement("namespace", name, group="etcd") for name in ("etcd", "etcd-1"))
    component = server("x", data=True)
    group = {"app.kubernetes.io/managed-by": "kplane", "app.kubernetes.io/component": "etcd"}
    for placement in (first, second):
        made = workload(component, placement=placement, image=SETTINGS.images["server"], settings=SETTINGS)
        template = made["spec"]["template"]
        assert group.items() <= template["metadata"]["labels"].items()
        spread = template["spec"]["topologySpreadConstraints"]
        assert [each["topologyKey"] for each in spread] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
        assert all(each["labelSelector"] == {"matchLabels": group} for each in spread)
        # A member is ready with a majority only, so that the others have to find it before.
        found = service("x", placement=placement, ports={"peer": 2380}, settings=SETTINGS, exposed=None)
        assert found["spec"]["publishNotReadyAddresses"] is True
    # The eviction of a pod that two budgets select is refused.
    assert disruption_budget(component, placement=second) is None
    budget = disruption_budget(component, placement=first)
    assert budget is not None
    assert budget["spec"] == {"maxUnavailable": 1, "selector": {"matchLabels": group}}


def test_the_operator_reaches_what_it_operates():
    operator = {"podSelector": {"matchLabels": {"app": "operator"}}}
    settings = dataclasses.replace(SETTINGS, operator=operator)
    for operated in (True, False):
        component = server("x", reached_by=("y",), operated=operated)
        [rule] = network_policy(component, placement=PLACEMENT, settings=settings)["spec"]["ingress"]
        assert (operator in rule["from"]) is operated
        assert len(rule["from"]) == 1 + operated
