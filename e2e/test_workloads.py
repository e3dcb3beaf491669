"""Controllers of workloads work for a tenant with profile Nodeless."""

from __future__ import annotations

import pytest

from e2e.tenant import Tenant
from e2e.waiting import eventually


@pytest.mark.smoke("an unmodified kube-controller-manager works for it")
def test_a_deployment_gets_its_replicas(acme: Tenant) -> None:
    """A Deployment gets a ReplicaSet and Pods, scales, and its deletion removes both."""
    acme.add_namespace("shop")
    acme.deploy("web", namespace="shop", replicas=3)
    acme.wait_pods("web", namespace="shop", replicas=3)
    assert len(acme.kubectl.names("replicasets", "-n", "shop")) == 1
    # Without nodes the Pods stay Pending; the test is about their objects.
    assert {pod["status"]["phase"] for pod in acme.pods("web", namespace="shop")} == {"Pending"}

    acme.kubectl("scale", "deployment", "web", "-n", "shop", "--replicas=1")
    acme.wait_pods("web", namespace="shop", replicas=1)

    acme.kubectl("delete", "deployment", "web", "-n", "shop", "--wait=false")
    acme.wait_pods("web", namespace="shop", replicas=0)
    eventually("ReplicaSet collected", lambda: not acme.kubectl.names("replicasets", "-n", "shop"))


def test_a_namespace_has_what_every_namespace_has(acme: Tenant) -> None:
    """Controllers create and restore ServiceAccount `default` and the root CA."""
    acme.add_namespace("complete")

    def root_ca() -> str:
        return str(acme.kubectl.get("configmap", "kube-root-ca.crt", "-n", "complete")["data"]["ca.crt"])

    assert "BEGIN CERTIFICATE" in eventually("ConfigMap kube-root-ca.crt", root_ca)
    acme.kubectl("delete", "configmap", "kube-root-ca.crt", "-n", "complete")
    eventually("ConfigMap kube-root-ca.crt again", root_ca)


def test_a_namespace_ends_with_all_that_is_in_it(acme: Tenant) -> None:
    """`kubectl delete namespace` finishes, also with workloads in the namespace."""
    acme.add_namespace("temporary")
    acme.deploy("web", namespace="temporary", replicas=2)
    acme.wait_pods("web", namespace="temporary", replicas=2)
    acme.kubectl("delete", "namespace", "temporary", "--wait", "--timeout=180s", timeout_seconds=190)
    acme.kubectl("create", "namespace", "temporary")
    assert acme.kubectl.names("deployments", "-n", "temporary") == set()


def test_a_job_and_a_stateful_set_get_their_pods(acme: Tenant) -> None:
    """Jobs and StatefulSets get their Pods too."""
    acme.add_namespace("others")
    acme.kubectl("create", "job", "once", "--image=job:1", "-n", "others")
    labels = {"app": "db"}
    acme.kubectl.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": "db", "namespace": "others"},
            "spec": {
                "replicas": 1,
                "serviceName": "db",
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"containers": [{"name": "db", "image": "db:1"}]},
                },
            },
        }
    )
    names = eventually(
        "Pods of both", lambda: acme.kubectl.names("pods", "-n", "others"), lambda found: len(found) == 2
    )
    assert "db-0" in names
