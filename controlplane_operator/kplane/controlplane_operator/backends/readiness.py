"""When an API server is ready: on data that one of its version has bootstrapped, and on others.

Two checks of `/readyz` say that an API server has bootstrapped its data: roles, and classes of priority. It looks at
those after a second. If it finds them there, nothing in its answers depends on that look.

Another check says that each Service has its address, and each address its Service. At its start an API server looks at
the two lists, of slightly different moments, and writes what is missing. One that only reads fails there while others
write Services. It never looks again, and ends after a minute (`RepairIPAddress.RunUntil` in upstream's repairip.go).
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
"""Answers 200 when an API server serves, whatever the data. `informer-sync` is among its checks: roles are in force."""
UNREPAIRED_SECONDS: Final = 10.0
"""One that is unrepaired for so long has failed: the look takes less than a second."""

_READY_BUT_UNREPAIRED: Final = (
    f"{READY_WITHOUT_BOOTSTRAP_CHECKS}&exclude=poststarthook/start-service-ip-repair-controllers"
)
_PATIENCE_SECONDS: Final = 3.0
_POLL_SECONDS: Final = 0.1


def is_bootstrapped(control_plane: ControlPlane, *, version: str | None, fresh: bool) -> bool:
    """Tell whether the data of a control plane were bootstrapped by an API server of a version.

    `fresh` says that they are a copy of a template, which is of this version. If a version is not known, published
    data count as bootstrapped.
    """
    if control_plane.status.endpoint is None:
        return fresh
    former, present = KubernetesVersion.parse(control_plane.status.version), KubernetesVersion.parse(version)
    return former is None or present is None or former == present


async def check_bootstrapped(config: ClusterConfig, *, published: bool, connections: Connections | None) -> None:
    """Wait a little until an API server has bootstrapped its data; `config` is an administrator's.

    Raises ConditionError (Provisioning, or APIServerNotReady once published) while it has not.
    """
    said = ""
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS), tenant_client(config, connections=connections) as client:
            while True:
                try:
                    return await client.probe(READY)
                except ProviderError as error:
                    said = f": {error}"
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        reason = start_reason(Reason.PROVISIONING, published=published)
        raise ConditionError(reason, f"waiting for kube-apiserver, which bootstraps its data{said}") from None


async def is_unrepaired(config: ClusterConfig, *, connections: Connections | None) -> bool:
    """Tell of an API server that is not ready whether it only waits for Services to have their addresses."""
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS), tenant_client(config, connections=connections) as client:
            await client.probe(_READY_BUT_UNREPAIRED)
    except (ProviderError, TimeoutError):
        return False
    return True
