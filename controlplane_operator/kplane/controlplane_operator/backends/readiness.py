"""When an API server is ready: on data that one of its version has begun, and on others.

Two checks of `/readyz` say that an API server has written what it begins with: roles, and classes of priority. It looks
at those after a second. If it finds them there, nothing in its answers depends on that look.
"""

from __future__ import annotations

import asyncio
from typing import Final

from kplane.api import ControlPlane, KubernetesVersion
from kplane.controlplane_operator.reasons import Reason
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.tenant.client import tenant_client
from kplane.provider import ClusterConfig, ProviderError
from kplane.provider.client.connections import Connections

__all__ = ["BEGINNINGS", "READY", "READY_ON_BEGUN_DATA", "check_begun", "has_begun"]

READY: Final = "/readyz"
"""Answers 200 when an API server serves, and has written what it begins with."""
BEGINNINGS: Final = (
    "poststarthook/rbac/bootstrap-roles",
    "poststarthook/scheduling/bootstrap-system-priority-classes",
)
READY_ON_BEGUN_DATA: Final = f"{READY}?{'&'.join(f'exclude={each}' for each in BEGINNINGS)}"
"""Answers 200 when an API server serves, whatever the data. `informer-sync` is among its checks: roles are in force."""

_PATIENCE_SECONDS: Final = 3.0
_POLL_SECONDS: Final = 0.1


def has_begun(control_plane: ControlPlane, *, version: str | None, fresh: bool) -> bool:
    """Tell whether the data of a control plane have what an API server of a version begins with.

    `fresh` says that they are a copy of a template, which is of this version. If a version is not known, published
    data count as begun.
    """
    if control_plane.status.endpoint is None:
        return fresh
    former, present = KubernetesVersion.parse(control_plane.status.version), KubernetesVersion.parse(version)
    return former is None or present is None or former == present


async def check_begun(config: ClusterConfig, *, published: bool, connections: Connections | None) -> None:
    """Wait a little until an API server has written what it begins with; `config` is an administrator's.

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
        reason = Reason.API_SERVER_NOT_READY if published else Reason.PROVISIONING
        raise ConditionError(reason, f"waiting for kube-apiserver, which writes what it begins with{said}") from None
