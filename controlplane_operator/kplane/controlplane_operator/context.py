"""The management cluster as the reconcilers work with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kplane.controlplane_operator.gateway import Gateway
from kplane.controlplane_operator.grants import Access
from kplane.controlplane_operator.metrics import Metrics
from kplane.controlplane_operator.secret_access import SecretAccess
from kplane.controlplane_operator.status.events import Events
from kplane.controlplane_operator.status.writer import StatusWriter
from kplane.controlplane_operator.watch.queues import Queues
from kplane.controlplane_operator.watch.stores import Stores
from kplane.provider import Client
from kplane.provider.client.connections import Connections

__all__ = ["OperatorContext"]

_LINGER_SECONDS: Final = 25.0
"""Longer than the time between two probes of credentials: a handshake costs several times what a probe does."""
_BRIEF_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class OperatorContext:
    """Client, caches, queues and writers, shared by all reconcilers of one operator."""

    client: Client
    stores: Stores
    queues: Queues
    status: StatusWriter
    events: Events
    access: Access
    secrets: SecretAccess
    namespace: str = "kplane-system"
    """The operator's own."""
    gateway: Gateway | None = None
    """None: there is none."""
    metrics: Metrics = field(default_factory=Metrics)
    connections: Connections = field(default_factory=lambda: Connections(linger_seconds=_LINGER_SECONDS))
    """To control planes: many of them may be behind one address."""
    brief_connections: Connections = field(default_factory=lambda: Connections(linger_seconds=_BRIEF_SECONDS))
    """The same for probes of credentials where too many connections would stay: an idle one takes 0.3 MiB."""
