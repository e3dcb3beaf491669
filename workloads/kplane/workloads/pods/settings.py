"""Settings of a PodRuntime for its cluster."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from kplane.workloads.errors import RuntimeFailure

__all__ = ["CLUSTER_DNS", "Expose", "Image", "Placement", "PodSettings"]

CLUSTER_DNS: Final[tuple[Mapping[str, Any], ...]] = (
    {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
    },
)
"""The pods of CoreDNS, by the label that they have in all usual installations."""

_RELEASE: Final = re.compile(r"v?([0-9]+[.][0-9]+[.][0-9]+)")


class Expose(enum.StrEnum):
    """Exposure of components to clients outside of the cluster, by Kubernetes' types of Services."""

    CLUSTER_IP = "ClusterIP"
    """No exposure."""
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


@dataclass(frozen=True, slots=True)
class Image:
    """A container image that has a program on its PATH."""

    reference: str
    capabilities: tuple[str, ...] = ()
    """Linux capabilities that the program's file carries. Without them, the kernel does not start the program."""
    pull_policy: str = "IfNotPresent"
    """Kubernetes' pull policy of the image."""

    @property
    def version(self) -> str | None:
        """Version in the tag, such as "1.36.3"; None if the tag names no version. A digest may follow the tag."""
        release = _RELEASE.fullmatch(self._split()[1])
        return release[1] if release is not None else None

    def at(self, version: str) -> Image:
        """Return the image of another version, such as "1.36.4": the same repository, with tag `v<version>`.

        Raises RuntimeFailure for an image that is named by its digest, because a digest identifies a single version.
        """
        if version == self.version:
            return self
        if "@" in self.reference:
            raise RuntimeFailure(
                f"image {self.reference} is named by its digest, which is one version for good; to have others, name it"
                " by a tag"
            )
        return replace(self, reference=f"{self._split()[0]}:v{version}")

    def _split(self) -> tuple[str, str]:
        """Return repository and tag. A colon before the last slash precedes a port."""
        place, slash, name = self.reference.partition("@")[0].rpartition("/")
        name, _, tag = name.partition(":")
        return f"{place}{slash}{name}", tag


@dataclass(frozen=True, slots=True)
class Placement:
    """Namespace and name of the objects of a component."""

    namespace: str
    name: str
    """Name of the Deployment or StatefulSet, Service, NetworkPolicy and other objects.

    The name has to be short, because pods get longer names from it.
    """
    group: str | None = None
    """Group of components that hold the same data: the name of the first component.

    The pods of a group are spread over nodes and find each other before they are ready. A drain evicts a single pod of
    the group at a time.
    """

    @property
    def role(self) -> str:
        """Role of the component, for labels."""
        return self.group or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSettings:
    """Settings of components that run as pods."""

    images: Mapping[str, Image]
    """Images by program."""
    ports: Mapping[str, int]
    """Port numbers by port name. Components can have equal ports, because every component has an address of its own."""
    pull_secrets: tuple[str, ...] = ()
    """Names of Secrets for pulling images. The runtime copies them to the namespaces of components."""
    pull_secrets_namespace: str = ""
    """Namespace of these Secrets."""
    replicas: int = 1
    """Number of pods of a component without data."""
    expose: Expose = Expose.CLUSTER_IP
    external_host: str | None = None
    """Name or address of the nodes, for `Expose.NODE_PORT`."""
    storage_class: str | None = None
    """None: the default class of the cluster."""
    storage_size: str = "10Gi"
    dns: tuple[Mapping[str, Any], ...] = CLUSTER_DNS
    """DNS servers, as peers of a NetworkPolicy in any namespace."""
    operator: Mapping[str, Any] | None = None
    """The pods of the runtime's owner, as a peer of a NetworkPolicy; None: the owner is no pod."""
    metrics_from: tuple[Mapping[str, Any], ...] | None = None
    """Pods that may read metrics, as peers of a NetworkPolicy in any namespace; None: any client."""
