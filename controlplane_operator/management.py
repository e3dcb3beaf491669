"""The management cluster as the reconcilers work with it."""

from __future__ import annotations

from dataclasses import dataclass, field

from controlplane_operator.access import Access
from controlplane_operator.events import Events
from controlplane_operator.fanout import Queues, Stores
from controlplane_operator.metrics import Metrics
from controlplane_operator.status import StatusWriter
from provider import Client, Connections

__all__ = ["Management"]


@dataclass(frozen=True, slots=True)
class Management:
    """Client, caches, queues and writers, shared by all reconcilers of one operator."""

    client: Client
    stores: Stores
    queues: Queues
    status: StatusWriter
    events: Events
    access: Access
    metrics: Metrics = field(default_factory=Metrics)
    connections: Connections = field(default_factory=Connections)
    """To control planes: many of them may be behind one address."""
