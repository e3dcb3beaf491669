"""Resolution of a registration from the objects that it names. Pure, so that each order of creation is testable."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Final

from kplane.api import (
    READY,
    ControlPlane,
    ControlPlaneEndpoint,
    ControlPlaneRegistration,
    MigrationStep,
    SecretReference,
    find_condition,
)
from kplane.api.names import (
    ALLOW_REGISTRATION_LABEL,
    controllers_secret_name,
    kubeconfig_secret_name,
    management_namespace,
)
from kplane.api.reasons import EXPECTED, Reason
from kplane.controlplane_operator.endpoints.addresses import addresses_of
from kplane.controlplane_operator.status.conditions import is_paused
from kplane.controlplane_operator.status.errors import ConditionError

__all__ = ["Resolution", "SecretStanding", "is_published", "resolve", "secret_wanted", "until_first_words"]

_FIRST_WORDS_SECONDS: Final = 10.0
"""Time for which a new registration that waits has no status. Most registrations are resolved within this time, and so
get a single status.
"""
_CREATED_SECONDS: Final = 2.0
"""Time without a status if there is no control plane: both objects may be created at once, in any order."""
_MADE_SECONDS: Final = 30.0
"""Time without a status while the control plane starts, which takes longer if many start at once."""
_MAKING: Final = frozenset({Reason.PROVISIONING, Reason.BOOTSTRAPPING})


class SecretStanding(Enum):
    """Permission of a registration to use a Secret."""

    USABLE = auto()
    ABSENT = auto()
    NOT_ALLOWED = auto()


@dataclass(frozen=True, slots=True)
class Resolution:
    """Endpoint and Secrets of a registration, which belong together."""

    endpoint: str
    kubeconfig_secret: SecretReference
    controllers_secret: SecretReference | None
    control_plane_uid: str
    version: str | None
    unreadable: ConditionError | None = None
    """Error of the operator while it read the Secret that the registration has already; None if the Secret is readable.
    """


def secret_wanted(
    registration: ControlPlaneRegistration, *, control_plane: ControlPlane | None
) -> SecretReference | None:
    """Return the Secret for the registration: its own choice, otherwise the Secret of the control plane."""
    published = control_plane.status.kubeconfig_secret_ref if control_plane is not None else None
    return registration.spec.kubeconfig_secret_ref or published


def is_published(secret: SecretReference, *, control_plane: ControlPlane) -> bool:
    """Return whether kplane publishes the Secret for users. The Secrets with the keys are not published."""
    return secret.namespace == management_namespace(control_plane.name) and secret.name in _published(control_plane)


def _published(control_plane: ControlPlane) -> tuple[str, str]:
    return kubeconfig_secret_name(control_plane.name), controllers_secret_name(control_plane.name)


def resolve(
    registration: ControlPlaneRegistration,
    *,
    control_plane: ControlPlane | None,
    endpoint: ControlPlaneEndpoint | None,
    standing: SecretStanding | ConditionError,
) -> Resolution:
    """Resolve a registration.

    `endpoint` is the object that spec.endpointRef names, `standing` the permission to use the Secret of
    `secret_wanted`. Raises ConditionError with the reason: Deleting, ControlPlaneNotFound, ControlPlaneNotReady,
    EndpointPending, EndpointInvalid, KubeconfigPending, SecretNotFound, SecretNotAllowed, Hibernated or Migrating.
    `standing` is an error if the Secret cannot be read. The error is raised unless the registration resolved to this
    Secret before.
    """
    name = registration.spec.control_plane_ref.name
    if registration.deleting:
        message = "the registration is being deleted; it goes when its instance has ended"
        raise ConditionError(Reason.DELETING, message, waits_for_event=True)
    if control_plane is None:
        raise ConditionError(Reason.CONTROL_PLANE_NOT_FOUND, f"control plane {name} does not exist")
    if control_plane.deleting and not is_paused(control_plane):
        raise ConditionError(Reason.CONTROL_PLANE_NOT_READY, f"control plane {name} is being deleted")
    if control_plane.status.hibernation is not None:
        # Independent of the endpoint that the registration names: an instance would call an API server that does not
        # run.
        raise ConditionError(Reason.HIBERNATED, f"control plane {name} sleeps; services run when it is awake")
    migration = control_plane.status.migration
    if migration is not None and migration.step in {MigrationStep.ENDING_CONTROLLERS, MigrationStep.CUTTING}:
        message = f"the data of control plane {name} move; services run when they have"
        raise ConditionError(Reason.MIGRATING, message, waits_for_event=True)
    url = _endpoint(registration, control_plane=control_plane, endpoint=endpoint)
    secret = secret_wanted(registration, control_plane=control_plane)
    if secret is None:
        raise ConditionError(Reason.KUBECONFIG_PENDING, f"control plane {name} has not published a kubeconfig yet")
    published = control_plane.status
    if published.kubeconfig_secret_ref is None:
        raise ConditionError(Reason.CONTROL_PLANE_NOT_READY, f"control plane {name} has not been ready yet")
    unreadable = standing if isinstance(standing, ConditionError) else None
    status = registration.status
    if unreadable is not None and not (status.ready and status.resolved_kubeconfig_secret_ref == secret):
        raise unreadable
    _check_standing(secret, standing=standing, control_plane=control_plane)
    own = secret == published.kubeconfig_secret_ref
    return Resolution(
        endpoint=url,
        kubeconfig_secret=secret,
        controllers_secret=published.controllers_secret_ref if own else None,
        control_plane_uid=control_plane.metadata.uid or "",
        version=published.version,
        unreadable=unreadable,
    )


def until_first_words(
    registration: ControlPlaneRegistration, *, control_plane: ControlPlane | None, now: datetime
) -> float:
    """Return for how many seconds a registration that waits may remain without a status; 0 if none.

    The time starts with the later of two times: the creation, and the last transition of the control plane. If many
    control planes are created at once, most of them wait longer for their turn than their start takes. A control plane
    without a status has not started, so the time has not started either.
    """
    created = registration.metadata.creation_timestamp
    if created is None or registration.status.conditions or registration.deleting:
        return 0.0
    patience = _FIRST_WORDS_SECONDS if control_plane is not None else _CREATED_SECONDS
    if control_plane is not None:
        if not control_plane.status.conditions:
            return patience
        ready = find_condition(control_plane.status.conditions, READY)
        if ready is not None:
            created = max(created, ready.last_transition_time)
            patience = _MADE_SECONDS if ready.reason in _MAKING else patience
    age = (now - created).total_seconds()
    # A negative age means that the clock of another machine is ahead.
    return patience - age if age >= 0.0 else 0.0


def _endpoint(
    registration: ControlPlaneRegistration, *, control_plane: ControlPlane, endpoint: ControlPlaneEndpoint | None
) -> str:
    reference = registration.spec.endpoint_ref
    own = control_plane.spec.endpoint_ref.name if control_plane.spec.endpoint_ref is not None else control_plane.name
    # The endpoint of the control plane itself resolves to the published address. A changed address counts only when the
    # Secrets are for the new address too.
    if reference is not None and (reference.name != own or control_plane.status.endpoint is None):
        if endpoint is None:
            raise ConditionError(
                Reason.ENDPOINT_PENDING,
                f"ControlPlaneEndpoint {reference.name}, named by spec.endpointRef, does not exist",
            )
        return addresses_of(endpoint, control_plane=control_plane).internal
    if control_plane.status.endpoint is not None:
        return control_plane.status.endpoint
    ready = next((condition for condition in control_plane.status.conditions if condition.type == "Ready"), None)
    if ready is not None and ready.reason == Reason.ENDPOINT_PENDING:
        raise ConditionError(Reason.ENDPOINT_PENDING, f"control plane {control_plane.name} has no endpoint yet")
    message = f"control plane {control_plane.name} has not been ready yet"
    # Expected reasons are left out: each step of a starting control plane would otherwise cause another status here.
    if ready is not None and ready.reason not in EXPECTED:
        message = f"{message}: {ready.message or ready.reason}"
    raise ConditionError(Reason.CONTROL_PLANE_NOT_READY, message)


def _check_standing(
    secret: SecretReference, *, standing: SecretStanding | ConditionError, control_plane: ControlPlane
) -> None:
    if standing is SecretStanding.ABSENT:
        raise ConditionError(Reason.SECRET_NOT_FOUND, f"Secret {secret.namespace}/{secret.name} does not exist")
    if standing is SecretStanding.NOT_ALLOWED:
        raise ConditionError(
            Reason.SECRET_NOT_ALLOWED,
            f"Secret {secret.namespace}/{secret.name} is not one that is published for control plane"
            f" {control_plane.name}; name {' or '.join(_published(control_plane))} of namespace"
            f" {management_namespace(control_plane.name)}, leave spec.kubeconfigSecretRef out, or, to let registrations"
            f' use that Secret, label it {ALLOW_REGISTRATION_LABEL}="true"',
        )
