"""Uses a control plane as its owner does: with the published kubeconfig and the real kubectl."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kplane.cli.demo.waiting import wait_for
from kplane.cli.errors import DemoFailed
from kplane.embedded.credentials import write_private
from kplane.embedded.handle import Handle
from kplane.embedded.kubectl import Kubectl

__all__ = ["Tenant"]


@dataclass(frozen=True, slots=True)
class Tenant:
    """One control plane, with its administrator's access."""

    name: str
    cluster_path: str
    kubectl: Kubectl

    @classmethod
    async def open(cls, handle: Handle, name: str) -> Tenant:
        """Fetch the published kubeconfig Secret from the management cluster into a private file."""
        status = (await handle.kubectl.get("controlplane", name))["status"]
        reference = status["kubeconfigSecretRef"]
        secret = await handle.kubectl.get("secret", reference["name"], "--namespace", reference["namespace"])
        directory = handle.directory / "tenants"
        directory.mkdir(mode=0o700, exist_ok=True)
        file = directory / f"{name}.kubeconfig"
        write_private(file, content=base64.b64decode(secret["data"]["kubeconfig-external"]))
        path = status.get("clusterPath") or name
        return cls(name, path, Kubectl(program=handle.kubectl_program, kubeconfig=file))

    async def ask(self) -> str:
        """List the namespaces, and report how long the answer took."""
        begun = time.monotonic()
        found = await self.kubectl.names("namespaces")
        seconds = time.monotonic() - begun
        server = (await self.kubectl.run("config", "view", "-o", "jsonpath={.clusters[0].cluster.server}")).strip()
        return f"{self.name}: {len(found)} namespaces after {seconds:.1f} s, from {server}"

    async def apply_deployment(self, manifest: str) -> None:
        """Create the namespace and the Deployment of the example."""
        await self.kubectl.apply(manifest)

    async def wait_pods(self, *, namespace: str, replicas: int) -> str:
        """Wait until the Deployment has its ReplicaSet and Pods, and report them."""
        await wait_for(
            f"{self.name}: a ReplicaSet",
            lambda: self.kubectl.names("replicasets", "-n", namespace),
            lambda n: len(n) == 1,
        )
        pods = await wait_for(
            f"{self.name}: {replicas} Pods",
            lambda: self.kubectl.items("pods", "-n", namespace),
            lambda found: len(found) == replicas,
        )
        phases = sorted({pod["status"]["phase"] for pod in pods})
        if phases != ["Pending"]:
            raise DemoFailed(f"failed to verify the Pods of {self.name}: {phases}, expected Pending without nodes")
        return f"{self.name}: 1 ReplicaSet, {replicas} Pods (Pending, as there are no nodes)"

    async def check_namespace(self, namespace: str) -> str:
        """Wait for the objects that every namespace must have, and report them."""
        await wait_for(
            f"{self.name}: ServiceAccount default in {namespace}",
            lambda: self.kubectl.names("serviceaccounts", "-n", namespace),
            lambda names: "default" in names,
        )
        await wait_for(
            f"{self.name}: ConfigMap kube-root-ca.crt in {namespace}",
            lambda: self.kubectl.items("configmaps", "-n", namespace),
            lambda found: any(_is_root_ca(each) for each in found),
        )
        return f"{self.name}: ServiceAccount default and ConfigMap kube-root-ca.crt are in namespace {namespace}"

    async def delete_namespace(self, namespace: str) -> str:
        """Create a namespace with a ConfigMap, delete the namespace, and verify that both are gone."""
        await self.kubectl.run("create", "namespace", namespace)
        await self.kubectl.run("create", "configmap", "left-behind", "-n", namespace)
        await self.kubectl.run("delete", "namespace", namespace, "--wait=false")
        await wait_for(
            f"{self.name}: namespace {namespace} gone",
            lambda: self.kubectl.names("namespaces"),
            lambda names: namespace not in names,
        )
        left = await self.kubectl.items("configmaps", "-A", "--field-selector", f"metadata.namespace={namespace}")
        if left:
            raise DemoFailed(f"failed to empty namespace {namespace} of {self.name}: {len(left)} ConfigMaps are left")
        return f"{self.name}: namespace {namespace} and its ConfigMap are gone"


def _is_root_ca(configmap: Mapping[str, Any]) -> bool:
    return configmap["metadata"]["name"] == "kube-root-ca.crt" and "BEGIN CERTIFICATE" in json.dumps(configmap["data"])
