"""Readiness of API servers, which depends on the version that bootstrapped their data.

Two checks of `/readyz` report that an API server has bootstrapped its data: the RBAC roles and the priority classes.
The API server runs both hooks after about a second. If the objects exist already, its answers do not depend on these
hooks.

Another check reports that each Service has its IPAddress, and each IPAddress its Service. At its start, an API server
lists both at slightly different moments, and writes missing objects. A read-only API server fails this check while
other clients write Services. It does not repeat the check, and ends after a minute (`RepairIPAddress.RunUntil` in
upstream's repairip.go).
"""

from __future__ import annotations

import asyncio
from typing import Final

from kplane.api import ControlPlane, KubernetesVersion
from kplane.api.reasons import Reason
from kplane.components.api_server import READY
from kplane.controlplane_operator.status.errors import ConditionError, start_reason
from kplane.controlplane_operator.tenant.client import tenant_client
from kplane.provider import ClusterConfig, ProviderError
from kplane.provider.client.connections import Connections

__all__ = [
    "BOOTSTRAP_CHECKS",
    "READY_WITHOUT_BOOTSTRAP_CHECKS",
    "UNREPAIRED_SECONDS",
    "check_bootstrapped",
    "is_bootstrapped",
    "is_unrepaired",
]

BOOTSTRAP_CHECKS: Final = (
    "poststarthook/rbac/bootstrap-roles",
    "poststarthook/scheduling/bootstrap-system-priority-classes",
)
READY_WITHOUT_BOOTSTRAP_CHECKS: Final = f"{READY}?{'&'.join(f'exclude={each}' for each in BOOTSTRAP_CHECKS)}"
"""Path that answers 200 when an API server serves, independent of its data.

Its checks include `informer-sync`, so roles are in force.
"""
UNREPAIRED_SECONDS: Final = 10.0
"""Time after which an unrepaired API server counts as failed; the check takes less than a second."""

_READY_BUT_UNREPAIRED: Final = (
    f"{READY_WITHOUT_BOOTSTRAP_CHECKS}&exclude=poststarthook/start-service-ip-repair-controllers"
)
_PATIENCE_SECONDS: Final = 3.0
_POLL_SECONDS: Final = 0.1


def is_bootstrapped(control_plane: ControlPlane, *, version: str | None, fresh: bool) -> bool:
    """Return whether an API server of this version has bootstrapped the data of a control plane.

    `fresh` means that the data are a copy of a template of this version. If either version is unknown, published data
    count as bootstrapped.
    """
    if control_plane.status.endpoint is None:
        return fresh
    former, present = KubernetesVersion.parse(control_plane.status.version), KubernetesVersion.parse(version)
    return former is None or present is None or former == present


async def check_bootstrapped(config: ClusterConfig, *, published: bool, connections: Connections | None) -> None:
    """Wait up to 3 s until an API server has bootstrapped its data; `config` has the administrator's credentials.

    Raises ConditionError on timeout: Provisioning, or APIServerNotReady if `published`.
    """
    details = ""
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS), tenant_client(config, connections=connections) as client:
            while True:
                try:
                    return await client.probe(READY)
                except ProviderError as error:
                    details = f": {error}"
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        reason = start_reason(Reason.PROVISIONING, published=published)
        raise ConditionError(reason, f"waiting for kube-apiserver, which bootstraps its data{details}") from None


async def is_unrepaired(config: ClusterConfig, *, connections: Connections | None) -> bool:
    """Return whether an API server that is not ready only lacks the repair of Service IPs."""
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS), tenant_client(config, connections=connections) as client:
            await client.probe(_READY_BUT_UNREPAIRED)
    except (ProviderError, TimeoutError):
        return False
    return True
