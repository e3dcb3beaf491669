"""Takes a control plane down in order: registrations, instances, credentials, data, namespace, finalizer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from kplane.api import ControlPlane, ControlPlaneClass, DeletionPolicy
from kplane.api.names import FINALIZER, management_namespace
from kplane.controlplane_operator.backends.base import Provisioner
from kplane.controlplane_operator.backends.managed import runtime_errors
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.controlplanes.claims import AddressClaims
from kplane.controlplane_operator.controlplanes.consumers import DeletedRegistrations, instances_of, registrations_of
from kplane.controlplane_operator.controlplanes.deletion_policy import is_decided, is_unclear, policy_of
from kplane.controlplane_operator.controlplanes.namespaces import ManagementNamespaces
from kplane.controlplane_operator.controlplanes.progress import Progress
from kplane.controlplane_operator.controlplanes.retention import Retention
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.controlplane_operator.registrations.dedicated_mcm import DedicatedMcms
from kplane.controlplane_operator.status.errors import ConditionError, management_refusal
from kplane.controlplane_operator.status.reasons import Reason
from kplane.controlplane_operator.watch.backoff import Backoff
from kplane.provider import Conflict, NotFound, ProviderError, Result

__all__ = ["Removal"]

_log: Final = logging.getLogger(__name__)

_CONSUMERS_SECONDS: Final = 30.0
"""So long registrations and instances are waited for; they take a few seconds unless something is broken."""


class Removal:
    """Removes control planes; each call goes as far as it can and says in the status what it waits for."""

    def __init__(
        self,
        context: OperatorContext,
        *,
        namespaces: ManagementNamespaces,
        provisioner: Callable[[ControlPlane], Provisioner],
        claims: AddressClaims,
        mcms: DedicatedMcms,
    ) -> None:
        """`provisioner` tells which one made a control plane."""
        self._context = context
        self._namespaces = namespaces
        self._provisioner = provisioner
        self._claims = claims
        self._mcms = mcms
        self._backoff: Backoff[str] = Backoff(first_seconds=0.2, limit_seconds=5.0)
        self._deleted = DeletedRegistrations(context.stores)
        self._retention = Retention(context, namespaces=namespaces)
        self._undone: dict[str, DeletionPolicy] = {}
        self._given_up: set[tuple[str, Reason]] = set()

    async def remove(self, control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> Result | None:
        """Go on with the removal; returns None when the object can go."""
        uid = control_plane.metadata.uid or ""
        if FINALIZER not in control_plane.metadata.finalizers:
            return None
        policy = policy_of(control_plane, chosen=chosen)
        progress = Progress(self._context, control_plane, policy=policy)
        try:
            if control_plane.status.deletion_policy is not None and not is_decided(control_plane):
                control_plane = await self._decide(control_plane, policy=policy, chosen=chosen, progress=progress)
            self._await_consumers(control_plane, chosen=chosen, progress=progress)
            message = await self._take_down(control_plane, policy=policy, progress=progress)
            await self._release(progress.control_plane)
        except Conflict:
            raise  # it is not what was looked at: nothing to tell, and tried again at once
        except (ConditionError, ProviderError) as error:
            # Also what the management cluster refuses, by a quota or by somebody's admission policy.
            failure = error if isinstance(error, ConditionError) else management_refusal(error)
            if isinstance(error, ProviderError):
                _log.warning("the removal of %s is held up: %s", control_plane.name, error)
            self._context.metrics.condition_failed("controlplane", reason=failure.reason)
            await progress.tell(failure.message)
            return Result(self._backoff.next(uid))
        self._context.events.record(control_plane, reason="Deleted", message=f"the control plane is gone; {message}")
        self._backoff.forget(uid)
        self._deleted.forget(control_plane.name)
        self._undone.pop(uid, None)
        self._given_up = {told for told in self._given_up if told[0] != uid}
        return None

    async def _decide(
        self,
        control_plane: ControlPlane,
        *,
        policy: DeletionPolicy,
        chosen: ControlPlaneClass | None,
        progress: Progress,
    ) -> ControlPlane:
        """Write down by which policy is removed, before anything is, so that no edit of the class changes it."""
        if is_unclear(control_plane, chosen=chosen):
            self._context.events.record(
                control_plane,
                reason="PolicyUnclear",
                message=f"policy {control_plane.status.deletion_policy} was in force, and the class says another one by"
                " now; which was first, that or the deletion, is not known, so the data are kept",
                warning=True,
            )
        await progress.tell(f"the removal begins, by policy {policy}")
        return progress.control_plane

    def _await_consumers(
        self, control_plane: ControlPlane, *, chosen: ControlPlaneClass | None, progress: Progress
    ) -> None:
        """Raise ConditionError while somebody works on the control plane, unless that takes too long."""
        stores = self._context.stores
        if served := registrations_of(control_plane, stores=stores):
            progress.step = Reason.REGISTRATIONS_PENDING
            self._await(control_plane, f"registrations are no longer ready: {', '.join(served)}", progress=progress)
        if working := instances_of(control_plane, stores=stores):
            progress.step = Reason.INSTANCES_ENDING
            self._await(
                control_plane, f"instances have ended, of registrations {', '.join(working)}", progress=progress
            )
        if left := self._deleted.unconfirmed(control_plane, chosen=chosen):
            progress.step = Reason.INSTANCES_ENDING
            what = f"the instance has ended of registration {', '.join(left)}, which is gone already"
            self._await(control_plane, what, progress=progress)

    def _await(self, control_plane: ControlPlane, what: str, *, progress: Progress) -> None:
        if progress.seconds <= _CONSUMERS_SECONDS:
            raise ConditionError(Reason.DELETING, f"waiting until {what}; for {_CONSUMERS_SECONDS:.0f} s at most")
        said = f"gone on after {_CONSUMERS_SECONDS:.0f} s without a confirmation that {what}"
        progress.note(said)
        if (told := (control_plane.metadata.uid or "", progress.step)) not in self._given_up:
            self._given_up.add(told)
            self._context.events.record(control_plane, reason="EndNotConfirmed", message=said, warning=True)

    async def _take_down(self, control_plane: ControlPlane, *, policy: DeletionPolicy, progress: Progress) -> str:
        """Remove what is the control plane's own; returns what became of its data."""
        if await self._namespaces.is_foreign(control_plane):
            # What runs there has the same names as ours would, and so have the data that a record stands for.
            namespace = management_namespace(control_plane.name)
            return f"nothing was touched, because namespace {namespace} does not belong to it"
        with runtime_errors(Reason.DELETING):
            # Also one that had not confirmed the end of its instance in time.
            await self._mcms.vacate(control_plane)
        # Under a path that was never granted, or that somebody else has the better right to, nothing is ours.
        made = control_plane.status.deletion_policy is not None and self._claims.holds(control_plane)
        if made:
            provisioner = self._provisioner(control_plane)
            await self._undo(control_plane, policy=policy, provisioner=provisioner, progress=progress)
            if policy is DeletionPolicy.RETAIN:
                progress.step = Reason.RETAINING_DATA  # what came before may have been done by an earlier look
                if await self._retention.keep(control_plane, has_data=provisioner.has_data):
                    return f"its data were kept, by policy {policy}"
        progress.step = Reason.REMOVING_NAMESPACE
        await self._namespaces.remove(control_plane)
        if not made and control_plane.status.endpoint is not None:
            return "nothing was touched there, because its address is that of another control plane"
        return f"its data by policy {policy}" if made else "nothing was touched, because nothing had been made for it"

    async def _undo(
        self, control_plane: ControlPlane, *, policy: DeletionPolicy, provisioner: Provisioner, progress: Progress
    ) -> None:
        uid = control_plane.metadata.uid or ""
        if self._undone.get(uid) is policy:
            return
        await progress.begin(Reason.REVOKING_CREDENTIALS)
        if policy is DeletionPolicy.RETAIN:
            await self._retention.shut_out(control_plane)
        await provisioner.shut_down(control_plane)
        await progress.begin(Reason.RETAINING_DATA if policy is DeletionPolicy.RETAIN else Reason.DELETING_DATA)
        await provisioner.settle(control_plane, policy=policy)
        if policy is DeletionPolicy.DESTROY:
            await progress.begin(Reason.VERIFYING_EMPTY)
            if await provisioner.has_data(control_plane):
                raise ConditionError(
                    Reason.DELETING, "data are there again after their deletion; they are deleted once more"
                )
        self._undone[uid] = policy

    async def _release(self, control_plane: ControlPlane) -> None:
        kept = [finalizer for finalizer in control_plane.metadata.finalizers if finalizer != FINALIZER]
        body = {"metadata": {"finalizers": kept, "resourceVersion": control_plane.metadata.resource_version}}
        try:
            await self._context.client.patch(CONTROL_PLANES, control_plane.name, body)
        except NotFound:
            return
