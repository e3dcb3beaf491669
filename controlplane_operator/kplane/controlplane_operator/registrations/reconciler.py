"""Reconciler of ControlPlaneRegistration: resolves endpoint and Secret, grants the Secret, and publishes the pair."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from pydantic import ValidationError

from kplane.api import (
    ControllersSettings,
    ControlPlane,
    ControlPlaneEndpoint,
    ControlPlaneRegistration,
    ControlPlaneRegistrationStatus,
    RegistrationMode,
    SecretReference,
)
from kplane.api.names import ALLOW_REGISTRATION_LABEL, FINALIZER
from kplane.api.reasons import Reason
from kplane.components.names import mark_of, mcm_mark, mcm_name, place
from kplane.controlplane_operator.class_policy import class_in_force
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.credentials.secrets import find_secret
from kplane.controlplane_operator.failures import Failures
from kplane.controlplane_operator.finalizers import add_finalizer, remove_finalizer
from kplane.controlplane_operator.grants import Account
from kplane.controlplane_operator.registrations.dedicated_mcm import DedicatedMcms, account_of, eldest_of
from kplane.controlplane_operator.registrations.endpoint_switch import EndpointSwitch
from kplane.controlplane_operator.registrations.resolution import (
    Resolution,
    SecretStanding,
    is_published,
    resolve,
    secret_wanted,
    until_first_words,
)
from kplane.controlplane_operator.registrations.service_claims import ServiceClaim, check_services, was_refused
from kplane.controlplane_operator.status.conditions import (
    is_paused,
    with_condition,
    with_pause,
    with_supported,
    without_pause,
)
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.status.partial import PartialRegistration, as_recorded, validated_endpoint
from kplane.controlplane_operator.watch.backoff import jittered
from kplane.controlplane_operator.watch.cache import Key, Object, UIDTracker
from kplane.provider import Invalid, Result
from kplane.provider.errors import Forbidden
from kplane.provider.logs import log_fields

__all__ = ["ControlPlaneRegistrationReconciler"]

_PERIOD_SECONDS: Final = 600.0
_RETRY_SECONDS: Final = 5.0
_WAITS: Final = frozenset(
    {
        Reason.CONTROL_PLANE_NOT_FOUND,
        Reason.CONTROL_PLANE_NOT_READY,
        Reason.ENDPOINT_PENDING,
        Reason.KUBECONFIG_PENDING,
    }
)
_PENDING: Final = _WAITS | {Reason.HIBERNATED, Reason.MIGRATING}
"""Reasons of a registration that keeps its claims to services, because it will be ready without a change of its own."""


class ControlPlaneRegistrationReconciler:
    """Reconciler that resolves registrations."""

    def __init__(
        self, context: OperatorContext, *, switch: EndpointSwitch, mcms: DedicatedMcms, no_dedicated: str | None
    ) -> None:
        """`no_dedicated` is the reason why registrations of mode Dedicated get no mcm; None if they do."""
        self.failures: Final = Failures(
            context,
            controller="controlplaneregistration",
            store=context.stores.registrations,
            written=PartialRegistration,
        )
        self._context = context
        self._switch = switch
        self._mcms = mcms
        self._no_dedicated = no_dedicated
        self._uids = UIDTracker()

    async def reconcile(self, key: Key) -> Result | None:
        """Resolve a registration, or revoke the grants of a deleted registration."""
        obj = self._context.stores.registrations.get(key)
        uid = obj["metadata"]["uid"] if obj is not None else None
        with log_fields(object=f"ControlPlaneRegistration/{key[1]}"):
            if (former := self._uids.former(key, uid=uid)) is not None:
                await self._context.access.revoke(former)
            self._uids.succeed(key, uid=uid)
            if obj is None or await self._let_go(PartialRegistration.of(obj)):
                return None
            registration = ControlPlaneRegistration.model_validate(obj)
            async with self._switch.resolving(registration.spec.control_plane_ref.name):
                try:
                    result = await self._resolve(registration)
                except ConditionError as failure:
                    await self.failures.tell(key, failure)
                    return Result(jittered(_RETRY_SECONDS))
            await self.failures.over(key)
            return result

    async def _resolve(self, registration: ControlPlaneRegistration) -> Result | None:
        """Resolve a registration and publish the outcome.

        Raises ConditionError after a successful publication if the Secret cannot be read again.
        """
        if is_paused(registration) and not registration.deleting:
            left = "what it resolves to stays as it is"
            conditions = with_pause(registration.status.conditions, of=registration, left=left)
            await self._write(registration, status=registration.status.model_copy(update={"conditions": conditions}))
            return None
        control_plane = self._control_plane(registration)
        try:
            resolution = await self._accept_first(registration, control_plane=control_plane)
            await self._check_services(registration, control_plane=control_plane)
            if control_plane is not None:
                self._switch.check(registration, resolution, of=control_plane)
            self._check_former(registration, resolution)
        except ConditionError as failure:
            self._context.metrics.condition_failed("controlplaneregistration", reason=failure.reason)
            pause = until_first_words(registration, control_plane=control_plane, now=datetime.now(UTC))
            if failure.reason in _WAITS and pause > 0.0:
                return Result(pause)
            # The status drops the Secret before the grant is removed.
            await self._publish(registration, failure)
            await self._context.access.revoke(registration.metadata.uid or "")
            return None if failure.waits_for_event else Result(jittered(_RETRY_SECONDS))
        # The finalizer comes first, so that a deletion cannot leave a running service behind.
        await self._hold(registration)
        secret = resolution.controllers_secret or resolution.kubeconfig_secret
        await self._context.access.grant(registration, secret=secret, to=self._reader(registration))
        if not self._is_current(registration, resolution):
            return None  # the change of the control plane enqueues the registration again
        await self._publish(registration, resolution, control_plane=control_plane)
        await self._context.access.revoke(registration.metadata.uid or "", keep=secret)
        if resolution.unreadable is not None:
            raise resolution.unreadable
        return Result(jittered(_PERIOD_SECONDS))

    async def _accept_first(
        self, registration: ControlPlaneRegistration, *, control_plane: ControlPlane | None
    ) -> Resolution:
        """Resolve a registration. Raises ConditionError if it could not run, or is to stay refused.

        A refused registration stays refused (ServiceTaken) while it has to wait for other reasons too. Otherwise the
        status would no longer tell which of two registrations of the same second had the service before.
        """
        try:
            return await self._accept(registration, control_plane=control_plane)
        except ConditionError as failure:
            is_kept = control_plane is not None and not control_plane.deleting
            if is_kept and failure.reason in _PENDING and was_refused(registration):
                await self._check_services(registration, control_plane=control_plane, pending=True)
            raise

    async def _accept(
        self, registration: ControlPlaneRegistration, *, control_plane: ControlPlane | None
    ) -> Resolution:
        """Resolve a registration, without regard to other registrations. Raises ConditionError if it could not run."""
        resolution = resolve(
            registration,
            control_plane=control_plane,
            endpoint=self._endpoint(registration),
            standing=await self._standing(registration, control_plane=control_plane),
        )
        self._check_mode(registration)
        return resolution

    async def _check_services(
        self, registration: ControlPlaneRegistration, *, control_plane: ControlPlane | None, pending: bool = False
    ) -> None:
        """Raise ConditionError (ServiceTaken) if another registration owns a service, or still runs it.

        `pending` means that the registration waits anyway. Then other waiting registrations own services too, and it
        does not matter what still runs.
        """
        if control_plane is None or not registration.spec.services:
            return
        stores, uid = self._context.stores.registrations, control_plane.metadata.uid or ""
        own = registration.metadata.uid
        referring = [obj for obj in stores.by("control plane", control_plane.name) if obj["metadata"]["uid"] != own]
        claims = [await self._claim(obj, control_plane=control_plane, pending=pending) for obj in referring]
        check_services(
            registration,
            control_plane_uid=uid,
            claims=[claim for claim in claims if claim is not None],
            others=[] if pending else [PartialRegistration.of(obj) for obj in stores.by("served", uid)],
        )

    async def _claim(self, obj: Object, *, control_plane: ControlPlane, pending: bool) -> ServiceClaim | None:
        """Return the claim of another registration; None if it could not run even without other registrations.

        So a registration that is not allowed to run takes no service from a registration that is. With `pending`, a
        registration that only waits has a claim.
        """
        uid = control_plane.metadata.uid or ""
        try:
            registration = ControlPlaneRegistration.model_validate(obj)
        except ValidationError:
            return None
        if is_paused(registration) and not registration.deleting:
            status = registration.status
            if not (status.ready and status.control_plane_uid == uid):
                return None
            return ServiceClaim.of(registration, services=status.services, control_plane_uid=uid)
        try:
            await self._accept(registration, control_plane=control_plane)
        except ConditionError as failure:
            if not pending or failure.reason not in _PENDING:
                return None
        except (ValidationError, Forbidden, Invalid):
            return None
        return ServiceClaim.of(registration, services=registration.spec.services, control_plane_uid=uid)

    async def _hold(self, registration: ControlPlaneRegistration) -> None:
        """Add the finalizer, so that a deletion waits for the end of the instance.

        Another registration may get the services after the deletion.
        """
        if registration.spec.services:
            await add_finalizer(self._context.client, registration, store=self._context.stores.registrations)

    async def _let_go(self, registration: PartialRegistration) -> bool:
        """Remove the finalizer of a deleted registration without an instance. Returns whether it was removed.

        The instance of a control plane that is being removed is ignored. No other registration takes over its services,
        and the removal of the control plane waits for instances itself.
        """
        is_pending = registration.deleting and FINALIZER in registration.metadata.finalizers
        if not is_pending or self._is_awaited(registration):
            return False
        await remove_finalizer(self._context.client, registration, store=self._context.stores.registrations)
        return True

    def _is_awaited(self, registration: PartialRegistration) -> bool:
        instance = registration.status.instance
        if instance is None:
            return False
        served = self._context.stores.control_planes.by("uid", instance.control_plane_uid or "")
        return any(not control_plane.deleting or is_paused(control_plane) for control_plane in map(as_recorded, served))

    def _check_mode(self, registration: ControlPlaneRegistration) -> None:
        if registration.spec.mode is not RegistrationMode.DEDICATED:
            return
        if self._no_dedicated is not None:
            raise ConditionError(Reason.DEDICATED_NOT_AVAILABLE, self._no_dedicated)
        uid = registration.metadata.uid or ""
        if eldest_of(mcm_mark(uid), stores=self._context.stores) != uid:
            message = (
                "an older registration has the name that its mcm would have by chance; set spec.mode to Shared, or"
                " delete this registration and create it again"
            )
            raise ConditionError(Reason.DEDICATED_NOT_AVAILABLE, message)

    def _check_former(self, registration: ControlPlaneRegistration, resolution: Resolution) -> None:
        """Raise ConditionError if an mcm of a deleted registration may still work for the control plane.

        A registration that serves the control plane already passes.
        """
        status, stores = registration.status, self._context.stores
        if status.ready and status.control_plane_uid == resolution.control_plane_uid:
            return
        for component in self._mcms.at(registration.spec.control_plane_ref.name):
            if eldest_of(mark_of(component) or "", stores=stores) is None:
                former = place(component)
                message = (
                    f"{former.name} in namespace {former.namespace}, mcm of a deleted registration, has to end first"
                )
                raise ConditionError(Reason.MCM_ENDING, message)

    def _reader(self, registration: ControlPlaneRegistration) -> Account:
        """Return the ServiceAccount of the mcm that needs the Secret."""
        if registration.spec.mode is not RegistrationMode.DEDICATED:
            return self._context.access.shared
        return account_of(mcm_name(registration.spec.control_plane_ref.name, uid=registration.metadata.uid or ""))

    def _is_current(self, registration: ControlPlaneRegistration, resolution: Resolution) -> bool:
        """Return whether the control plane still exists and is awake, since earlier steps may have waited."""
        control_plane = self._control_plane(registration)
        if control_plane is None or control_plane.deleting or control_plane.status.hibernation is not None:
            return False
        return control_plane.metadata.uid == resolution.control_plane_uid

    def _control_plane(self, registration: ControlPlaneRegistration) -> ControlPlane | None:
        obj = self._context.stores.control_planes.get(("", registration.spec.control_plane_ref.name))
        # A control plane with an invalid spec keeps its published values.
        return as_recorded(obj) if obj is not None else None

    def _endpoint(self, registration: ControlPlaneRegistration) -> ControlPlaneEndpoint | None:
        reference = registration.spec.endpoint_ref
        obj = self._context.stores.endpoints.get(("", reference.name)) if reference is not None else None
        return validated_endpoint(obj) if obj is not None else None

    async def _standing(
        self, registration: ControlPlaneRegistration, *, control_plane: ControlPlane | None
    ) -> SecretStanding | ConditionError:
        secret = secret_wanted(registration, control_plane=control_plane)
        if secret is None or control_plane is None:
            return SecretStanding.ABSENT
        if secret == control_plane.status.kubeconfig_secret_ref:
            # The operator restores a deleted Secret of its own within a moment, so the instance keeps running.
            return SecretStanding.USABLE
        try:
            return await self._standing_of_other(secret, published=is_published(secret, control_plane=control_plane))
        except ConditionError as unreadable:
            return unreadable

    async def _standing_of_other(self, secret: SecretReference, *, published: bool) -> SecretStanding:
        existing = await find_secret(self._context, namespace=secret.namespace, name=secret.name)
        if existing is None:
            return SecretStanding.ABSENT
        opened = (existing["metadata"].get("labels") or {}).get(ALLOW_REGISTRATION_LABEL) == "true"
        return SecretStanding.USABLE if opened or published else SecretStanding.NOT_ALLOWED

    def _controllers(
        self, current: ControlPlaneRegistration, *, control_plane: ControlPlane | None
    ) -> ControllersSettings | None:
        own = current.spec.controllers
        if own is not None and own.chosen:
            return own
        if control_plane is None or control_plane.spec.class_ref is None:
            return None
        chosen_class = class_in_force(control_plane, classes=self._context.stores.classes).chosen
        if chosen_class is None:
            # The class is not in the cache yet, so the former settings remain in force.
            return current.status.controllers
        settings = chosen_class.spec.controllers
        return settings if settings is not None and settings.chosen else None

    async def _publish(
        self,
        current: ControlPlaneRegistration,
        outcome: Resolution | ConditionError,
        *,
        control_plane: ControlPlane | None = None,
    ) -> None:
        resolved = outcome if isinstance(outcome, Resolution) else None
        ready = with_condition(
            current.status.conditions,
            of=current,
            status="True" if resolved is not None else "False",
            reason=outcome.reason if isinstance(outcome, ConditionError) else Reason.RESOLVED,
            message=outcome.message if isinstance(outcome, ConditionError) else _resolved(current),
        )
        status = current.status.model_copy(
            update={
                "ready": resolved is not None,
                "resolved_endpoint": resolved.endpoint if resolved else None,
                "resolved_kubeconfig_secret_ref": resolved.kubeconfig_secret if resolved else None,
                "resolved_controllers_secret_ref": resolved.controllers_secret if resolved else None,
                "control_plane_uid": resolved.control_plane_uid if resolved else None,
                "version": resolved.version if resolved else None,
                "controllers": self._controllers(current, control_plane=control_plane) if resolved else None,
                "services": current.spec.services,
                "mode": current.spec.mode or RegistrationMode.SHARED,
                "observed_generation": current.metadata.generation,
                "conditions": with_supported(without_pause(ready), of=current, missing=_unsupported(current)),
            }
        )
        await self._write(current, status=status)

    async def _write(self, current: ControlPlaneRegistration, *, status: ControlPlaneRegistrationStatus) -> None:
        await self._context.status.write(self._context.stores.registrations, current, status=status)


def _unsupported(registration: ControlPlaneRegistration) -> list[str]:
    missing = [service for service in registration.spec.services if not service.served]
    return [f"nothing serves {', '.join(missing)} in spec.services; remove it"] if missing else []


def _resolved(registration: ControlPlaneRegistration) -> str:
    """Return the message of condition Ready for a registration that is resolved."""
    if any(service.served for service in registration.spec.services):
        return "services can run"
    return "no service runs: name Controllers or Scheduler in spec.services"
