"""Prometheus metrics of the remaining validity of published credentials."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from kplane.api.names import controllers_secret_name, kubeconfig_secret_name, management_namespace
from kplane.controlplane_operator.watch.stores import Stores
from kplane.pki.issuing import expires_at

__all__ = ["ExpiryMetrics"]

_SECRETS: Final = {"kubeconfig": kubeconfig_secret_name, "controllers": controllers_secret_name}


class ExpiryMetrics(Collector):
    """Reads the published Secrets at each scrape, so that deleted control planes leave no series behind."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores

    @override
    def collect(self) -> Iterable[Metric]:
        now = datetime.now(UTC)
        family = GaugeMetricFamily(
            "kplane_credentials_expiry_seconds",
            "Seconds until the credentials in a published Secret end; negative once they have",
            labels=["control_plane", "secret"],
        )
        for obj in self._stores.control_planes:
            name = obj["metadata"]["name"]
            for label, secret_name in _SECRETS.items():
                secret = self._stores.secrets.get((management_namespace(name), secret_name(name)))
                expires = expires_at(secret) if secret is not None else None
                if expires is not None:
                    family.add_metric([name, label], (expires - now).total_seconds())
        yield family
