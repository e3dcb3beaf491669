"""Reconciler of ControlPlane: runs a list of phases, then makes one status of their outcomes.

The phases are policy, sleep, claim, record, namespace, migrate, backend, credentials, publish. Each phase is a method
here that takes the `Pass` and returns its outcome. If a phase fails, it raises ConditionError, and the status reports
the error. After the status, the reconciler maintains the ServiceMonitor and takes the next step of a key rotation.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from kplane.api import (
    READY,
    AuthSpec,
    Condition,
    ControlPlane,
    ControlPlaneMode,
    ControlPlanePhase,
    ControlPlaneStatus,
    Home,
    find_condition,
)
from kplane.api.conditions import PAUSED
from kplane.api.names import FINALIZER, management_namespace
from kplane.api.reasons import Reason
from kplane.controlplane_operator.backends.base import Provision, Provisioner
from kplane.controlplane_operator.backends.class_settings import service_cidr_of
from kplane.controlplane_operator.backends.cluster_claims import ClusterClaims
from kplane.controlplane_operator.class_policy import (
    ClassInForce,
    check_cluster_path,
    class_in_force,
    home_asked_for,
    policy_of,
    with_class_found,
)
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.controlplanes.beginning import (
    is_recorded,
    needs_record,
    with_beginning,
    with_managed,
)
from kplane.controlplane_operator.controlplanes.claims import AddressClaims
from kplane.controlplane_operator.controlplanes.credential_probes import CredentialProbes
from kplane.controlplane_operator.controlplanes.credentials import CredentialIssuer, Credentials
from kplane.controlplane_operator.controlplanes.deletion import Removal
from kplane.controlplane_operator.controlplanes.first_tries import FirstTries
from kplane.controlplane_operator.controlplanes.gateway import (
    at_gateway,
    endpoint_policy,
    still_at_gateway,
    write_gateway_secret,
)
from kplane.controlplane_operator.controlplanes.gateway_replicas import RouteConfirmation
from kplane.controlplane_operator.controlplanes.migration.migrator import Migrator
from kplane.controlplane_operator.controlplanes.namespaces import ManagementNamespaces
from kplane.controlplane_operator.controlplanes.passes import Pass
from kplane.controlplane_operator.controlplanes.provisioners import Provisioners
from kplane.controlplane_operator.controlplanes.publish import (
    ensure_default_registration,
    ensure_endpoint,
    published_fields,
    write_secrets,
)
from kplane.controlplane_operator.controlplanes.restored import restore_status, restored_service_cidr
from kplane.controlplane_operator.controlplanes.retained_data import RetainedDataRecord, is_managed
from kplane.controlplane_operator.controlplanes.rotator import Rotator
from kplane.controlplane_operator.controlplanes.served_revisions import ServedRevisions
from kplane.controlplane_operator.controlplanes.service_monitors import ServiceMonitors
from kplane.controlplane_operator.controlplanes.summary import Summary
from kplane.controlplane_operator.failures import Failures
from kplane.controlplane_operator.finalizers import add_finalizer
from kplane.controlplane_operator.hibernation.decision import Decision, is_migrating
from kplane.controlplane_operator.hibernation.host_name_use import HostNameUse
from kplane.controlplane_operator.hibernation.outcome import Outcome, begun
from kplane.controlplane_operator.hibernation.room import Room
from kplane.controlplane_operator.hibernation.sleeper import Sleeper
from kplane.controlplane_operator.registrations.endpoint_switch import EndpointSwitch
from kplane.controlplane_operator.status.conditions import (
    is_paused,
    with_condition,
    with_pause,
    without_pause,
)
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.status.partial import PartialControlPlane, as_recorded
from kplane.controlplane_operator.tenant.admission import delete_named, is_deletion_named
from kplane.controlplane_operator.tenant.client import tenant_client
from kplane.controlplane_operator.tenant.revocation import revoke_issued
from kplane.controlplane_operator.watch.backoff import KeyedBackoff
from kplane.controlplane_operator.watch.cache import Key, Object, UIDTracker
from kplane.provider import Result
from kplane.provider.logs import log_fields
from kplane.workloads import Runtime

__all__ = ["ControlPlaneReconciler"]


_SOON_SECONDS: Final = 0.1


class ControlPlaneReconciler:
    """Reconciles control planes."""

    def __init__(
        self,
        context: OperatorContext,
        *,
        probes: CredentialProbes,
        provisioners: Provisioners,
        namespaces: ManagementNamespaces,
        claims: AddressClaims,
        clusters: ClusterClaims,
        switch: EndpointSwitch,
        removal: Removal,
        served: ServedRevisions,
        runtime: Runtime,
        monitors: ServiceMonitors,
        room: Room,
        use: HostNameUse,
        migrator: Migrator,
    ) -> None:
        self.failures: Final = Failures(
            context, controller="controlplane", store=context.stores.control_planes, written=PartialControlPlane
        )
        self._context = context
        self._provisioners = provisioners
        self._served = served
        self._sleeper = Sleeper(context, backend=provisioners.virtual, room=room, use=use)
        self._namespaces = namespaces
        self._claims = claims
        self._issuer = CredentialIssuer(context, probes=probes)
        self._probes = probes
        self._clusters = clusters
        self._routes = RouteConfirmation(context)
        self._switch = switch
        self._rotator = Rotator(context)
        self._removal = removal
        self._summary = Summary(context, sleeper=self._sleeper, runtime=runtime)
        self._monitors = monitors
        self._migrator = migrator
        self._backoff: KeyedBackoff[Key] = KeyedBackoff()
        self._first_tries = FirstTries()
        self._uids = UIDTracker()

    async def reconcile(self, key: Key) -> Result | None:
        """Reconcile the control plane of this key and write its status. Returns when to reconcile again."""
        obj = self._context.stores.control_planes.get(key)
        self._forget_former(key, obj["metadata"]["uid"] if obj is not None else None)
        if obj is None:
            return None
        with log_fields(object=f"ControlPlane/{key[1]}"):
            control_plane = _read(obj)
            if is_paused(control_plane):
                await self._pause(control_plane)
                return None
            control_plane = await self._resume(key, control_plane)
            control_plane = with_beginning(control_plane, namespace=self._known_namespace(control_plane))
            followed = class_in_force(control_plane, classes=self._context.stores.classes)
            if control_plane.deleting:
                control_plane = await self._recall(key, control_plane, followed=followed)
                return await self._removal.remove(control_plane, chosen=followed.chosen)
            async with AsyncExitStack() as until_written:
                current_pass = Pass(
                    control_plane, followed, until_written, home=self._home(control_plane, followed=followed)
                )
                try:
                    await self._phases(current_pass)
                except ConditionError as failure:
                    current_pass.failure = failure
                self._judge(key, current_pass)
                await self._report(current_pass)
            self._sleeper.reported(current_pass.control_plane)
            await self._monitors.ensure(
                current_pass.control_plane, provision=None if current_pass.is_asleep else current_pass.provision
            )
            if (
                current_pass.provision is not None
                and current_pass.credentials is not None
                and current_pass.published is not None
            ):
                # The rotation comes last, because a failure here must not hold up the publication.
                current_pass.again = await self._rotate(current_pass, current_pass.provision, current_pass.credentials)
            return self._next(key, current_pass)

    async def _phases(self, one: Pass) -> None:
        one.provisioner = self._policy(one)
        one.decision = await self._sleeper.decide(one.control_plane, chosen=one.followed.chosen)
        one.claimed = await self._claim(one)
        one.control_plane = await self._record(one)
        await self._namespace(one, one.provisioner)
        await self._migrate(one)
        one.provision = await self._backend(one, one.provisioner, decision=one.decision)
        one.credentials = await self._credentials(one, one.provision)
        one.published = await self._publish(one, one.provision, one.credentials)

    def _judge(self, key: Key, one: Pass) -> None:
        """Report a failure that may pass as a wait, until it has lasted for some attempts."""
        conditions = one.control_plane.status.conditions
        if one.failure is not None:
            one.failure = self._first_tries.judge(key, one.failure, conditions=conditions)
        elif one.credentials is not None and one.credentials.incomplete is not None:
            failure = self._first_tries.judge(key, one.credentials.incomplete, conditions=conditions)
            one.credentials = replace(one.credentials, incomplete=failure)
        else:
            self._first_tries.forget(key)

    def _policy(self, one: Pass) -> Provisioner:
        """Check the spec and the class of the control plane; returns its provisioner.

        Raises ConditionError if the class is missing, or if spec.endpointRef was added or removed.
        """
        control_plane, followed = one.in_its_home, one.followed
        if control_plane.home.mode is ControlPlaneMode.VIRTUAL:
            check_cluster_path(control_plane)
        if followed.chosen is None and followed.lost is not None:
            raise followed.lost
        if not one.was_published:
            endpoint_policy(self._context, control_plane, chosen=followed.chosen)
            self._provisioners.check_home(control_plane)
        provisioner = self._provisioners.wanted(control_plane)
        if provisioner is not self._provisioners.used(control_plane):
            raise ConditionError(
                Reason.ENDPOINT_INVALID,
                "spec.endpointRef was added or removed, and that would exchange the API server under its users;"
                " undo it, or create a second control plane",
                waits_for_event=True,
            )
        return provisioner

    async def _claim(self, one: Pass) -> str | None:
        """Claim the clusterPath or the address of the API server; returns the address to record."""
        await self._namespaces.check(one.in_its_home)
        return self._claims.take(one.in_its_home)

    async def _record(self, one: Pass) -> ControlPlane:
        """Record finalizer, path, address, policy and class for a removal, before any object is made.

        The method writes a status only if these fields changed. The first pass leaves the write to its final status,
        because the namespace comes next and records the same facts.
        """
        control_plane = one.control_plane
        stored = await add_finalizer(self._context.client, control_plane, store=self._context.stores.control_planes)
        if stored is not None:
            control_plane = ControlPlane.model_validate(stored)
        virtual = control_plane.home.mode is ControlPlaneMode.VIRTUAL
        recorded = {
            "cluster_path": control_plane.cluster_path if virtual else control_plane.status.cluster_path,
            "home": one.home,
            "claimed_address": one.claimed,
            "data_identity": control_plane.status.data_identity or self._adopted_identity(one),
            "service_cidr": self._service_cidr(one),
            "restore": restore_status(
                one.in_its_home,
                stores=self._context.stores,
                living=await self._served.of_living_source(control_plane),
            ),
            "deletion_policy": policy_of(control_plane, chosen=one.followed.chosen),
            "remembered_class": one.followed.remembered(),
            "conditions": self._recorded_conditions(control_plane, followed=one.followed),
        }
        status = control_plane.status.model_copy(update=recorded)
        if one.decision is not None and (sleep := begun(control_plane, one.decision)) is not None:
            status = _with_sleep(status, of=control_plane, sleep=sleep)
        if not needs_record(control_plane, namespace=self._known_namespace(control_plane)):
            one.stored = control_plane
            return control_plane.model_copy(update={"status": status})
        if find_condition(status.conditions, READY) is None:
            written = control_plane.model_copy(update={"status": status})
            status = self._summary.status(_begun(one, written))
        # If the deletion was requested meanwhile, the deletion policy must not change.
        changed = control_plane.status.deletion_policy not in {None, status.deletion_policy}
        await self._write(control_plane, status=status, only_as_seen=changed)
        return control_plane.model_copy(update={"status": status})

    def _home(self, control_plane: ControlPlane, *, followed: ClassInForce) -> Home | None:
        """Return the present or planned home of the data. For existing data, the record of the namespace has it."""
        if not is_managed(control_plane) or control_plane.status.home is not None:
            return control_plane.status.home
        asked = home_asked_for(control_plane, chosen=followed.chosen)
        namespace = self._known_namespace(control_plane)
        record = RetainedDataRecord.of(namespace) if namespace is not None else None
        kept = record.home if record is not None else None
        if record is not None and kept is not None and (record.is_of(control_plane) or asked.is_like(kept)):
            return kept
        # An earlier version published the control plane without a record of its home. The class may ask for another
        # home now.
        return asked if control_plane.status.endpoint is None else Home(mode=control_plane.spec.mode)

    def _adopted_identity(self, one: Pass) -> str | None:
        """Return the identity of data taken over from an earlier control plane; None if the data are new."""
        namespace = self._known_namespace(one.control_plane)
        record = RetainedDataRecord.of(namespace) if namespace is not None else None
        return record.data_identity if record is not None and not record.is_of(one.control_plane) else None

    async def _recall(self, key: Key, control_plane: ControlPlane, *, followed: ClassInForce) -> ControlPlane:
        """Before a removal, record the objects of a pass that was cut off before its status."""
        if is_recorded(control_plane) or FINALIZER not in control_plane.metadata.finalizers:
            return control_plane
        namespace = await self._namespaces.find_owned(control_plane)
        if namespace is None:
            return control_plane
        status = with_beginning(control_plane, namespace=namespace).status
        policy = policy_of(control_plane, chosen=followed.chosen)
        await self._write(control_plane, status=status.model_copy(update={"deletion_policy": policy}))
        stored = self._context.stores.control_planes.get(key)
        return _read(stored) if stored is not None else control_plane

    def _known_namespace(self, control_plane: ControlPlane) -> Object | None:
        return self._context.stores.namespaces.get(("", management_namespace(control_plane.name)))

    def _service_cidr(self, one: Pass) -> str | None:
        """Return the Service network that kplane assigns; None for an adopted API server."""
        if one.provisioner is self._provisioners.adopted:
            return None
        restored = restored_service_cidr(one.control_plane, stores=self._context.stores)
        if restored is not None:
            return restored
        namespace = self._known_namespace(one.control_plane)
        record = RetainedDataRecord.of(namespace) if namespace is not None else None
        kept = record.service_cidr if record is not None else None
        return service_cidr_of(one.control_plane, chosen=one.followed.chosen, kept=kept)

    async def _namespace(self, one: Pass, provisioner: Provisioner) -> None:
        """Create or adopt the namespace for the control plane's keys."""
        uid = await self._namespaces.ensure(
            one.control_plane, take_over=provisioner.take_over, volume=provisioner.volume
        )
        former = one.control_plane.status.namespace_uid
        if former not in {None, uid}:
            # The write comes before `settle`, which removes the proof that the recreated namespace is ours.
            status = one.control_plane.status.model_copy(update={"namespace_uid": uid})
            await self._write(one.control_plane, status=status)
            one.control_plane = one.control_plane.model_copy(update={"status": status})
        one.namespace_uid = uid
        await self._namespaces.settle(one.control_plane)

    async def _migrate(self, one: Pass) -> None:
        """Take the next steps of a migration. The control plane may have another home afterwards."""
        try:
            one.control_plane = await self._migrator.advance(one.control_plane, chosen=one.followed.chosen)
        except ConditionError:
            # Read the migration's last write, so that the status at the end of the pass does not overwrite it.
            one.control_plane = self._migrator.seen(one.control_plane)
            raise
        one.provisioner = self._provisioners.wanted(one.control_plane)

    async def _backend(self, one: Pass, provisioner: Provisioner, *, decision: Decision) -> Provision:
        """Run, adopt or stop the API server, and write its address into the ControlPlaneEndpoint."""
        # the migration may have changed the home since the decision
        virtual = one.control_plane.home.mode is ControlPlaneMode.VIRTUAL
        provision = await self._sleeper.hibernate(one.control_plane, decision) if virtual else None
        if provision is None:
            provision = await provisioner.ensure(one.control_plane)
        self._claims.confirm(one.control_plane, provision=provision)
        if provision.authorities is None:
            return provision
        if provision.asleep_as is None:
            # The deletion comes first, because a webhook of the tenant may refuse all later writes.
            await self._delete_admission(one, provision)
        if not one.was_published and not provision.fresh and one.control_plane.status.restore is None:
            # The data may belong to an earlier control plane, whose users must not get access.
            await revoke_issued(provision.administrator)
        try:
            provision = at_gateway(self._context, one.control_plane, provision=provision, chosen=one.followed.chosen)
            await ensure_endpoint(self._context, one.control_plane, addresses=provision.addresses)
        except ConditionError as taken:
            if not one.was_published:
                raise
            one.failure = taken  # the credentials are still renewed
            provision = still_at_gateway(self._context, one.control_plane, provision=provision, failure=taken)
        return provision

    async def _credentials(self, one: Pass, provision: Provision) -> Credentials:
        """Set up the inside of the control plane, and return credentials that its API server accepts."""
        auth = one.followed.chosen.spec.auth if one.followed.chosen is not None else AuthSpec()

        async def identified(cluster_uid: str) -> None:
            address = provision.addresses.internal
            self._clusters.take(one.control_plane, cluster_uid=cluster_uid, address=address)
            await self._record_cluster(one, cluster_uid)
            await self._delete_admission(one, provision)

        if is_deletion_named(one.control_plane, chosen=one.followed.chosen):
            # For an adopted cluster, the issuer calls `identified` only if the inside is not verified.
            self._issuer.forget(one.control_plane.metadata.uid or "")
        return await self._issuer.ensure(one.control_plane, provision=provision, auth=auth, identified=identified)

    async def _delete_admission(self, one: Pass, provision: Provision) -> None:
        """Delete the webhook configuration or policy that the owner names for deletion, if any."""
        if is_deletion_named(one.control_plane, chosen=one.followed.chosen):
            async with tenant_client(provision.administrator, connections=self._context.connections) as client:
                one.control_plane = await delete_named(self._context, one.control_plane, client)
            # The issuer then checks the webhooks on Leases again in this pass, for condition LeasesUnguarded.
            self._issuer.forget(one.control_plane.metadata.uid or "")

    async def _record_cluster(self, one: Pass, cluster_uid: str) -> None:
        """Record the identity of the cluster that the control plane has adopted.

        This write precedes all writes into the cluster. So a deletion knows whether to revoke credentials there,
        and a restarted operator cannot assign the cluster to another control plane.
        """
        if one.control_plane.status.cluster_uid == cluster_uid:
            return
        control_plane = one.control_plane
        identified = control_plane.model_copy(
            update={"status": control_plane.status.model_copy(update={"cluster_uid": cluster_uid})}
        )
        status = identified.status
        if find_condition(status.conditions, READY) is None:
            status = self._summary.status(_begun(one, identified))
        await self._write(one.stored or control_plane, status=status)
        one.stored = None
        one.control_plane = identified.model_copy(update={"status": status})

    async def _publish(self, one: Pass, provision: Provision, credentials: Credentials) -> dict[str, Any]:
        """Write Secrets and default registration; returns the published fields of the status.

        While the address changes, no registration may use the former address until the status is written. The status is
        not written before each replica of the gateway serves the new state.
        """
        switching = self._switch.moving(one.control_plane, to=provision.addresses.internal)
        await one.until_written.enter_async_context(switching)
        # The gateway's Secret comes first: replicas of the gateway read it while the other Secrets are written.
        await write_gateway_secret(self._context, one.control_plane, provision=provision, chosen=one.followed.chosen)
        await write_secrets(self._context, one.control_plane, provision=provision, credentials=credentials)
        await ensure_default_registration(self._context, one.control_plane, chosen=one.followed.chosen)
        one.behind = await self._routes.wait(one.control_plane, is_new=_is_new_at_gateway(one, provision))
        return published_fields(one.control_plane, provision=provision, credentials=credentials)

    async def _rotate(self, one: Pass, provision: Provision, credentials: Credentials) -> Result:
        """Take the next step of a key rotation; returns when to reconcile again."""
        due = credentials.due_in_seconds()
        if one.decision is not None and one.decision.again is not None:
            due = min(due, max(_SOON_SECONDS, (one.decision.again - datetime.now(UTC)).total_seconds()))
        if (soon := self._migrator.again(one.control_plane, chosen=one.followed.chosen)) is not None:
            due = min(due, soon)
        if one.is_asleep or is_migrating(one.control_plane):
            return Result(due)
        otherwise = Result(due if provision.again_seconds is None else min(due, provision.again_seconds))
        return await self._rotator.advance(one.control_plane, provision=provision, otherwise=otherwise)

    async def _report(self, one: Pass) -> None:
        """Write the status, with Events and metrics of the changes."""
        before, status = one.stored or one.control_plane, self._summary.status(one)
        former = before.status.version
        if one.published is not None and former is not None and status.version != former:
            message = f"the API server is {status.version}, and was {former} before"
            self._context.events.record(before, reason="VersionChanged", message=message)
        await self._write(before, status=status)
        if one.published is not None and not one.was_published:
            self._context.metrics.published(before)

    def _next(self, key: Key, one: Pass) -> Result | None:
        if one.unready is not None:
            self._context.metrics.condition_failed("controlplane", reason=one.unready.reason)
        if one.failure is None:
            self._backoff.forget(key)
            return one.again
        if one.failure.waits_for_event:
            # A person has to act, but published credentials are still renewed, and due jobs inside still wake the
            # control plane.
            return one.again
        # The delay grows per reason: a starting API server is checked often, even after long delays for another reason.
        return Result(self._backoff.next(key, reason=one.failure.reason))

    def _recorded_conditions(self, control_plane: ControlPlane, *, followed: ClassInForce) -> list[Condition]:
        managed = self._provisioners.wanted(control_plane) is not self._provisioners.adopted
        return with_managed(with_class_found(control_plane, followed=followed), of=control_plane, managed=managed)

    async def _pause(self, control_plane: ControlPlane) -> None:
        """Stop the work on a paused control plane, and report the pause in its status."""
        self._provisioners.let_go(control_plane.metadata.uid)
        control_plane = await self._migrator.pause(control_plane)
        phase = ControlPlanePhase.TERMINATING if control_plane.deleting else control_plane.status.phase
        message = "the operator changes, renews and repairs nothing of this control plane"
        conditions = with_pause(control_plane.status.conditions, of=control_plane, left=message)
        update = {"phase": phase or ControlPlanePhase.PENDING, "conditions": conditions}
        await self._write(control_plane, status=control_plane.status.model_copy(update=update))

    async def _resume(self, key: Key, control_plane: ControlPlane) -> ControlPlane:
        """Return the control plane without the condition of a pause that has ended."""
        if find_condition(control_plane.status.conditions, PAUSED) is None:
            return control_plane
        update = {"conditions": without_pause(control_plane.status.conditions)}
        await self._write(control_plane, status=control_plane.status.model_copy(update=update))
        stored = self._context.stores.control_planes.get(key)
        return _read(stored) if stored is not None else control_plane

    def _forget_former(self, key: Key, uid: str | None) -> None:
        if (former_uid := self._uids.former(key, uid=uid)) is not None:
            self._claims.release(former_uid)
            self._clusters.release(former_uid)
            self._sleeper.forget(former_uid)
            self._issuer.forget(former_uid)
            self._probes.stop(key)
            self._routes.forget(former_uid)
            self._monitors.forget(former_uid)
            self._provisioners.let_go(former_uid)
            self._backoff.forget(key)
            self._first_tries.forget(key)
        self._uids.succeed(key, uid=uid)

    async def _write(
        self, control_plane: ControlPlane, *, status: ControlPlaneStatus, only_as_seen: bool = False
    ) -> None:
        await self._context.status.write(
            self._context.stores.control_planes, control_plane, status=status, only_as_seen=only_as_seen
        )


