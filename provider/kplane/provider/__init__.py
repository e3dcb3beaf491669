"""Controllers over a fleet of Kubernetes clusters that come and go: what authors of reconcilers need.

Everything else is imported from its module, such as `kplane.provider.client.resources` for constants of kinds.
"""

from __future__ import annotations

from kplane.provider.access.config import ClusterConfig
from kplane.provider.cache.cache import Cache
from kplane.provider.cache.event import Event
from kplane.provider.cache.informer import Informer
from kplane.provider.cache.scope import CacheScope
from kplane.provider.client.client import Client
from kplane.provider.client.kinds import resource_of, typed_kind
from kplane.provider.client.resources import Resource
from kplane.provider.cluster.cluster import Cluster
from kplane.provider.cluster.context import LOCAL, current_cluster
from kplane.provider.cluster.engagement import Engagement
from kplane.provider.contracts import Aware, Fleet, Provider, Runnable
from kplane.provider.controllers.builder import controller, engage, every_owner, metadata_only, predicates
from kplane.provider.controllers.handlers import enqueue_mapped, enqueue_object, enqueue_owner
from kplane.provider.controllers.predicates import (
    annotations_changed,
    generation_changed,
    in_namespaces,
    labels_changed,
    matches_labels,
    on_events,
)
from kplane.provider.controllers.request import ObjectKey, Request, single_cluster
from kplane.provider.controllers.workers import Result
from kplane.provider.coordination.election import Election
from kplane.provider.coordination.leader import Leader
from kplane.provider.coordination.lease import Lease
from kplane.provider.coordination.sharded import Sharded
from kplane.provider.errors import (
    AlreadyExists,
    ApiError,
    ClusterNotFound,
    ClusterNotOwned,
    ClusterNotReady,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    NotServed,
    ProviderError,
    Unreachable,
)
from kplane.provider.manager.manager import Manager
from kplane.provider.serving.process import run

__all__ = [
    "LOCAL",
    "AlreadyExists",
    "ApiError",
    "Aware",
    "Cache",
    "CacheScope",
    "Client",
    "Cluster",
    "ClusterConfig",
    "ClusterNotFound",
    "ClusterNotOwned",
    "ClusterNotReady",
    "Conflict",
    "Election",
    "Engagement",
    "Event",
    "Fleet",
    "Forbidden",
    "Informer",
    "Invalid",
    "Leader",
    "Lease",
    "Manager",
    "NotFound",
    "NotServed",
    "ObjectKey",
    "Provider",
    "ProviderError",
    "Request",
    "Resource",
    "Result",
    "Runnable",
    "Sharded",
    "Unreachable",
    "annotations_changed",
    "controller",
    "current_cluster",
    "engage",
    "enqueue_mapped",
    "enqueue_object",
    "enqueue_owner",
    "every_owner",
    "generation_changed",
    "in_namespaces",
    "labels_changed",
    "matches_labels",
    "metadata_only",
    "on_events",
    "predicates",
    "resource_of",
    "run",
    "single_cluster",
    "typed_kind",
]
