"""Metrics of API servers: a client certificate and a ServiceMonitor for each control plane, for Prometheus."""

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
"""Kubernetes binds this group to the ClusterRole `system:monitoring`, which allows metrics, health and metrics of
nodes."""
_LIFETIME: Final = timedelta(days=6)
"""Lifetime of a certificate. It is renewed after two thirds; the last third outlasts an operator that is down for a
day."""

_VERIFIED_SECONDS: Final = 600.0
"""Time during which the operator does not write an unchanged ServiceMonitor again."""

_SAMPLE_LIMIT: Final = 10_000
"""Limit of samples per scrape. A new API server has 470 samples after filtering; each custom resource adds more."""
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
"""The 1 s bucket of each histogram, which gives the share of requests that took longer than a second."""
METRIC_RELABELINGS: Final[tuple[Mapping[str, Any], ...]] = (
    {
        "sourceLabels": ["__name__", "le"],
        "regex": f"({'|'.join(_KEPT)});|{_IN_ONE_SECOND}",
        "action": "keep",
    },
    # The duration of a watch or a connection is chosen by the client, so it does not measure the API server.
    {
        "sourceLabels": ["__name__", "verb"],
        "regex": "apiserver_request_duration_seconds_.+;(WATCH|CONNECT)",
        "action": "drop",
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceMonitorSettings:
    """Job name, scrape interval and labels of the ServiceMonitors."""

    job: str
    interval: str
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels by which a Prometheus selects the ServiceMonitors."""


class ServiceMonitors:
    """Maintains the ServiceMonitor of each managed control plane and the Secret with its client certificate.

    The Secret owns the ServiceMonitor. So garbage collection removes both, even if the operator may no longer write
    ServiceMonitors.
    """

    def __init__(self, context: OperatorContext, *, settings: ServiceMonitorSettings | None) -> None:
        """If `settings` is None, `ensure` removes the Secrets that were made with earlier settings."""
        self._context = context
        self._settings = settings
        self._written: dict[str, tuple[str, float]] = {}
        """By uid of the control plane: digest of the last ServiceMonitor, and the monotonic time until which it is not
        rewritten."""

    def forget(self, uid: str) -> None:
        """Discard the state of the control plane with this uid."""
        self._written.pop(uid, None)

    async def ensure(self, control_plane: ControlPlane, *, provision: Provision | None) -> None:
        """Create or update the Secret and the ServiceMonitor of the control plane.

        Without a provision, existing objects stay as they are. If the cluster refuses the ServiceMonitor, a Warning
        Event is recorded and the refusal is logged.
        """
        if self._settings is None:
            await self._remove(control_plane)
        elif provision is not None and provision.authorities is not None:
            ca = provision.authorities.serving_trust
            data = {**entries(_PAIR, self._pair(control_plane, provision.authorities)), _CA: ca}
            await write_secret(self._context, control_plane, name=_SECRET, data=data)
            await self._apply(control_plane, server=provision.addresses.internal, settings=self._settings)

    def _pair(self, control_plane: ControlPlane, authorities: TenantAuthorities) -> KeyPair:
        """Return the present client certificate, or issue a new one if its renewal is due."""
        # The user name contains the uid: a certificate cannot be revoked, and another control plane may adopt the CAs.
        user = f"{_USER}:{control_plane.metadata.uid}"
        previous = find_pair(self._known(control_plane), _PAIR)
        current = kept(previous, authorities.client, now=datetime.now(UTC), user=user)
        return current or issue_client(authorities.client, user=user, groups=[_GROUP], lifetime=_LIFETIME)

    async def _apply(self, control_plane: ControlPlane, *, server: str, settings: ServiceMonitorSettings) -> None:
        secret, uid = self._known(control_plane), control_plane.metadata.uid or ""
        if secret is None:
            return  # the Secret was just deleted; that event wakes the reconciler
        body = _service_monitor(control_plane, secret=secret, server=server, settings=settings)
        digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        digest_written, until = self._written.get(uid, ("", 0.0))
        if digest_written == digest and time.monotonic() < until:
            return
        try:
            await self._context.client.apply(SERVICE_MONITORS, body, force=True)
        except ApiError as error:
            namespace, advice = secret["metadata"]["namespace"], ""
            if isinstance(error, NotFound):
                advice = "; install the CRDs of the Prometheus Operator"
            message = f"failed to write ServiceMonitor {_NAME} in namespace {namespace}: {error}{advice}"
            _log.warning("%s", message)
            self._context.events.record(control_plane, reason="MetricsNotScraped", message=message, warning=True)
        else:
            self._written[uid] = digest, time.monotonic() + _VERIFIED_SECONDS

    async def _remove(self, control_plane: ControlPlane) -> None:
        existing = self._known(control_plane)
        owners = (existing or {}).get("metadata", {}).get("ownerReferences") or ()
        if any(owner.get("uid") == control_plane.metadata.uid for owner in owners):
            await delete_secret(self._context, control_plane, name=_SECRET)

    def _known(self, control_plane: ControlPlane) -> Object | None:
        return self._context.stores.secrets.get((management_namespace(control_plane.name), _SECRET))


def _service_monitor(
    control_plane: ControlPlane, *, secret: Object, server: str, settings: ServiceMonitorSettings
) -> Object:
    """Return the ServiceMonitor of an API server.

    Each API server has its own ServiceMonitor, because it has its own CAs.
    """
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
            # Prometheus connects to the addresses of pods, which are not in the certificate.
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
