"""Keeps what a deleted control plane leaves, and shuts out whoever had access to it."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from kplane.api import ControlPlane
from kplane.api.names import controllers_secret_name, kubeconfig_secret_name
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.controlplanes.namespaces import ManagementNamespaces
from kplane.controlplane_operator.pki.secrets import delete_secret, make_secret_last
from kplane.controlplane_operator.pki.store import TenantKeys
from kplane.controlplane_operator.status.errors import ConditionError, tenant_error
from kplane.controlplane_operator.tenant.client import tenant_client
from kplane.controlplane_operator.tenant.revocation import revoke
from kplane.provider import ClusterConfig, ProviderError

__all__ = ["Retention", "revoke_issued"]

_CALL_SECONDS: Final = 5.0


class Retention:
    """Retains the data of control planes that kplane runs. Every call may be repeated."""

    def __init__(self, context: OperatorContext, *, namespaces: ManagementNamespaces) -> None:
        self._context = context
        self._namespaces = namespaces
        self._keys = TenantKeys(context)

    async def shut_out(self, control_plane: ControlPlane) -> None:
        """Take back what was issued in the control plane, while its API server still runs.

        A failure is left to whoever takes the data over, because that does the same before anything is published; done
        here, nothing issued before is let in for even the first moments after.
        """
        with contextlib.suppress(ConditionError):
            administrator = await self._administrator(control_plane)
            if administrator is not None:
                await revoke_issued(administrator)

    async def keep(self, control_plane: ControlPlane, *, has_data: Callable[[ControlPlane], Awaitable[bool]]) -> bool:
        """Leave a record of a control plane that was taken down, with its keys; False where there is nothing to keep.

        Data whose keys somebody deleted are kept as well: keys can be restored, and data cannot. First the record, so
        that whatever comes next finds it; the published Secrets are worth nothing by then, but for what keys are in
        them.
        """
        keys = await self._keys.exist(control_plane)
        if not keys and control_plane.status.endpoint is None and not await has_data(control_plane):
            return False
        if not await self._namespaces.retain(control_plane):
            return False
        controllers = controllers_secret_name(control_plane.name)
        if keys:
            await delete_secret(self._context, control_plane, name=controllers)
        else:
            await make_secret_last(self._context, control_plane, name=controllers)
        await delete_secret(self._context, control_plane, name=kubeconfig_secret_name(control_plane.name))
        await self._keys.forget_certificates(control_plane)
        return True

    async def _administrator(self, control_plane: ControlPlane) -> ClusterConfig | None:
        endpoint = control_plane.status.endpoint
        authorities = await self._keys.present(control_plane) if endpoint is not None else None
        if endpoint is None or authorities is None:
            return None
        administrator = authorities.issue_administrator()
        return ClusterConfig(
            server=endpoint,
            ca_data=authorities.serving_trust,
            client_certificate=administrator.certificate,
            client_key=administrator.key,
        )


async def revoke_issued(administrator: ClusterConfig) -> None:
    """Have what was issued in a control plane be worth nothing; raises ConditionError where it cannot be reached."""
    try:
        async with tenant_client(administrator, timeout_seconds=_CALL_SECONDS) as client:
            await revoke(client)
    except ProviderError as error:
        raise tenant_error("taking back what was issued in the control plane", error) from error
