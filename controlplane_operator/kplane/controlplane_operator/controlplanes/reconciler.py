"""Reconciles ControlPlane: checks it, has an API server run for it, publishes how to get in, and takes it down."""

from __future__ import annotations

from typing import Final

from kplane.api import (
    READY,
    Condition,
    ControlPlane,
    ControlPlaneMode,
    ControlPlanePhase,
    ControlPlaneStatus,
    find_condition,
)
from kplane.api.names import FINALIZER
from kplane.controlplane_operator.backends.base import Provisioner
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.controlplanes.address_claims import MANAGED
from kplane.controlplane_operator.controlplanes.claims import AddressClaims
from kplane.controlplane_operator.controlplanes.deletion_policy import policy_of
from kplane.controlplane_operator.controlplanes.namespaces import ManagementNamespaces
from kplane.controlplane_operator.controlplanes.partial import PartialControlPlane, as_recorded
from kplane.controlplane_operator.controlplanes.policy import ClassInForce, class_in_force, with_class_found
from kplane.controlplane_operator.controlplanes.publish import Publication
from kplane.controlplane_operator.controlplanes.removal import Removal
from kplane.controlplane_operator.controlplanes.retention import revoke_issued
from kplane.controlplane_operator.controlplanes.validation import check_cluster_path
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.controlplane_operator.pause import PAUSED, is_paused, with_pause, without_pause
from kplane.controlplane_operator.pki.rotator import Rotator
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.status.failures import Failures
from kplane.controlplane_operator.status.reasons import Reason
from kplane.controlplane_operator.status.writer import with_condition, with_supported
from kplane.controlplane_operator.watch.backoff import Backoff
from kplane.controlplane_operator.watch.cache import Key, Object
from kplane.controlplane_operator.watch.uid_tracker import UIDTracker
from kplane.provider import Result
from kplane.provider.logs import log_fields

__all__ = ["ControlPlaneReconciler", "Provisioners"]


class Provisioners:
    """The three ways to an API server, and which of them is a control plane's."""

    def __init__(self, *, virtual: Provisioner, dedicated: Provisioner, external: Provisioner) -> None:
        self.virtual: Final = virtual
        self.dedicated: Final = dedicated
        self.external: Final = external

    def wanted(self, control_plane: ControlPlane) -> Provisioner:
        """Return the way that the spec asks for."""
        if control_plane.spec.endpoint_ref is not None:
            return self.external
        return self.managed(control_plane)

    def managed(self, control_plane: ControlPlane) -> Provisioner:
        """Return the way by which kplane itself would run the API server."""
        return self.dedicated if control_plane.spec.mode is ControlPlaneMode.DEDICATED else self.virtual

    def used(self, control_plane: ControlPlane) -> Provisioner:
        """Return the way that was gone for an existing control plane, whatever its spec says by now."""
        recorded = find_condition(control_plane.status.conditions, MANAGED)
        if recorded is None:
            return self.wanted(control_plane)
        return self.managed(control_plane) if recorded.status == "True" else self.external

    def address(self, control_plane: ControlPlane) -> str | None:
        """Name what the control plane is to have for itself."""
        return self.used(control_plane).address(control_plane)


