"""Removal of a control plane in order: registrations, instances, credentials, data, namespace, finalizer."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

from pydantic import ValidationError

from kplane.api import DELETING, ControlPlane, ControlPlaneClass, ControlPlanePhase, DeletionPolicy, find_condition
from kplane.api.names import FINALIZER, controllers_secret_name, kubeconfig_secret_name, management_namespace
from kplane.api.reasons import Reason
from kplane.controlplane_operator.backends.base import Provisioner, runtime_errors
from kplane.controlplane_operator.class_policy import is_decided, is_unclear, policy_of
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.controlplanes.claims import AddressClaims
from kplane.controlplane_operator.controlplanes.first_tries import FirstTries
from kplane.controlplane_operator.controlplanes.namespaces import ManagementNamespaces
from kplane.controlplane_operator.controlplanes.retained_data import is_managed
from kplane.controlplane_operator.controlplanes.served_revisions import ServedRevisions
from kplane.controlplane_operator.credentials.secrets import delete_secret, make_secret_last
from kplane.controlplane_operator.credentials.store import TenantKeys
from kplane.controlplane_operator.finalizers import remove_finalizer
from kplane.controlplane_operator.kinds import CONTROL_PLANE_CLASSES
from kplane.controlplane_operator.registrations.consumers import instances_of, registrations_of
from kplane.controlplane_operator.registrations.dedicated_mcm import DedicatedMcms
from kplane.controlplane_operator.registrations.service_claims import default_services
from kplane.controlplane_operator.status.conditions import with_condition
from kplane.controlplane_operator.status.errors import ConditionError, management_refusal
from kplane.controlplane_operator.status.partial import as_recorded
from kplane.controlplane_operator.tenant.revocation import revoke_issued
from kplane.controlplane_operator.watch.backoff import KeyedBackoff
from kplane.controlplane_operator.watch.cache import Change, Object
from kplane.controlplane_operator.watch.stores import Stores
from kplane.provider import ClusterConfig, Conflict, NotFound, ProviderError, Result

__all__ = ["DeletedRegistrations", "Progress", "Removal", "Retention"]


class DeletedRegistrations:
    """Default registrations that are deleted before their control plane, and the instances that they leave running.

    With `kubectl delete controlplane --cascade=foreground`, garbage collection deletes the registrations at once. Their
    status can then no longer confirm the end of an instance. The operator recreates a default registration as long as
    the class requests it and no other registration provides its services. So a missing default registration was deleted
    together with its control plane, and no further record is needed.
    """

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._left: dict[str, str | None] = {}
        stores.registrations.listen(self._changed)

    def unconfirmed(self, control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> list[str]:
        """Return the name of the default registration if it is gone and its instance may still run.

        The result is the same if the registration was deleted while no operator ran.
        """
        name = control_plane.name
        expected = default_services(control_plane, chosen=chosen, stores=self._stores) and control_plane.status.endpoint
        if not expected or self._stores.registrations.get(("", name)) is not None:
            return []
        return [name] if self._left.get(name, control_plane.metadata.uid) == control_plane.metadata.uid else []

    def forget(self, name: str) -> None:
        """Discard the state of the deleted control plane of this name."""
        self._left.pop(name, None)

    def _changed(self, change: Change) -> None:
        name = change.key[1]
        if change.new is not None:
            self._left.pop(name, None)
        elif change.old is not None and self._stores.control_planes.get(("", name)) is not None:
            self._left[name] = _instance_uid(change.old)


def _instance_uid(registration: Object) -> str | None:
    uid: str | None = ((registration.get("status") or {}).get("instance") or {}).get("controlPlaneUID")
    return uid


_SENTENCES: Final = {
    Reason.REVOKING_CREDENTIALS: "revoking credentials and ending what runs",
    Reason.DELETING_DATA: "deleting the data",
    Reason.VERIFYING_EMPTY: "looking whether data are left",
    Reason.RETAINING_DATA: "leaving the data and a record of them",
    Reason.REMOVING_NAMESPACE: "removing the namespace",
}


class Progress:
    """Progress of one removal, as far as a single reconcile gets."""

    def __init__(self, context: OperatorContext, control_plane: ControlPlane, *, policy: DeletionPolicy) -> None:
        self.step = Reason.REGISTRATIONS_PENDING
        self._context = context
        self._control_plane = control_plane
        self._policy = policy
        self._notes: list[str] = []
        began = find_condition(control_plane.status.conditions, DELETING)
        self._began = began.last_transition_time if began is not None else datetime.now(UTC)

    @property
    def seconds(self) -> float:
        """Seconds since an operator first handled the removal, across restarts of the operator.

        Time before that does not count, because no operator waited then.
        """
        return (datetime.now(UTC) - self._began).total_seconds()

    def note(self, sentence: str) -> None:
        """Add a sentence to the message of this step and of all later steps."""
        self._notes.append(sentence)

    async def begin(self, step: Reason) -> None:
        """Set the present step, and write the status before the step starts."""
        self.step = step
        await self.tell(_SENTENCES.get(step, ""))

    async def tell(self, message: str) -> None:
        """Write a message about the present step into the status."""
        message = "; ".join(filter(None, (message, *self._notes)))
        before = self._control_plane
        conditions = with_condition(
            before.status.conditions, of=before, status="False", reason=Reason.DELETING, message=message
        )
        conditions = with_condition(
            conditions, of=before, type=DELETING, status="True", reason=self.step, message=message
        )
        status = before.status.model_copy(
            update={
                "phase": ControlPlanePhase.TERMINATING,
                "deletion_policy": self._policy if before.status.deletion_policy is not None else None,
                "observed_generation": before.metadata.generation,
                "conditions": conditions,
            }
        )
        await self._context.status.write(self._context.stores.control_planes, before, status=status)
        self._control_plane = self._seen() or before.model_copy(update={"status": status})

    async def moved(self, *, namespace_uid: str) -> ControlPlane:
        """Record the uid of the recreated namespace in the status."""
        before = self._control_plane
        status = before.status.model_copy(update={"namespace_uid": namespace_uid})
        await self._context.status.write(self._context.stores.control_planes, before, status=status)
        self._control_plane = self._seen() or before.model_copy(update={"status": status})
        return self._control_plane

    @property
    def control_plane(self) -> ControlPlane:
        """The control plane after the operator's latest write; as first read if its generation changed since."""
        return self._control_plane

    def _seen(self) -> ControlPlane | None:
        obj = self._context.stores.control_planes.get(("", self._control_plane.name))
        cached = as_recorded(obj) if obj is not None else None
        before = self._control_plane.metadata
        if cached is None or (cached.metadata.uid, cached.metadata.generation) != (before.uid, before.generation):
            return None
        return cached


