"""Objects that all reconcilers of an operator share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kplane.controlplane_operator.gateway import Gateway
from kplane.controlplane_operator.grants import Access
from kplane.controlplane_operator.metrics import Metrics
from kplane.controlplane_operator.secret_access import SecretAccess
from kplane.controlplane_operator.status.events import Events
from kplane.controlplane_operator.status.writer import StatusWriter
from kplane.controlplane_operator.watch.stores import Stores
from kplane.controlplane_operator.watch.triggers import Triggers
from kplane.provider import Client
from kplane.provider.client.connections import Connections

__all__ = ["OperatorContext"]

_LINGER_SECONDS: Final = 25.0
"""Time in seconds for which idle connections stay open, longer than the interval of credential probes.

A TLS handshake costs several times as much as a probe.
"""
_BRIEF_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class OperatorContext:
    """Client, caches, triggers and writers, shared by all reconcilers of one operator."""

    client: Client
    stores: Stores
    triggers: Triggers
    status: StatusWriter
    events: Events
    access: Access
    secrets: SecretAccess
    namespace: str = "kplane-system"
    """Namespace of the operator."""
    gateway: Gateway | None = None
    """Gateway in front of control planes; None if there is none."""
    metrics: Metrics = field(default_factory=Metrics)
    connections: Connections = field(default_factory=lambda: Connections(linger_seconds=_LINGER_SECONDS))
    """Connections to control planes, many of which may have the same address."""
    brief_connections: Connections = field(default_factory=lambda: Connections(linger_seconds=_BRIEF_SECONDS))
    """Connections for credential probes, if there are too many to keep: an idle connection takes 0.3 MiB."""
