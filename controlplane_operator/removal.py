"""Takes a control plane down in order: registrations, credentials, API server, data, namespace, finalizer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from api import ControlPlane, ControlPlaneClass, ControlPlanePhase, ControlPlaneRegistration, DeletionPolicy
from api.names import FINALIZER, management_namespace
from controlplane_operator.backoff import Backoff
from controlplane_operator.claims import Claims
from controlplane_operator.kinds import CONTROL_PLANES
from controlplane_operator.management import Management
from controlplane_operator.namespaces import ManagementNamespaces
from controlplane_operator.provision import Provisioner
from controlplane_operator.retention import Retention
from controlplane_operator.status import with_condition
from controlplane_operator.trouble import Trouble
from provider import Conflict, NotFound, ProviderError, Result

__all__ = ["Removal", "policy_of"]

_log: Final = logging.getLogger(__name__)

_REGISTRATIONS_SECONDS: Final = 30.0
"""So long the end of registrations is waited for; it takes milliseconds unless something is broken."""


def policy_of(control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> DeletionPolicy:
    """Decide what deletion means: by the spec, else the class while it is there, else what was decided before."""
    by_class = chosen.spec.deletion_policy if chosen is not None else None
    if chosen is not None and not control_plane.deleting:
        return control_plane.spec.deletion_policy or by_class or DeletionPolicy.RETAIN
    remembered = control_plane.status.deletion_policy
    return control_plane.spec.deletion_policy or remembered or by_class or DeletionPolicy.RETAIN


class Removal:
    """Removes control planes; each call goes as far as it can and says in the status what it waits for."""

    def __init__(
        self,
        management: Management,
        *,
        namespaces: ManagementNamespaces,
        provisioner: Callable[[ControlPlane], Provisioner],
        claims: Claims,
    ) -> None:
        """`provisioner` tells which one made a control plane."""
        self._management = management
        self._namespaces = namespaces
        self._provisioner = provisioner
        self._claims = claims
        self._backoff: Backoff[str] = Backoff(first_seconds=0.2, limit_seconds=5.0)
        self._retention = Retention(management, namespaces=namespaces)
        self._undone: dict[str, DeletionPolicy] = {}

    async def remove(self, control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> Result | None:
        """Go on with the removal; returns None when the object can go."""
        uid = control_plane.metadata.uid or ""
        if FINALIZER not in control_plane.metadata.finalizers:
            return None
        policy = policy_of(control_plane, chosen=chosen)
        try:
            self._check_registrations(control_plane)
            message = await self._take_down(control_plane, policy=policy)
            await self._release(control_plane)
        except Conflict:
            raise  # it is not what was looked at: nothing to tell, and tried again at once
        except (Trouble, ProviderError) as error:
            # Also what the management cluster refuses, by a quota or by somebody's admission policy.
            if isinstance(error, ProviderError):
                _log.warning("the removal of %s is held up: %s", control_plane.name, error)
            await self._tell(control_plane, policy=policy, message=str(error))
            return Result(self._backoff.next(uid))
        self._management.events.record(control_plane, reason="Deleted", message=f"the control plane is gone; {message}")
        self._backoff.forget(uid)
        self._undone.pop(uid, None)
        return None

    async def _take_down(self, control_plane: ControlPlane, *, policy: DeletionPolicy) -> str:
        """Remove what is the control plane's own; returns what became of its data."""
        if await self._namespaces.is_foreign(control_plane):
            # What runs there has the same names as ours would, and so have the data that a record stands for.
            namespace = management_namespace(control_plane.name)
            return f"nothing was touched, because namespace {namespace} does not belong to it"
        # Under a path that was never granted, or that somebody else has the better right to, nothing is ours.
        made = control_plane.status.deletion_policy is not None and self._claims.holds(control_plane)
        if made:
            provisioner = self._provisioner(control_plane)
            await self._undo(control_plane, policy=policy, provisioner=provisioner)
            if policy is DeletionPolicy.RETAIN and await self._retention.keep(
                control_plane, has_data=provisioner.has_data
            ):
                return f"its data were kept, by policy {policy}"
        await self._namespaces.remove(control_plane)
        return f"its data by policy {policy}" if made else "nothing was touched, because nothing had been made for it"

    async def _undo(self, control_plane: ControlPlane, *, policy: DeletionPolicy, provisioner: Provisioner) -> None:
        uid = control_plane.metadata.uid or ""
        if self._undone.get(uid) is policy:
            return
        if policy is DeletionPolicy.RETAIN:
            await self._retention.shut_out(control_plane)
        await provisioner.remove(control_plane, policy=policy)
        self._undone[uid] = policy

    def _check_registrations(self, control_plane: ControlPlane) -> None:
        asked = control_plane.metadata.deletion_timestamp
        if asked is None or (datetime.now(UTC) - asked).total_seconds() > _REGISTRATIONS_SECONDS:
            return
        served = []
        for obj in self._management.stores.registrations.by("control plane", control_plane.name):
            registration = ControlPlaneRegistration.model_validate(obj)
            if registration.status.ready and registration.status.control_plane_uid == control_plane.metadata.uid:
                served.append(registration.name)
        if served:
            raise Trouble("Deleting", f"waiting until registrations are no longer ready: {', '.join(served)}")

    async def _release(self, control_plane: ControlPlane) -> None:
        kept = [finalizer for finalizer in control_plane.metadata.finalizers if finalizer != FINALIZER]
        body = {"metadata": {"finalizers": kept, "resourceVersion": control_plane.metadata.resource_version}}
        try:
            await self._management.client.patch(CONTROL_PLANES, control_plane.name, body)
        except NotFound:
            return

    async def _tell(self, control_plane: ControlPlane, *, policy: DeletionPolicy, message: str) -> None:
        conditions = with_condition(
            control_plane.status.conditions, of=control_plane, status="False", reason="Deleting", message=message
        )
        status = control_plane.status.model_copy(
            update={
                "phase": ControlPlanePhase.TERMINATING,
                "deletion_policy": policy if control_plane.status.deletion_policy is not None else None,
                "observed_generation": control_plane.metadata.generation,
                "conditions": conditions,
            }
        )
        await self._management.status.write(self._management.stores.control_planes, control_plane, status=status)
