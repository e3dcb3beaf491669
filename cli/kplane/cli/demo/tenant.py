"""Access of a control plane's owner: the published kubeconfig and the real kubectl."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Self

from kplane.cli.demo.orders import OrderVersion
from kplane.cli.demo.waiting import wait_for
from kplane.cli.errors import DemoFailed
from kplane.client import ControlPlanes
from kplane.embedded.credentials import write_private
from kplane.embedded.errors import KubectlFailed
from kplane.embedded.handle import Handle
from kplane.embedded.kubectl import Kubectl
from kplane.provider import ClusterConfig

__all__ = ["Tenant"]


@dataclass(frozen=True, slots=True)
class Tenant:
    """Control plane, with the access of its administrator."""

    name: str
    cluster_path: str
    kubectl: Kubectl

    @classmethod
    async def open(cls, handle: Handle, control_planes: ControlPlanes, name: str) -> Self:
        """Return the tenant of a control plane, after writing the published kubeconfig to a private file."""
        directory = handle.directory / "tenants"
        directory.mkdir(mode=0o700, exist_ok=True)
        file = directory / f"{name}.kubeconfig"
        write_private(file, content=(await control_planes.kubeconfig(name)).encode())
        path = (await control_planes.get(name)).status.cluster_path or name
        return cls(name, path, Kubectl(program=handle.kubectl_program, kubeconfig=file))

    @property
    def config(self) -> ClusterConfig:
        """The same access, for a Python client."""
        return ClusterConfig.load(self.kubectl.kubeconfig)

    async def ask(self) -> float:
        """List the namespaces, and return the seconds until the answer."""
        begun = time.monotonic()
        await self.kubectl.names("namespaces")
        return time.monotonic() - begun

    async def install(self, kind: OrderVersion) -> None:
        """Install a CRD, create an object and read it. Raises `DemoFailed` without rights, or if the object differs."""
        if (await self.kubectl.run("auth", "can-i", "*", "*", "--all-namespaces")).strip() != "yes":
            raise DemoFailed(f"failed to install a CRD in {self.name}: its kubeconfig is not that of a cluster-admin")
        await self.kubectl.apply(kind.definition())
        await wait_for(
            f"{self.name}: an object of {kind.api_version}",
            lambda: self.kubectl.apply(kind.order("first")),
            lambda told: "order.shop" in told,
            timeout_seconds=30.0,
        )
        order = await self.kubectl.get("orders", "first")
        if (order["apiVersion"], order["spec"]) != (kind.api_version, kind.example):
            raise DemoFailed(f"failed to read an object of {kind.api_version} in {self.name}: {order}")

    async def refuses(self, kind: OrderVersion) -> None:
        """Raise `DemoFailed` if the control plane accepts an object of a version that was not installed in it."""
        try:
            await self.kubectl.apply(kind.order("foreign"))
        except KubectlFailed as error:
            if "no matches for kind" in str(error):
                return
            raise
        raise DemoFailed(f"failed to keep CRDs apart: {self.name} accepts {kind.api_version} of its neighbour")

    async def wait_pods(self, *, namespace: str, replicas: int) -> None:
        """Wait until a Deployment has its Pods. Raises `DemoFailed` if a Pod is not Pending, because no nodes exist."""
        pods = await wait_for(
            f"{self.name}: {replicas} Pods",
            lambda: self.kubectl.items("pods", "-n", namespace),
            lambda found: len(found) == replicas,
        )
        phases = sorted({pod["status"]["phase"] for pod in pods})
        if phases != ["Pending"]:
            raise DemoFailed(f"failed to verify the Pods of {self.name}: {phases}, expected Pending without nodes")
