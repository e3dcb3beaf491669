"""Rotation of the CAs and the ServiceAccount key of a control plane, one step at a time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from kplane.api import MAX_ROTATION_VALUE, ControlPlane, RotationPhase, RotationStatus
from kplane.api.names import FINISH_ROTATION_ANNOTATION, ROTATE_ANNOTATION, kubeconfig_secret_name, management_namespace
from kplane.controlplane_operator.backends.base import Provision
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.credentials.store import TenantKeys
from kplane.pki.authorities import TenantAuthorities
from kplane.pki.issuing import expires_at
from kplane.pki.rotation import Rotation, RotationWish, next_rotation
from kplane.provider import Result

__all__ = ["Rotator", "refused_rotation", "rotation_status"]

_LOOKED_AT_AGAIN_SECONDS: Final = 5.0
"""Interval at which an unfinished rotation is checked again if no event wakes the reconciler."""


_TOLD: Final = {
    RotationPhase.TRUSTING: "new CAs and a new ServiceAccount key are made, and will be trusted next to the old ones",
    RotationPhase.OVERLAPPING: "the new CAs and the new ServiceAccount key issue credentials; the old ones are trusted",
    RotationPhase.DROPPING: "what the old CAs and the old ServiceAccount key issued is taken out",
    RotationPhase.DONE: "only the new CAs and the new ServiceAccount key are trusted",
}


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Rotator:
    """Takes the steps of rotations.

    The Secret of the authorities records each step, so a rotation continues after a restart of the operator.
    """

    def __init__(self, context: OperatorContext, *, now: Callable[[], datetime] = _utc_now) -> None:
        """`now` returns the current time. The overlap of old and new keys is measured by this clock."""
        self._context = context
        self._keys = TenantKeys(context)
        self._now = now

    async def advance(self, control_plane: ControlPlane, *, provision: Provision, otherwise: Result) -> Result:
        """Take the next step of a rotation, if a step is due, and return when to reconcile again.

        `provision` is the API server that was just published. Returns `otherwise` if no rotation is in progress or the
        control plane is adopted.
        """
        if provision.authorities is None:
            return otherwise
        rotation, annotations = provision.authorities.rotation, control_plane.metadata.annotations
        next_step = next_rotation(
            rotation,
            wish=RotationWish(annotations.get(ROTATE_ANNOTATION), annotations.get(FINISH_ROTATION_ANNOTATION)),
            settled=provision.settled,
            now=self._now(),
            outlives=self._published_until(control_plane),
        )
        if next_step is None:
            return self._wait(rotation, settled=provision.settled, otherwise=otherwise)
        if not await self._keys.advance(control_plane, known=rotation, following=next_step):
            return Result(_LOOKED_AT_AGAIN_SECONDS)
        self._context.events.record(
            control_plane,
            reason=f"Rotation{next_step.phase}",
            message=f"rotation {next_step.value!r}: {_TOLD[next_step.phase]}",
        )
        return Result(0.0)

    def _published_until(self, control_plane: ControlPlane) -> datetime | None:
        key = management_namespace(control_plane.name), kubeconfig_secret_name(control_plane.name)
        secret = self._context.stores.secrets.get(key)
        return expires_at(secret) if secret is not None else None

    def _wait(self, known: Rotation | None, *, settled: bool, otherwise: Result) -> Result:
        if known is None or known.phase is RotationPhase.DONE:
            return otherwise
        seconds = _LOOKED_AT_AGAIN_SECONDS
        if settled and known.drop_at is not None:
            seconds = max(seconds, (known.drop_at - self._now()).total_seconds())
        least = otherwise.requeue_after_seconds
        return Result(seconds if least is None else min(seconds, least))


def rotation_status(authorities: TenantAuthorities | None) -> RotationStatus | None:
    """Return the `rotation` field of the status: the latest rotation; None if there was none."""
    rotation = authorities.rotation if authorities is not None else None
    if rotation is None:
        return None
    return RotationStatus(
        value=rotation.value,
        phase=rotation.phase,
        started_at=rotation.started_at,
        phase_started_at=rotation.phase_started_at,
        drop_at=rotation.drop_at,
    )


def refused_rotation(control_plane: ControlPlane) -> list[str]:
    """Return sentences that explain why an annotation that requests a rotation, or its end, has no effect."""
    value = control_plane.metadata.annotations.get(ROTATE_ANNOTATION)
    if value is None:
        return _refused_end(control_plane)
    ignored = f"annotation {ROTATE_ANNOTATION} is not acted on"
    if control_plane.spec.endpoint_ref is not None:
        return [f"{ignored}: exchange the keys where the API server is run, and then the endpoint's credentials"]
    if not 0 < len(value) <= MAX_ROTATION_VALUE:
        return [f"{ignored}: give it a value of 1 to {MAX_ROTATION_VALUE} characters"]
    return _refused_end(control_plane)


def _refused_end(control_plane: ControlPlane) -> list[str]:
    annotations, latest = control_plane.metadata.annotations, control_plane.status.rotation
    value = annotations.get(FINISH_ROTATION_ANNOTATION)
    accepted = {annotations.get(ROTATE_ANNOTATION), latest.value if latest is not None else None}
    if value is None or value in accepted:
        return []
    ignored = f"annotation {FINISH_ROTATION_ANNOTATION} is not acted on"
    return [f"{ignored}: no exchange has its value {value[:63]!r}; give it that of {ROTATE_ANNOTATION} or remove it"]
