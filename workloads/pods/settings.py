"""What a PodRuntime is told about the cluster that it works in."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Expose", "Image", "Placement", "PodSettings"]


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


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the objects of a component are."""

    namespace: str
    name: str
    """Of its Deployment or StatefulSet, Service, NetworkPolicy and so on; short, as pods get longer names from it."""


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
    allow_egress: tuple[str, ...] = ()
    """Networks (CIDR) that components may connect to besides DNS and `Component.reaches`."""
