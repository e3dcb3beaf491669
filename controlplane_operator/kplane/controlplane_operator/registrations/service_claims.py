"""Assignment of the services of a control plane to registrations. Pure, so that each set of registrations is testable.

Two instances of a service would both write, because they run without leader election. So the oldest registration gets
the service. Of two registrations created in the same second, the registration that is served already keeps the service.
It keeps the service over a sleep or a move, in which both wait, because the other registration was refused.
A younger registration waits, and also waits for the end of an instance that ran the service before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Self

from pydantic import ValidationError

from kplane.api import (
    READY,
    ControlPlane,
    ControlPlaneClass,
    ControlPlaneRegistration,
    Service,
    find_condition,
)
from kplane.api.reasons import Reason
from kplane.controlplane_operator.status.conditions import is_paused
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.status.partial import PartialRegistration
from kplane.controlplane_operator.watch.cache import Object
from kplane.controlplane_operator.watch.stores import Stores

__all__ = ["ServiceClaim", "check_services", "default_services", "holders", "may_run", "was_refused"]

_REFUSED: Final = frozenset(
    {Reason.SECRET_NOT_FOUND, Reason.SECRET_NOT_ALLOWED, Reason.ENDPOINT_INVALID, Reason.DEDICATED_NOT_AVAILABLE}
)
"""Reasons of registrations that do not prevent a default registration."""


@dataclass(frozen=True, slots=True)
class ServiceClaim:
    """Claim of a registration to services of a control plane."""

    name: str
    uid: str
    created: datetime
    services: frozenset[Service]
    served: bool = False
    """Whether the status of the registration already allows all these services to run for the control plane."""
    refused: bool = False
    """Whether the registration was refused last because another registration has a service."""

    @classmethod
    def of(cls, registration: ControlPlaneRegistration, *, services: Iterable[Service], control_plane_uid: str) -> Self:
        """Return the claim of a registration to these services of the control plane with this uid."""
        metadata, claimed, status = registration.metadata, frozenset(services), registration.status
        created = metadata.creation_timestamp or datetime.max.replace(tzinfo=UTC)
        served = (
            bool(status.ready) and status.control_plane_uid == control_plane_uid and claimed <= set(status.services)
        )
        return cls(registration.name, metadata.uid or "", created, claimed, served, was_refused(registration))

    @property
    def precedence(self) -> tuple[datetime, bool, bool, str]:
        """Sort key, the oldest claim first.

        Creation times are whole seconds. So a claim that was not refused is preferred, then a served claim, and then
        the uid decides. No claim is served while the control plane sleeps, but the refusal stays.
        """
        return self.created, self.refused, not self.served, self.uid

    def priority_over(self, other: Self) -> str:
        """Return the reason why this claim precedes `other`, as the end of "registration X, which ..."."""
        if self.created < other.created:
            return "is older"
        if self.served or (other.refused and not self.refused):
            return "was created in the same second and has it already"
        return "was created in the same second"


def was_refused(registration: ControlPlaneRegistration) -> bool:
    """Return whether the status of a registration has reason ServiceTaken."""
    ready = find_condition(registration.status.conditions, READY)
    return ready is not None and ready.reason == Reason.SERVICE_TAKEN


def holders(claims: Iterable[ServiceClaim]) -> dict[Service, ServiceClaim]:
    """Return the holder of each service.

    The oldest claim comes first. A claim gets all its services, or none if an older holder has one of them. So a
    registration that cannot run keeps no service from other registrations.
    """
    holder_by_service: dict[Service, ServiceClaim] = {}
    for claim in sorted(claims, key=lambda claim: claim.precedence):
        if not holder_by_service.keys() & claim.services:
            holder_by_service.update(dict.fromkeys(claim.services, claim))
    return holder_by_service


def may_run(registration: PartialRegistration, *, control_plane_uid: str) -> frozenset[Service]:
    """Return the services that the status allows to run for a control plane, and the services of a running instance."""
    status, services = registration.status, set[Service]()
    if status.ready and status.control_plane_uid == control_plane_uid:
        services.update(status.services)
    instance = status.instance
    if instance is not None and instance.control_plane_uid == control_plane_uid:
        # An mcm of an earlier version does not report its services.
        services.update(instance.services or Service)
    return frozenset(services)


def check_services(
    registration: ControlPlaneRegistration,
    *,
    control_plane_uid: str,
    claims: Iterable[ServiceClaim],
    others: Collection[PartialRegistration] = (),
) -> None:
    """Raise ConditionError (ServiceTaken) unless all services of a registration are free.

    `claims` are the claims of the other registrations of the control plane. `others` are the registrations whose status
    names the control plane.
    """
    own = ServiceClaim.of(registration, services=registration.spec.services, control_plane_uid=control_plane_uid)
    control_plane = registration.spec.control_plane_ref.name
    for service, holder in sorted(holders([own, *claims]).items()):
        if service in own.services and holder != own:
            raise ConditionError(
                Reason.SERVICE_TAKEN,
                f"registration {holder.name}, which {holder.priority_over(own)}, has {service} of control plane"
                f" {control_plane}; delete one of the two, or remove {service} from spec.services of one",
            )
    status = registration.status
    if status.ready and status.control_plane_uid == control_plane_uid and own.services <= set(status.services):
        return  # the registration has all its services already
    for other in others:
        if other.metadata.uid == own.uid:
            continue
        if left := own.services & may_run(other, control_plane_uid=control_plane_uid):
            until = "is paused; remove that annotation" if is_paused(other) else "wait until that has ended"
            raise ConditionError(
                Reason.SERVICE_TAKEN,
                f"registration {other.name} runs {' and '.join(sorted(left))} for control plane {control_plane} still;"
                f" {until}",
            )


def default_services(control_plane: ControlPlane, *, chosen: ControlPlaneClass | None, stores: Stores) -> list[Service]:
    """Return the default services of the class that no registration of the control plane provides or will provide."""
    desired = chosen.spec.default_services if chosen is not None else []
    if not desired:
        return []
    referring = stores.registrations.by("control plane", control_plane.name)
    uid = control_plane.metadata.uid or ""
    claims = [claim for obj in referring if (claim := _prospect(obj, control_plane_uid=uid)) is not None]
    provided = holders(claims)
    return [service for service in desired if service not in provided]


def _prospect(obj: Object, *, control_plane_uid: str) -> ServiceClaim | None:
    """Return the claim to the services that a registration provides or will provide; None if it was refused."""
    try:
        registration = ControlPlaneRegistration.model_validate(obj)
    except ValidationError:
        return None
    status = registration.status
    if registration.deleting:
        return None
    if is_paused(registration):
        if not status.ready:
            return None
        return ServiceClaim.of(registration, services=status.services, control_plane_uid=control_plane_uid)
    ready = find_condition(status.conditions, READY)
    reason = ready.reason if ready is not None else None
    # An endpoint of the registration's own choice may never exist; the endpoint of the control plane comes with its
    # start.
    if reason in _REFUSED or (reason == Reason.ENDPOINT_PENDING and registration.spec.endpoint_ref is not None):
        return None
    return ServiceClaim.of(registration, services=registration.spec.services, control_plane_uid=control_plane_uid)
