"""Registrations of mode Dedicated: a separate mcm Pod in the control plane's namespace runs the controllers."""

from __future__ import annotations

import pytest

from e2e.kubectl import Kubectl, KubectlFailed, Object
from e2e.platform import Platform, condition
from e2e.waiting import eventually

pytestmark = pytest.mark.k8s_needs("pods")

_KIND = "ControlPlaneRegistration"


def _mcms(kubectl: Kubectl, namespace: str) -> list[Object]:
    """Return the Pods of mcm in a namespace."""
    labels = "app.kubernetes.io/managed-by=kplane"
    pods = kubectl.items("pods", "-n", namespace, "-l", labels)
    return [pod for pod in pods if pod["spec"]["containers"][0]["name"] == "mcm"]


def _runs(platform: Platform, name: str, *, mode: str | None) -> None:
    """Wait until an instance of this mode runs for the registration."""

    def running(found: Object | None) -> bool:
        instance = (found or {}).get("status", {}).get("instance") or {}
        return instance.get("mode") == mode and condition(found, "Running").get("status") == "True"

    eventually(
        f"{_KIND} {name} served by mode {mode}", lambda: platform.find(_KIND, name), running, timeout_seconds=240.0
    )


def test_dedicated_mcm_pod_runs_until_mode_is_shared(platform: Platform, unregistered: str) -> None:
    """Controllers work in both modes. The Pod has limits and few rights, and ends with the mode."""
    name = platform.name("own-mcm")
    namespace = f"kplane-cp-{name}"
    platform.create("ControlPlane", name, classRef={"name": unregistered}, deletionPolicy="Destroy")
    platform.becomes_ready("ControlPlane", name)
    platform.create(_KIND, name, controlPlaneRef={"name": name}, services=["Controllers"], mode="Dedicated")
    _runs(platform, name, mode="Dedicated")
    eventually(
        f"the mcm of {_KIND} {name} ready",
        lambda: condition(platform.find(_KIND, name) or {}, "DedicatedReady"),
        lambda found: found.get("status") == "True",
    )
    platform.tenant(name).wait_account("default")

    [pod] = _mcms(platform.kubectl, namespace)
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert "memory" in pod["spec"]["containers"][0]["resources"]["limits"]
    account = pod["spec"]["serviceAccountName"]
    impersonation = f"--as=system:serviceaccount:{namespace}:{account}"
    resource = "controlplaneregistrations.controlplane.kplane.dev"
    assert platform.kubectl("auth", "can-i", "get", f"{resource}/{name}", impersonation).strip() == "yes"
    for permission in (("list", resource), ("get", f"{resource}/another"), ("list", "secrets", "-n", namespace)):
        with pytest.raises(KubectlFailed):
            platform.kubectl("auth", "can-i", *permission, impersonation)

    platform.patch(_KIND, name, {"spec": {"mode": "Shared"}})
    _runs(platform, name, mode=None)
    eventually(f"no mcm in namespace {namespace}", lambda: _mcms(platform.kubectl, namespace), lambda found: not found)
    platform.tenant(name).add_namespace("shared")


def test_objects_of_dedicated_mcm_are_deleted_with_registration(platform: Platform, unregistered: str) -> None:
    """Neither the namespace nor the cluster has objects of mcm after the deletion."""
    name = platform.name("no-mcm")
    namespace = f"kplane-cp-{name}"
    platform.create("ControlPlane", name, classRef={"name": unregistered}, deletionPolicy="Destroy")
    platform.becomes_ready("ControlPlane", name)
    kinds = "statefulsets,services,networkpolicies,poddisruptionbudgets,serviceaccounts,secrets"
    before = platform.kubectl.names(kinds, "-n", namespace)
    platform.create(_KIND, name, controlPlaneRef={"name": name}, services=["Controllers"], mode="Dedicated")
    _runs(platform, name, mode="Dedicated")
    label = f"controlplane.kplane.dev/registration={name}"
    assert platform.kubectl.names("clusterroles", "-l", label)
    platform.delete(_KIND, name)
    eventually(
        f"nothing of mcm in namespace {namespace}",
        lambda: platform.kubectl.names(kinds, "-n", namespace),
        lambda found: found == before,
        timeout_seconds=240.0,
    )
    eventually(
        "no rights of it",
        lambda: platform.kubectl.names("clusterroles,clusterrolebindings", "-l", label),
        lambda found: not found,
    )