class ControlPlaneReconciler:
    """Makes control planes real."""

    def __init__(
        self,
        context: OperatorContext,
        *,
        provisioners: Provisioners,
        namespaces: ManagementNamespaces,
        publication: Publication,
        rotator: Rotator,
        removal: Removal,
        claims: AddressClaims,
    ) -> None:
        self.failures: Final = Failures(
            context, controller="controlplane", store=context.stores.control_planes, written=PartialControlPlane
        )
        self._context = context
        self._provisioners = provisioners
        self._namespaces = namespaces
        self._publication = publication
        self._rotator = rotator
        self._removal = removal
        self._claims = claims
        self._backoff: Backoff[Key] = Backoff()
        self._uids = UIDTracker()

    async def reconcile(self, key: Key) -> Result | None:
        """Bring one control plane as far as it gets now, and say in its status where it is."""
        obj = self._context.stores.control_planes.get(key)
        self._forget_former(key, obj["metadata"]["uid"] if obj is not None else None)
        if obj is None:
            return None
        with log_fields(object=f"ControlPlane/{key[1]}"):
            control_plane = _read(obj)
            if is_paused(control_plane):
                await self._stay(control_plane)
                return None
            control_plane = await self._go_on(key, control_plane)
            followed = class_in_force(control_plane, classes=self._context.stores.classes)
            if control_plane.deleting:
                return await self._removal.remove(control_plane, chosen=followed.chosen)
            try:
                result = await self._bring_up(control_plane, followed=followed)
            except ConditionError as failure:
                await self._tell(key, failure)
                return None if failure.waits_for_event else Result(self._pause(key, failure))
            self._backoff.forget(key)
            await self.failures.over(key)
            return result

    async def _stay(self, control_plane: ControlPlane) -> None:
        """Leave a paused control plane alone, and say so: no more is written than that."""
        waiting = ControlPlanePhase.TERMINATING if control_plane.deleting else control_plane.status.phase
        left = "nothing of this control plane is changed, renewed or repaired"
        conditions = with_pause(control_plane.status.conditions, of=control_plane, left=left)
        update = {"phase": waiting or ControlPlanePhase.PENDING, "conditions": conditions}
        await self._write(control_plane, status=control_plane.status.model_copy(update=update))

    async def _go_on(self, key: Key, control_plane: ControlPlane) -> ControlPlane:
        """Return the control plane as it is without the condition of a pause that is over."""
        if find_condition(control_plane.status.conditions, PAUSED) is None:
            return control_plane
        update = {"conditions": without_pause(control_plane.status.conditions)}
        await self._write(control_plane, status=control_plane.status.model_copy(update=update))
        stored = self._context.stores.control_planes.get(key)
        return _read(stored) if stored is not None else control_plane

    async def _bring_up(self, control_plane: ControlPlane, *, followed: ClassInForce) -> Result | None:
        chosen = followed.chosen
        if control_plane.spec.mode is ControlPlaneMode.VIRTUAL:
            check_cluster_path(control_plane)
        if chosen is None and followed.lost is not None:
            raise followed.lost
        provisioner = self._provisioners.wanted(control_plane)
        if provisioner is not self._provisioners.used(control_plane):
            raise ConditionError(
                Reason.ENDPOINT_INVALID,
                "spec.endpointRef was added or removed, and that would exchange the API server under its users;"
                " undo it, or create a second control plane",
                waits_for_event=True,
            )
        await self._namespaces.check(control_plane)
        claimed = self._claims.take(control_plane)
        control_plane = await self._begin(control_plane, followed=followed, claimed=claimed)
        await self._namespaces.ensure(control_plane, shut_out=provisioner.shut_out)
        provision = await provisioner.ensure(control_plane)
        self._claims.confirm(control_plane, provision=provision)
        if provision.authorities is not None and control_plane.status.endpoint is None:
            # The data may be an earlier one's, and whoever it let in stays out.
            await revoke_issued(provision.administrator)
        published = await self._publication.publish(control_plane, provision=provision, chosen=chosen)
        return await self._rotator.advance(control_plane, provision=provision, otherwise=published)

    async def _begin(self, control_plane: ControlPlane, *, followed: ClassInForce, claimed: str | None) -> ControlPlane:
        """Write down, before anything is made, what will have to be removed, finalizer, path, policy, and the class."""
        if FINALIZER not in control_plane.metadata.finalizers:
            body = {
                "metadata": {
                    "finalizers": [*control_plane.metadata.finalizers, FINALIZER],
                    "resourceVersion": control_plane.metadata.resource_version,
                }
            }
            stored = await self._context.client.patch(CONTROL_PLANES, control_plane.name, body)
            self._context.stores.control_planes.apply(stored)
            control_plane = ControlPlane.model_validate(stored)
        virtual = control_plane.spec.mode is ControlPlaneMode.VIRTUAL
        decided = {
            "cluster_path": control_plane.cluster_path if virtual else None,
            "claimed_address": claimed,
            "deletion_policy": policy_of(control_plane, chosen=followed.chosen),
            "remembered_class": followed.remembered(),
            "conditions": self._recorded(control_plane, followed=followed),
        }
        status = control_plane.status.model_copy(update=decided)
        if find_condition(status.conditions, READY) is None:
            status = self._status_of(
                control_plane.model_copy(update={"status": status}),
                ConditionError(Reason.PROVISIONING, "the control plane is being made"),
            )
        # A policy that was in force is not changed of one whose deletion was asked for already.
        changed = control_plane.status.deletion_policy not in {None, status.deletion_policy}
        await self._write(control_plane, status=status, only_as_seen=changed)
        return control_plane.model_copy(update={"status": status})

    def _recorded(self, control_plane: ControlPlane, *, followed: ClassInForce) -> list[Condition]:
        managed = self._provisioners.wanted(control_plane) is not self._provisioners.external
        return with_condition(
            with_class_found(control_plane, followed=followed),
            of=control_plane,
            type=MANAGED,
            status="True" if managed else "False",
            reason=Reason.RUN_BY_KPLANE if managed else "EndpointReferenced",
            message="kplane runs the API server" if managed else "the API server at spec.endpointRef is used",
        )

    async def _tell(self, key: Key, failure: ConditionError) -> None:
        self._context.metrics.condition_failed("controlplane", reason=failure.reason)
        obj = self._context.stores.control_planes.get(key)
        if obj is not None:
            control_plane = ControlPlane.model_validate(obj)
            await self._write(control_plane, status=self._status_of(control_plane, failure))

    def _pause(self, key: Key, failure: ConditionError) -> float:
        # By reason: an API server that starts is looked at often, and when it does not answer at once then, that is no
        # reason to wait for as long as if it had been silent all the time.
        return self._backoff.next(key, reason=failure.reason)

    def _forget_former(self, key: Key, uid: str | None) -> None:
        if (former := self._uids.former(key, uid=uid)) is not None:
            self._claims.release(former)
            self._publication.forget(former)
            self._backoff.forget(key)
        self._uids.succeed(key, uid=uid)

    def _status_of(self, control_plane: ControlPlane, failure: ConditionError) -> ControlPlaneStatus:
        """Return the present status, with what is published left in place and the trouble in its conditions."""
        conditions = with_condition(
            control_plane.status.conditions,
            of=control_plane,
            status="False",
            reason=failure.reason,
            message=failure.message,
        )
        return control_plane.status.model_copy(
            update={
                "phase": failure.reason.phase(published=control_plane.status.endpoint is not None),
                "observed_generation": control_plane.metadata.generation,
                "conditions": with_supported(
                    conditions, of=control_plane, missing=self._publication.not_acted_on(control_plane)
                ),
            }
        )

    async def _write(
        self, control_plane: ControlPlane, *, status: ControlPlaneStatus, only_as_seen: bool = False
    ) -> None:
        await self._context.status.write(
            self._context.stores.control_planes, control_plane, status=status, only_as_seen=only_as_seen
        )


def _read(obj: Object) -> ControlPlane:
    """Read a control plane; what is wrong with the spec of one that is being deleted does not hold that up."""
    return as_recorded(obj) if "deletionTimestamp" in obj["metadata"] else ControlPlane.model_validate(obj)
