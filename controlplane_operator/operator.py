"""The running operator: everything built, connected, and ended in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

from controlplane_operator.access import Access
from controlplane_operator.cache import Key, Object
from controlplane_operator.claims import Claims
from controlplane_operator.control_plane import ControlPlaneReconciler, Provisioners
from controlplane_operator.control_plane_class import ControlPlaneClassReconciler
from controlplane_operator.control_plane_endpoint import ControlPlaneEndpointReconciler
from controlplane_operator.control_plane_registration import ControlPlaneRegistrationReconciler
from controlplane_operator.events import Events
from controlplane_operator.fanout import ALLOWED_SECRETS, LABEL_SELECTORS, Queues, Stores, connect, wake_by_component
from controlplane_operator.health import Check, serve_health
from controlplane_operator.management import Management
from controlplane_operator.metrics import Metrics
from controlplane_operator.namespaces import ManagementNamespaces
from controlplane_operator.publication import Publication
from controlplane_operator.relisting import Relisting
from controlplane_operator.removal import Removal
from controlplane_operator.settings import Settings
from controlplane_operator.status import StatusWriter
from controlplane_operator.watching import Watching
from provider import SECRETS, Client, ClusterConfig, Controller, Reflector, Result
from workloads import ProcessRuntime, Runtime

__all__ = ["run_operator"]

_log: Final = logging.getLogger(__name__)

_CALL_SECONDS: Final = 10.0
_RECONCILE_SECONDS: Final = 60.0

Reconcile = Callable[[Key], Awaitable[Result | None]]
