"""Controllers of workloads work for a tenant with profile Nodeless."""

from __future__ import annotations

import pytest

from e2e.tenant import Tenant
from e2e.waiting import eventually


@pytest.mark.smoke("an unmodified kube-controller-manager works for it")
def test_deployment_creates_scales_and_deletes_pods(acme: Tenant) -> None:
    """The deletion of the Deployment also removes its ReplicaSet."""
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


def test_namespace_gets_service_account_and_root_ca(acme: Tenant) -> None:
    """Controllers restore the ConfigMap of the root CA after its deletion."""
    acme.add_namespace("complete")

    def root_ca() -> str:
        return str(acme.kubectl.get("configmap", "kube-root-ca.crt", "-n", "complete")["data"]["ca.crt"])

    assert "BEGIN CERTIFICATE" in eventually("ConfigMap kube-root-ca.crt", root_ca)
    acme.kubectl("delete", "configmap", "kube-root-ca.crt", "-n", "complete")
    eventually("ConfigMap kube-root-ca.crt again", root_ca)


def test_namespace_with_workloads_is_deleted_completely(acme: Tenant) -> None:
    acme.add_namespace("temporary")
    acme.deploy("web", namespace="temporary", replicas=2)
    acme.wait_pods("web", namespace="temporary", replicas=2)
    acme.kubectl("delete", "namespace", "temporary", "--wait", "--timeout=180s", timeout_seconds=190)
    acme.kubectl("create", "namespace", "temporary")
    assert acme.kubectl.names("deployments", "-n", "temporary") == set()


def test_job_and_stateful_set_get_pods(acme: Tenant) -> None:
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
