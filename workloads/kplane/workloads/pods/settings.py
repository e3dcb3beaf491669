"""What a PodRuntime is told about the cluster that it works in."""

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
"""The pods of CoreDNS, by the label that it has in all usual installations."""

_RELEASE: Final = re.compile(r"v?([0-9]+[.][0-9]+[.][0-9]+)")


class Expose(enum.StrEnum):
    """How components that are to be reached from outside of the cluster are: Kubernetes' types of Services."""

    CLUSTER_IP = "ClusterIP"
    """Not at all."""
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


@dataclass(frozen=True, slots=True)
class Image:
    """A container image that has a program on its PATH."""

    reference: str
    capabilities: tuple[str, ...] = ()
    """Linux capabilities that the program's file carries: without them the kernel does not start it."""
    pull_policy: str = "IfNotPresent"
    """When nodes pull it: Kubernetes' word."""

    @property
    def version(self) -> str | None:
        """The release that the tag names, such as "1.36.3"; None if it names none. A digest may follow the tag."""
        release = _RELEASE.fullmatch(self._split()[1])
        return release[1] if release is not None else None

    def at(self, version: str) -> Image:
        """Return the image of another version, such as "1.36.4": the same repository, with tag `v<version>`.

        Raises RuntimeFailure for an image that is named by its digest: it is one version for good.
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
        """Return repository and tag; a colon before the last slash is one before a port."""
        place, slash, name = self.reference.partition("@")[0].rpartition("/")
        name, _, tag = name.partition(":")
        return f"{place}{slash}{name}", tag


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the objects of a component are."""

    namespace: str
    name: str
    """Of its Deployment or StatefulSet, Service, NetworkPolicy and so on; short, as pods get longer names from it."""
    group: str | None = None
    """Of components that hold the same data: the name of the first of them. Their pods are spread over nodes and find
    each other before they are ready, and a drain takes one of them at a time.
    """

    @property
    def role(self) -> str:
        """What the component is, for labels."""
        return self.group or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSettings:
    """How components run as pods."""

    images: Mapping[str, Image]
    """By program."""
    ports: Mapping[str, int]
    """Number of each port that components have, by its name; every component has an address of its own."""
    pull_secrets: tuple[str, ...] = ()
    """Names of Secrets for pulling images, which components get a copy of in their namespaces."""
    pull_secrets_namespace: str = ""
    """Where these Secrets are."""
    replicas: int = 1
    """Of components without data."""
    expose: Expose = Expose.CLUSTER_IP
    external_host: str | None = None
    """Name or address of the nodes, for `Expose.NODE_PORT`."""
    storage_class: str | None = None
    """None: the default class of the cluster."""
    storage_size: str = "10Gi"
    dns: tuple[Mapping[str, Any], ...] = CLUSTER_DNS
    """Who answers DNS, as peers of a NetworkPolicy of any namespace."""
    operator: Mapping[str, Any] | None = None
    """The pods of the runtime's owner, as a peer of a NetworkPolicy; None: it is no pod."""
    metrics_from: tuple[Mapping[str, Any], ...] | None = None
    """Who may read metrics, as peers of a NetworkPolicy of any namespace; None: anybody."""
