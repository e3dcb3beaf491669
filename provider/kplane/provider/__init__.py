"""Controllers over a fleet of Kubernetes clusters that come and go: managers, caches, fair queues, coordinators."""

from __future__ import annotations

from kplane.provider.access.config import ClusterConfig
from kplane.provider.access.exec_plugin import ExecPlugin
from kplane.provider.access.impersonation import Impersonation
from kplane.provider.aio.backoff import Backoff
from kplane.provider.cache.cache import Cache
from kplane.provider.cache.event import Event, Registration
from kplane.provider.cache.informer import Informer
from kplane.provider.client.client import Client, ObjectList
from kplane.provider.client.connections import Connections
from kplane.provider.client.kinds import discover, resource_of
from kplane.provider.client.limits import Allowance, AnswerLimits
from kplane.provider.client.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    EVENTS,
    LEASES,
    NAMESPACES,
    NETWORK_POLICIES,
    PERSISTENT_VOLUME_CLAIMS,
    POD_DISRUPTION_BUDGETS,
    PODS,
    REPLICA_SETS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    STATEFUL_SETS,
    Resource,
)
from kplane.provider.client.watch import Watch, WatchEvent
from kplane.provider.cluster.cluster import Cluster
from kplane.provider.cluster.context import LOCAL, cluster_context, current_cluster
from kplane.provider.cluster.engagement import Engagement
from kplane.provider.cluster.recorder import EventRecorder
from kplane.provider.contracts import Aware, Fleet, LocalAware, Provider, Runnable
from kplane.provider.controllers.builder import controller, engage, every_owner, metadata_only
from kplane.provider.controllers.handlers import enqueue_mapped, enqueue_object, enqueue_owner
from kplane.provider.controllers.multicluster import MulticlusterController
from kplane.provider.controllers.queue import FairQueue
from kplane.provider.controllers.rate_limiter import ItemBackoff
from kplane.provider.controllers.request import ObjectKey, Request, single_cluster
from kplane.provider.controllers.workers import Controller, Result
from kplane.provider.coordination.election import Election
from kplane.provider.coordination.leader import Leader
from kplane.provider.coordination.lease import Lease, LeaseTimings
from kplane.provider.coordination.sharded import Sharded
from kplane.provider.errors import (
    AlreadyExists,
    AnswerTooLarge,
    ApiError,
    ClusterNotFound,
    ClusterNotOwned,
    ClusterNotReady,
    Conflict,
    Expired,
    Forbidden,
    Invalid,
    KubeconfigError,
    LeaseLost,
    NotFound,
    ProviderError,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from kplane.provider.fleet.clusters import Clusters
from kplane.provider.manager.checks import Checks
from kplane.provider.manager.manager import Manager, ScopedManager

__all__ = [
    "CLUSTER_ROLES",
    "CLUSTER_ROLE_BINDINGS",
    "CONFIG_MAPS",
    "CUSTOM_RESOURCE_DEFINITIONS",
    "DEPLOYMENTS",
    "EVENTS",
    "LEASES",
    "LOCAL",
    "NAMESPACES",
    "NETWORK_POLICIES",
    "PERSISTENT_VOLUME_CLAIMS",
    "PODS",
    "POD_DISRUPTION_BUDGETS",
    "REPLICA_SETS",
    "ROLES",
    "ROLE_BINDINGS",
    "SECRETS",
    "SERVICES",
    "SERVICE_ACCOUNTS",
    "STATEFUL_SETS",
    "Allowance",
    "AlreadyExists",
    "AnswerLimits",
    "AnswerTooLarge",
    "ApiError",
    "Aware",
    "Backoff",
    "Cache",
    "Checks",
    "Client",
    "Cluster",
    "ClusterConfig",
    "ClusterNotFound",
    "ClusterNotOwned",
    "ClusterNotReady",
    "Clusters",
    "Conflict",
    "Connections",
    "Controller",
    "Election",
    "Engagement",
    "Event",
    "EventRecorder",
    "ExecPlugin",
    "Expired",
    "FairQueue",
    "Fleet",
    "Forbidden",
    "Impersonation",
    "Informer",
    "Invalid",
    "ItemBackoff",
    "KubeconfigError",
    "Leader",
    "Lease",
    "LeaseLost",
    "LeaseTimings",
    "LocalAware",
    "Manager",
    "MulticlusterController",
    "NotFound",
    "ObjectKey",
    "ObjectList",
    "Provider",
    "ProviderError",
    "Registration",
    "Request",
    "Resource",
    "Result",
    "Runnable",
    "ScopedManager",
    "ServerError",
    "Sharded",
    "TooManyRequests",
    "Unauthorized",
    "Unreachable",
    "Watch",
    "WatchEvent",
    "cluster_context",
    "controller",
    "current_cluster",
    "discover",
    "engage",
    "enqueue_mapped",
    "enqueue_object",
    "enqueue_owner",
    "every_owner",
    "metadata_only",
    "resource_of",
    "single_cluster",
]
