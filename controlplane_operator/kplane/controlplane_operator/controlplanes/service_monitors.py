"""Has Prometheus scrape the API servers of control planes: a client certificate and a ServiceMonitor for each."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlsplit

from kplane.api import ControlPlane
from kplane.api.names import management_namespace
from kplane.components.names import apiserver_name
from kplane.controlplane_operator.backends.base import Provision
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.credentials.secrets import delete_secret, write_secret
from kplane.controlplane_operator.watch.cache import Object
from kplane.pki.authorities import TenantAuthorities
from kplane.pki.entries import entries, find_pair, kept
from kplane.pki.primitives import KeyPair, issue_client
from kplane.provider import ApiError, NotFound, Resource
from kplane.workloads.pods.objects import COMPONENT_LABEL

__all__ = ["METRIC_RELABELINGS", "SERVICE_MONITORS", "ServiceMonitorSettings", "ServiceMonitors"]

_log: Final = logging.getLogger(__name__)

SERVICE_MONITORS: Final = Resource("monitoring.coreos.com/v1", "ServiceMonitor", "servicemonitors", namespaced=True)
_SECRET: Final = "control-plane-metrics"  # noqa: S105 - the name of a Secret
_NAME: Final = "kube-apiserver"
_CA: Final = "ca.crt"
_PAIR: Final = "tls"

_USER: Final = "kplane:metrics"
_GROUP: Final = "system:monitoring"
"""Upstream binds it to the ClusterRole of its name: metrics, health, and the metrics of nodes."""
_LIFETIME: Final = timedelta(days=6)
"""Certificates are renewed after two thirds of it. The rest outlasts an operator that is down for a day."""

_VERIFIED_SECONDS: Final = 600.0
"""So long a ServiceMonitor that was written is taken to be there."""

_SAMPLE_LIMIT: Final = 10_000
"""A new API server has 470 of what is kept. Custom resources add series, and they are up to the tenant."""
_KEPT: Final = (
    "apiserver_request_total",
    "apiserver_request_duration_seconds_(sum|count)",
    "apiserver_current_inflight_requests",
    "apiserver_admission_webhook_(rejection_count|fail_open_count)",
    "apiserver_resource_objects",
    "etcd_request_duration_seconds_(sum|count)",
    "apiserver_audit_(event|error)_total",
    "authentication_attempts",
    "process_(resident_memory_bytes|cpu_seconds_total)",
)
_IN_ONE_SECOND: Final = r"apiserver_request_duration_seconds_bucket;1(\.0)?"
"""One bucket of each histogram: it tells which part of the requests took longer than a second."""
METRIC_RELABELINGS: Final[tuple[Mapping[str, Any], ...]] = (
    {
        "sourceLabels": ["__name__", "le"],
        "regex": f"({'|'.join(_KEPT)});|{_IN_ONE_SECOND}",
        "action": "keep",
    },
    # How long a watch lasts says nothing of the API server.
    {
        "sourceLabels": ["__name__", "verb"],
        "regex": "apiserver_request_duration_seconds_.+;(WATCH|CONNECT)",
        "action": "drop",
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceMonitorSettings:
    """What ServiceMonitors of API servers say besides where these are."""

    job: str
    interval: str
    labels: Mapping[str, str] = field(default_factory=dict)
    """By which a Prometheus selects them."""


class ServiceMonitors:
    """Keeps the ServiceMonitor of each managed control plane, and the Secret that it authenticates with.

    The Secret owns the ServiceMonitor: garbage collection removes both, also for an operator that may no longer write
    ServiceMonitors.
    """

    def __init__(self, context: OperatorContext, *, settings: ServiceMonitorSettings | None) -> None:
        """Without `settings`, what was made before is taken away."""
        self._context = context
        self._settings = settings
        self._written: dict[str, tuple[str, float]] = {}
        """Digest of the last ServiceMonitor by uid of the control plane, and until when it is taken to be there."""

    def forget(self, uid: str) -> None:
        """Forget what was written for the control plane with this uid."""
        self._written.pop(uid, None)

    async def ensure(self, control_plane: ControlPlane, *, provision: Provision | None) -> None:
        """Have Secret and ServiceMonitor say how the API server is scraped.

        Without a provision, what there is stays. A cluster that refuses the ServiceMonitor gets an Event.
        """
        if self._settings is None:
            await self._remove(control_plane)
        elif provision is not None and provision.authorities is not None:
            ca = provision.authorities.serving_trust
            data = {**entries(_PAIR, self._pair(control_plane, provision.authorities)), _CA: ca}
            await write_secret(self._context, control_plane, name=_SECRET, data=data)
            await self._apply(control_plane, server=provision.addresses.internal, settings=self._settings)

    def _pair(self, control_plane: ControlPlane, authorities: TenantAuthorities) -> KeyPair:
        """Return the certificate that there is, or another one if it is due."""
        # By uid, because a certificate cannot be revoked, and another control plane may adopt the CAs.
        user = f"{_USER}:{control_plane.metadata.uid}"
        previous = find_pair(self._known(control_plane), _PAIR)
        good = kept(previous, authorities.client, now=datetime.now(UTC), user=user)
        return good or issue_client(authorities.client, user=user, groups=[_GROUP], lifetime=_LIFETIME)

    async def _apply(self, control_plane: ControlPlane, *, server: str, settings: ServiceMonitorSettings) -> None:
        secret, uid = self._known(control_plane), control_plane.metadata.uid or ""
        if secret is None:
            return  # it was deleted in this moment, and that wakes us
        body = _service_monitor(control_plane, secret=secret, server=server, settings=settings)
        digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        known, until = self._written.get(uid, ("", 0.0))
        if known == digest and time.monotonic() < until:
            return
        try:
            await self._context.client.apply(SERVICE_MONITORS, body, force=True)
        except ApiError as error:
            where, advice = secret["metadata"]["namespace"], ""
            if isinstance(error, NotFound):
                advice = "; install the CRDs of the Prometheus Operator"
            message = f"failed to write ServiceMonitor {_NAME} in namespace {where}: {error}{advice}"
            _log.warning("%s", message)
            self._context.events.record(control_plane, reason="MetricsNotScraped", message=message, warning=True)
        else:
            self._written[uid] = digest, time.monotonic() + _VERIFIED_SECONDS

    async def _remove(self, control_plane: ControlPlane) -> None:
        known = self._known(control_plane)
        owners = (known or {}).get("metadata", {}).get("ownerReferences") or ()
        if any(owner.get("uid") == control_plane.metadata.uid for owner in owners):
            await delete_secret(self._context, control_plane, name=_SECRET)

    def _known(self, control_plane: ControlPlane) -> Object | None:
        return self._context.stores.secrets.get((management_namespace(control_plane.name), _SECRET))


def _service_monitor(
    control_plane: ControlPlane, *, secret: Object, server: str, settings: ServiceMonitorSettings
) -> Object:
    """Describe the ServiceMonitor. It is one of each API server, because each has CAs of its own."""
    metadata = secret["metadata"]

    def entry(key: str) -> dict[str, str]:
        return {"name": _SECRET, "key": key}

    endpoint: dict[str, Any] = {
        "port": "https",
        "scheme": "https",
        "path": "/metrics",
        "interval": settings.interval,
        "honorLabels": False,
        "tlsConfig": {
            "ca": {"secret": entry(_CA)},
            "cert": {"secret": entry(f"{_PAIR}.crt")},
            "keySecret": entry(f"{_PAIR}.key"),
            # Prometheus connects to pods by their addresses, which no certificate names.
            "serverName": urlsplit(server).hostname,
        },
        "relabelings": [
            {"targetLabel": "job", "replacement": settings.job},
            {"targetLabel": "control_plane", "replacement": control_plane.name},
        ],
        "metricRelabelings": list(METRIC_RELABELINGS),
    }
    owner = {"apiVersion": "v1", "kind": "Secret", "name": _SECRET, "uid": metadata["uid"]}
    return {
        "metadata": {
            "name": _NAME,
            "namespace": metadata["namespace"],
            "labels": dict(settings.labels),
            "ownerReferences": [owner],
        },
        "spec": {
            "selector": {
                "matchLabels": {COMPONENT_LABEL: apiserver_name(control_plane.name, slot=control_plane.home.slot)}
            },
            "endpoints": [endpoint],
            "sampleLimit": _SAMPLE_LIMIT,
        },
    }
