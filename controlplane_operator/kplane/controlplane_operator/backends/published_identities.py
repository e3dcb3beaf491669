"""The last way into a control plane that somebody else runs: by the identities that were published for it.

Whoever deletes the control plane, its endpoint and the Secret with our credentials in one go leaves nothing else. The
controllers' identity may do everything there (see `bootstrap`), and its kubeconfig says where.
"""

from __future__ import annotations

from typing import Final

from kplane.api import ControlPlane
from kplane.api.names import KUBECONFIG_KEY, controllers_secret_name, kubeconfig_secret_name, management_namespace
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.pki.secrets import data_of, find_secret
from kplane.controlplane_operator.status.errors import ConditionError, tenant_error
from kplane.controlplane_operator.status.reasons import Reason
from kplane.controlplane_operator.tenant.client import tenant_client
from kplane.controlplane_operator.tenant.revocation import revoke_as_controllers
from kplane.provider import ClusterConfig, KubeconfigError, ProviderError, Unauthorized

__all__ = ["revoke_as_published"]

_CALL_SECONDS: Final = 5.0


async def revoke_as_published(context: OperatorContext, control_plane: ControlPlane) -> None:
    """Have what was issued in the control plane be worth nothing, by means of that. Raises ConditionError where it
    cannot."""
    controllers = await _published(context, control_plane, name=controllers_secret_name(control_plane.name))
    if controllers is None:
        raise ConditionError(Reason.CREDENTIALS_MISSING, "the published identity of the controllers is gone as well")
    try:
        async with tenant_client(controllers, timeout_seconds=_CALL_SECONDS) as client:
            await revoke_as_controllers(client)
    except Unauthorized as error:
        # So it is after a call that succeeded, of which an operator that was killed has not told.
        administrator = await _published(context, control_plane, name=kubeconfig_secret_name(control_plane.name))
        if administrator is None or not await _is_refused(administrator):
            raise tenant_error("taking back what was issued in the control plane", error) from error
    except ProviderError as error:
        raise tenant_error("taking back what was issued in the control plane", error) from error


async def _published(context: OperatorContext, control_plane: ControlPlane, *, name: str) -> ClusterConfig | None:
    namespace = management_namespace(control_plane.name)
    secret = await find_secret(context, namespace=namespace, name=name, of=control_plane)
    try:
        return ClusterConfig.from_kubeconfig(data_of(secret)[KUBECONFIG_KEY]) if secret is not None else None
    except (KeyError, KubeconfigError):
        return None


async def _is_refused(config: ClusterConfig) -> bool:
    try:
        async with tenant_client(config, timeout_seconds=_CALL_SECONDS) as client:
            await client.request("GET", "/version")
    except Unauthorized:
        return True
    except ProviderError:
        return False
    return False