class Retention:
    """Retains the data of control planes that kplane runs. Each method may be repeated."""

    def __init__(self, context: OperatorContext, *, namespaces: ManagementNamespaces) -> None:
        self._context = context
        self._namespaces = namespaces
        self._keys = TenantKeys(context)

    async def shut_out(self, control_plane: ControlPlane) -> None:
        """Revoke the credentials that were issued in the control plane, while its API server still runs.

        A failure is ignored: a control plane that takes the data over revokes them before it is published. A revocation
        here means that old credentials are never accepted, not even in the first moments after an adoption.
        """
        with contextlib.suppress(ConditionError):
            administrator = await self._administrator(control_plane)
            if administrator is not None:
                await revoke_issued(administrator)

    async def recover(
        self, control_plane: ControlPlane, *, provisioner: Provisioner, progress: Progress
    ) -> ControlPlane:
        """Recreate the namespace and the keys if a user deleted them.

        Returns the control plane with the present namespace uid in its status. Raises ConditionError while namespace or
        keys are missing.
        """
        uid = await self._namespaces.recover(control_plane, take_over=provisioner.take_over, volume=provisioner.volume)
        if uid is not None and control_plane.status.namespace_uid not in {None, uid}:
            control_plane = await progress.moved(namespace_uid=uid)
        await self._keys.repair(control_plane)
        return control_plane

    async def keep(self, control_plane: ControlPlane, *, provisioner: Provisioner) -> bool:
        """Leave the namespace as a record of the removed control plane, with its keys.

        Returns False if there are no data or keys to keep. Data are kept even if a user deleted their keys: keys can be
        restored, and data cannot. The record is written first, so that a later call finds it. Published Secrets are of
        no use by then, except for keys in them.
        """
        has_keys = await self._keys.exist(control_plane)
        if not has_keys and control_plane.status.endpoint is None and not await provisioner.has_data(control_plane):
            return False
        if not await self._namespaces.retain(control_plane):
            return False
        controllers = controllers_secret_name(control_plane.name)
        if has_keys:
            await delete_secret(self._context, control_plane, name=controllers)
        else:
            await make_secret_last(self._context, control_plane, name=controllers)
        await delete_secret(self._context, control_plane, name=kubeconfig_secret_name(control_plane.name))
        await self._keys.forget_certificates(control_plane)
        # The record now marks the Secrets as unused, so their namespace may be deleted.
        await self._keys.unprotect(control_plane)
        await provisioner.unprotect(control_plane)
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


