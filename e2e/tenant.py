"""The owner's view of a control plane for tests, with the published kubeconfig."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from e2e.kubectl import Kubectl, KubectlFailed, Object
from e2e.waiting import eventually, quiet

__all__ = ["Tenant", "widgets"]


@dataclass(frozen=True, slots=True)
class Tenant:
    """A control plane, and kubectl as its administrator."""

    name: str
    kubectl: Kubectl

    def answers(self, *, timeout_seconds: float = 120.0) -> None:
        """Wait until the API server is ready."""
        eventually(
            f"{self.name}: /readyz", lambda: self.kubectl("get", "--raw=/readyz"), timeout_seconds=timeout_seconds
        )

    def wait_shut_out(self) -> None:
        """Wait until the API server refuses these credentials. A revocation takes effect with a delay."""

        def is_refused() -> bool:
            try:
                self.kubectl("get", "namespaces")
            except KubectlFailed:
                return True
            return False

        eventually(f"{self.name}: the former kubeconfig is refused", is_refused)

    def add_namespace(self, name: str) -> None:
        """Create a namespace, and wait until the controllers have completed it."""
        self.kubectl("create", "namespace", name)
        self.wait_account(name)

    def wait_account(self, namespace: str) -> None:
        """Wait for the ServiceAccount `default`, which shows that controllers run."""
        eventually(
            f"{self.name}: ServiceAccount default in {namespace}",
            lambda: self.kubectl.names("serviceaccounts", "-n", namespace),
            lambda names: "default" in names,
        )

    def deploy(self, name: str, *, namespace: str = "default", replicas: int = 2) -> None:
        """Create a Deployment."""
        self.kubectl("create", "deployment", name, "-n", namespace, "--image=web:1", f"--replicas={replicas}")

    def pods(self, deployment: str, *, namespace: str = "default") -> list[Object]:
        """Return the Pods of a Deployment."""
        return self.kubectl.items("pods", "-n", namespace, "-l", f"app={deployment}")

    def wait_pods(self, deployment: str, *, namespace: str = "default", replicas: int = 2) -> None:
        """Wait until a Deployment has this number of Pods, which shows that controllers run."""
        eventually(
            f"{self.name}: {replicas} Pods of Deployment {deployment}",
            lambda: len(self.pods(deployment, namespace=namespace)),
            lambda found: found == replicas,
        )

    def unattended(self, deployment: str, *, namespace: str = "default") -> None:
        """Create a Deployment, and check that it gets no ReplicaSet for some seconds, because no controllers run."""
        self.deploy(deployment, namespace=namespace)
        selector = ("-n", namespace, "-l", f"app={deployment}")
        quiet(f"{self.name}: ReplicaSet for {deployment}", lambda: self.kubectl.names("replicasets", *selector))

    def wait_unattended(self, stem: str, *, attempts: int = 6) -> str:
        """Wait until a new Deployment gets no ReplicaSet, because the controllers have ended.

        Creates up to `attempts` Deployments, and returns the name of the last. Raises AssertionError if each of them
        gets a ReplicaSet.
        """
        for attempt in range(1, attempts):
            with contextlib.suppress(AssertionError):
                self.unattended(f"{stem}-{attempt}")
                return f"{stem}-{attempt}"
        self.unattended(f"{stem}-{attempts}")
        return f"{stem}-{attempts}"

    def keep(self, key: str, value: str) -> None:
        """Store a value in a ConfigMap. `kept` returns the value."""
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"kept-{key}", "namespace": "default"}}
        self.kubectl.apply({**body, "data": {"value": value}})

    def kept(self, key: str) -> str | None:
        """Return the value that `keep` stored for a key; None if no value is stored."""
        config_map = self.kubectl.find("configmap", f"kept-{key}", "-n", "default")
        return config_map["data"]["value"] if config_map is not None else None


def widgets(group: str) -> Object:
    """Return a CustomResourceDefinition of kind Widget in this API group."""
    schema = {
        "type": "object",
        "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer"}}}},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"widgets.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": "Widget", "listKind": "WidgetList", "plural": "widgets", "singular": "widget"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }
