"""Controllers over a fleet of Kubernetes clusters that come and go: managers, caches, fair queues, coordinators."""

from __future__ import annotations

from provider.aware import Aware, LocalAware, Provider, Runnable
from provider.backoff import Backoff
from provider.builder import controller, engage, every_owner, metadata_only
from provider.cache import Cache
from provider.checks import Checks
from provider.client import Client, ObjectList
from provider.cluster import Cluster
from provider.clusters import Clusters
from provider.connections import Connections
from provider.context import cluster_context, current_cluster, single_cluster
from provider.coordinator.leader import Leader
from provider.coordinator.sharded import Sharded
from provider.delivery import Registration
from provider.election import Election
from provider.engagement import Engagement
from provider.errors import (
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
    QueueClosed,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from provider.event import Event
from provider.exec_plugin import ExecPlugin
from provider.fleet import Fleet
from provider.handlers import enqueue_mapped, enqueue_object, enqueue_owner
from provider.impersonation import Impersonation
from provider.informer import Informer
from provider.kinds import discover, resource_of
from provider.kopf_bridge import KopfAware
from provider.kubeconfig import ClusterConfig
from provider.lease import Lease, LeaseTimings
from provider.limits import Allowance, AnswerLimits
from provider.manager import Manager
from provider.metrics import Metrics
from provider.multicluster import MulticlusterController
from provider.queue import WorkQueue
from provider.recorder import EventRecorder
from provider.reflector import Reflector
from provider.request import LOCAL, ObjectKey, Request
from provider.resources import (
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
from provider.scoped import ScopedManager
from provider.serving import Serving
from provider.watch import Watch, WatchEvent
from provider.workers import Controller, Result

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
    "Fleet",
    "Forbidden",
    "Impersonation",
    "Informer",
    "Invalid",
    "KopfAware",
    "KubeconfigError",
    "Leader",
    "Lease",
    "LeaseLost",
    "LeaseTimings",
    "LocalAware",
    "Manager",
    "Metrics",
    "MulticlusterController",
    "NotFound",
    "ObjectKey",
    "ObjectList",
    "Provider",
    "ProviderError",
    "QueueClosed",
    "Reflector",
    "Registration",
    "Request",
    "Resource",
    "Result",
    "Runnable",
    "ScopedManager",
    "ServerError",
    "Serving",
    "Sharded",
    "TooManyRequests",
    "Unauthorized",
    "Unreachable",
    "Watch",
    "WatchEvent",
    "WorkQueue",
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