_log: Final = logging.getLogger(__name__)

_ETCD_SECONDS: Final = 60.0
"""Maximum time since the start of the deletion that the operator waits for etcd, to record its revision in snapshots.
"""
_CONSUMERS_SECONDS: Final = 30.0
"""Maximum time that a deletion waits for registrations and instances. They usually take a few seconds."""


class Removal:
    """Removes control planes. Each call goes as far as possible and reports the pending step in the status."""

    def __init__(
        self,
        context: OperatorContext,
        *,
        namespaces: ManagementNamespaces,
        provisioner: Callable[[ControlPlane], Provisioner],
        claims: AddressClaims,
        mcms: DedicatedMcms,
        abandon: Callable[[ControlPlane], Awaitable[None]],
        served: ServedRevisions,
    ) -> None:
        """`provisioner` returns the provisioner of a control plane; `abandon` removes the traces of a migration."""
        self._context = context
        self._namespaces = namespaces
        self._provisioner = provisioner
        self._claims = claims
        self._mcms = mcms
        self._abandon = abandon
        self._served = served
        self._backoff: KeyedBackoff[str] = KeyedBackoff(first_seconds=0.2, limit_seconds=5.0)
        self._deleted = DeletedRegistrations(context.stores)
        self._retention = Retention(context, namespaces=namespaces)
        self._undone: dict[str, DeletionPolicy] = {}
        self._given_up: set[tuple[str, Reason]] = set()
        self._first_tries = FirstTries()
        self._warned: dict[str, Reason] = {}
        """By uid, the reason of the last Warning about a removal. The message may differ with each attempt."""

    async def remove(self, control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> Result | None:
        """Continue the removal of a control plane. Returns None when the object may go, else when to try again."""
        uid = control_plane.metadata.uid or ""
        if FINALIZER not in control_plane.metadata.finalizers:
            return None
        begins = control_plane.status.deletion_policy is not None and not is_decided(control_plane)
        if begins:
            chosen = await self._read_class(control_plane, known=chosen)
        policy = policy_of(control_plane, chosen=chosen)
        progress = Progress(self._context, control_plane, policy=policy)
        try:
            if begins:
                control_plane = await self._decide(control_plane, policy=policy, chosen=chosen, progress=progress)
            self._await_consumers(control_plane, chosen=chosen, progress=progress)
            message = await self._take_down(control_plane, policy=policy, progress=progress)
            await remove_finalizer(
                self._context.client, progress.control_plane, store=self._context.stores.control_planes
            )
        except Conflict:
            raise  # the object changed since it was read: reconciled again at once
        except (ConditionError, ProviderError) as error:
            # ProviderError includes refusals by the management cluster, such as by a quota or an admission policy.
            failure = error if isinstance(error, ConditionError) else management_refusal(error)
            await progress.tell(failure.message)
            self._count(control_plane, self._first_tries.judge(uid, failure))
            return Result(self._backoff.next(uid))
        self._context.events.record(control_plane, reason="Deleted", message=f"the control plane is gone; {message}")
        self._backoff.forget(uid)
        self._first_tries.forget(uid)
        self._warned.pop(uid, None)
        self._deleted.forget(control_plane.name)
        self._undone.pop(uid, None)
        self._given_up = {entry for entry in self._given_up if entry[0] != uid}
        return None

    def _count(self, control_plane: ControlPlane, failure: ConditionError) -> None:
        """Count a failure of the removal and record a Warning, because the conditions only show the present step."""
        self._context.metrics.condition_failed("controlplane", reason=failure.reason)
        uid = control_plane.metadata.uid or ""
        if failure.reason.expected or self._warned.get(uid) is failure.reason:
            return
        self._warned[uid] = failure.reason
        _log.warning("failed to remove %s: %s; the operator retries", control_plane.name, failure.message)
        self._context.events.record(control_plane, reason="DeletionFailed", message=failure.message, warning=True)

    async def _read_class(
        self, control_plane: ControlPlane, *, known: ControlPlaneClass | None
    ) -> ControlPlaneClass | None:
        """Read the class from the API server and return it; `known` if there is none or it is invalid.

        The cache may lag behind an edit of the policy, and deleted data cannot be restored.
        """
        reference = control_plane.spec.class_ref
        if reference is None:
            return known
        try:
            return ControlPlaneClass.model_validate(
                await self._context.client.get(CONTROL_PLANE_CLASSES, reference.name)
            )
        except (NotFound, ValidationError):
            return known

    async def _decide(
        self,
        control_plane: ControlPlane,
        *,
        policy: DeletionPolicy,
        chosen: ControlPlaneClass | None,
        progress: Progress,
    ) -> ControlPlane:
        """Record the deletion policy before anything is removed, so that no later edit of the class changes it."""
        if is_unclear(control_plane, chosen=chosen):
            self._context.events.record(
                control_plane,
                reason="PolicyUnclear",
                message=f"policy {control_plane.status.deletion_policy} was in force, and the class has another one."
                " It is not known whether that edit or the deletion was first, so the operator keeps the data.",
                warning=True,
            )
        await progress.tell(f"the removal begins, with policy {policy}")
        return progress.control_plane

    def _await_consumers(
        self, control_plane: ControlPlane, *, chosen: ControlPlaneClass | None, progress: Progress
    ) -> None:
        """Raise ConditionError while registrations or instances use the control plane, for at most 30 s."""
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
        message = f"gone on after {_CONSUMERS_SECONDS:.0f} s without a confirmation that {what}"
        progress.note(message)
        if (key := (control_plane.metadata.uid or "", progress.step)) not in self._given_up:
            self._given_up.add(key)
            self._context.events.record(control_plane, reason="EndNotConfirmed", message=message, warning=True)

    async def _take_down(self, control_plane: ControlPlane, *, policy: DeletionPolicy, progress: Progress) -> str:
        """Remove the objects of the control plane; returns a clause about the fate of its data."""
        await self._namespaces.check_kept(control_plane)
        if await self._namespaces.is_foreign(control_plane):
            # Objects in a foreign namespace have the names that kplane uses, and may belong to the data of another
            # record.
            namespace = management_namespace(control_plane.name)
            return f"nothing was touched, because namespace {namespace} does not belong to it"
        with runtime_errors(Reason.DELETION_FAILED):
            # This includes an mcm that has not confirmed the end of its instance in time.
            await self._mcms.vacate(control_plane)
        # A path never granted, or better claimed by another control plane, has no data of this control plane.
        made = control_plane.status.deletion_policy is not None and self._claims.holds(control_plane)
        if made:
            provisioner = self._provisioner(control_plane)
            await self._abandon(control_plane)
            if policy is DeletionPolicy.RETAIN and is_managed(control_plane):
                control_plane = await self._retention.recover(control_plane, provisioner=provisioner, progress=progress)
            await self._undo(control_plane, policy=policy, provisioner=provisioner, progress=progress)
            if policy is DeletionPolicy.RETAIN:
                progress.step = Reason.RETAINING_DATA  # an earlier reconcile may have done the steps before
                if await self._retention.keep(control_plane, provisioner=provisioner):
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
        if is_managed(control_plane):
            # The API server has ended, so no client sees a higher revision. The etcd that knows the revision still
            # exists.
            await self._served.remember(control_plane, waits=progress.seconds <= _ETCD_SECONDS)
        await progress.begin(Reason.RETAINING_DATA if policy is DeletionPolicy.RETAIN else Reason.DELETING_DATA)
        await provisioner.settle(control_plane, policy=policy)
        if policy is DeletionPolicy.DESTROY:
            await progress.begin(Reason.VERIFYING_EMPTY)
            if await provisioner.has_data(control_plane):
                raise ConditionError(
                    Reason.DELETING, "data are there again after their deletion; they are deleted once more"
                )
        self._undone[uid] = policy