def _is_new_at_gateway(one: Pass, provision: Provision) -> bool:
    """Return whether this pass publishes the control plane, wakes it, or changes its addresses."""
    status = one.control_plane.status
    wakes = status.hibernation is not None and not one.is_asleep
    return not one.was_published or wakes or status.endpoints != provision.addresses.published()


def _read(obj: Object) -> ControlPlane:
    """Read a control plane. An invalid spec is accepted during a deletion, which it must not block."""
    return as_recorded(obj) if "deletionTimestamp" in obj["metadata"] else ControlPlane.model_validate(obj)


def _begun(one: Pass, control_plane: ControlPlane) -> Pass:
    """Return the pass in its initial state, for the first status of a control plane."""
    first = Pass(control_plane, one.followed, one.until_written, home=one.home)
    first.namespace_uid = one.namespace_uid
    first.failure = ConditionError(Reason.PROVISIONING, "the control plane is being made")
    return first


def _with_sleep(status: ControlPlaneStatus, *, of: ControlPlane, sleep: Outcome) -> ControlPlaneStatus:
    """Return the status with the sleep decision, before an API server is started or stopped."""
    conditions = sleep.conditions(status.conditions, of=of)
    if sleep.ready is None:
        return status.model_copy(update={"hibernation": sleep.sleep, "conditions": conditions})
    reason, message = sleep.ready
    conditions = with_condition(conditions, of=of, status="True", reason=reason, message=message)
    phase = reason.phase(published=True)
    return status.model_copy(update={"hibernation": sleep.sleep, "phase": phase, "conditions": conditions})
