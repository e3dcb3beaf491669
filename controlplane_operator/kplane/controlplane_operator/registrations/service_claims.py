"""Which registration has each service of one control plane; pure, so that every set of registrations is easy to try.

Two instances of one service would both write, because they run without leader election. So the oldest registration has
the service. Of two registrations of the same second, the one that is served already keeps it. A younger one waits, also
until the instance of the one before has ended.
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

__all__ = ["ServiceClaim", "check_services", "default_services", "holders", "may_run"]

_REFUSED: Final = frozenset(
    {Reason.SECRET_NOT_FOUND, Reason.SECRET_NOT_ALLOWED, Reason.ENDPOINT_INVALID, Reason.DEDICATED_NOT_AVAILABLE}
)
"""Reasons of registrations that keep no default registration away."""


@dataclass(frozen=True, slots=True)
class ServiceClaim:
    """A registration's wish for services of one control plane."""

    name: str
    uid: str
    created: datetime
    services: frozenset[Service]
    served: bool = False
    """The status of the registration lets all these services run for the control plane already."""

    @classmethod
    def of(cls, registration: ControlPlaneRegistration, *, services: Iterable[Service], control_plane_uid: str) -> Self:
        """Return the claim of a registration to these services of the control plane with this uid."""
        metadata, claimed, known = registration.metadata, frozenset(services), registration.status
        created = metadata.creation_timestamp or datetime.max.replace(tzinfo=UTC)
        served = bool(known.ready) and known.control_plane_uid == control_plane_uid and claimed <= set(known.services)
        return cls(registration.name, metadata.uid or "", created, claimed, served)

    @property
    def precedence(self) -> tuple[datetime, bool, str]:
        """Sort key: the oldest first. Creation times are whole seconds: among equals the served one, then by uid."""
        return self.created, not self.served, self.uid

    def priority_over(self, other: Self) -> str:
        """Return why this claim comes before `other`, as the end of "registration X, which ..."."""
        if self.created < other.created:
            return "is older"
        return "was created in the same second and has it already" if self.served else "was created in the same second"


def holders(claims: Iterable[ServiceClaim]) -> dict[Service, ServiceClaim]:
    """Return the holder of each service.

    The oldest claim comes first. Each gets all its services, or none if an older holder has one of them: a registration
    that does not run keeps no service from others.
    """
    held: dict[Service, ServiceClaim] = {}
    for claim in sorted(claims, key=lambda claim: claim.precedence):
        if not held.keys() & claim.services:
            held.update(dict.fromkeys(claim.services, claim))
    return held


def may_run(registration: PartialRegistration, *, control_plane_uid: str) -> frozenset[Service]:
    """Return the services that a registration's status lets run for a control plane, or that run there still."""
    status, found = registration.status, set[Service]()
    if status.ready and status.control_plane_uid == control_plane_uid:
        found.update(status.services)
    instance = status.instance
    if instance is not None and instance.control_plane_uid == control_plane_uid:
        # An mcm of an earlier version does not say which.
        found.update(instance.services or Service)
    return frozenset(found)


def check_services(
    registration: ControlPlaneRegistration,
    *,
    control_plane_uid: str,
    claims: Iterable[ServiceClaim],
    others: Collection[PartialRegistration],
) -> None:
    """Raise ConditionError (ServiceTaken) unless all services of a registration are free for it.

    `claims` are those of the other registrations of the control plane. `others` are those whose status names it.
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
    known = registration.status
    if known.ready and known.control_plane_uid == control_plane_uid and own.services <= set(known.services):
        return  # it has them already
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
    """Return the default services of the class that no registration of the control plane provides, or may soon."""
    wanted = chosen.spec.default_services if chosen is not None else []
    if not wanted:
        return []
    referring = stores.registrations.by("control plane", control_plane.name)
    uid = control_plane.metadata.uid or ""
    claims = [claim for obj in referring if (claim := _prospect(obj, control_plane_uid=uid)) is not None]
    provided = holders(claims)
    return [service for service in wanted if service not in provided]


def _prospect(obj: Object, *, control_plane_uid: str) -> ServiceClaim | None:
    """Return what a registration provides, or will when its control plane is ready; None if it was refused."""
    try:
        registration = ControlPlaneRegistration.model_validate(obj)
    except ValidationError:
        return None
    known = registration.status
    if registration.deleting:
        return None
    if is_paused(registration):
        if not known.ready:
            return None
        return ServiceClaim.of(registration, services=known.services, control_plane_uid=control_plane_uid)
    ready = find_condition(known.conditions, READY)
    reason = ready.reason if ready is not None else None
    # An endpoint of its own choice may be missing for ever; that of the control plane comes with the control plane.
    if reason in _REFUSED or (reason == Reason.ENDPOINT_PENDING and registration.spec.endpoint_ref is not None):
        return None
    return ServiceClaim.of(registration, services=registration.spec.services, control_plane_uid=control_plane_uid)
