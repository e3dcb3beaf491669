"""Objects with an invalid spec or status, read from the valid part of their status.

Such an object was stored before a rule of the CRD existed, or by a later version of kplane. The failure is reported,
and the published values remain. Its deletion needs only the values that were recorded at the creation.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar, Final, Self

from pydantic import ValidationError
from typing_extensions import override

from kplane.api import (
    READY,
    Condition,
    ControlPlane,
    ControlPlaneClass,
    ControlPlaneClassStatus,
    ControlPlaneEndpoint,
    ControlPlaneEndpointStatus,
    ControlPlaneMode,
    ControlPlaneRegistration,
    ControlPlaneRegistrationStatus,
    ControlPlaneSnapshot,
    ControlPlaneSnapshotStatus,
    ControlPlaneStatus,
    DeletionPolicy,
    ResourceModel,
    find_condition,
    is_true,
)
from kplane.api.conditions import MANAGED
from kplane.api.reasons import Reason
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.watch.cache import Object
from kplane.controlplane_operator.watch.stores import Stores

__all__ = [
    "PartialClass",
    "PartialControlPlane",
    "PartialEndpoint",
    "PartialObject",
    "PartialRegistration",
    "PartialSnapshot",
    "as_recorded",
    "validated_endpoint",
    "validation_failure",
]


_URLS: Final = {"endpoint": "endpoint", "external_endpoint": "externalEndpoint", "join_endpoint": "joinEndpoint"}
"""Fields of an endpoint's status, with their names in its spec."""


class PartialObject(ResourceModel):
    """Object of which only metadata and status are read."""

    kind: ClassVar[type[ResourceModel]]
    """Model of the whole object."""

    status: Any
    """Last status; each subclass has the model of its kind."""

    @classmethod
    def of(cls, obj: Object) -> Self:
        """Read the object, without the invalid parts of its status."""
        status = obj.get("status") or {}
        while True:
            try:
                return cls.model_validate({"metadata": obj["metadata"], "status": status})
            except ValidationError as error:
                status = _without(status, error)

    @property
    def conditions(self) -> list[Condition]:
        """Conditions in the status."""
        conditions: list[Condition] = self.status.conditions
        return conditions

    @property
    def published(self) -> bool:
        """Whether users may rely on the status."""
        return is_true(self.conditions, READY)

    def holds(self, stores: Stores) -> bool:  # noqa: ARG002 - of some kinds it does not depend on others
        """Return whether the published values are still valid, though the object is not reconciled."""
        return True

    def own(self, spec: Object) -> dict[str, Any]:  # noqa: ARG002 - see PartialEndpoint
        """Return the operator's fields of the status, besides its conditions; an empty dict for all fields."""
        return {}

    def withdrawn(self, reason: Reason) -> dict[str, Any]:  # noqa: ARG002 - see PartialControlPlane
        """Return the update of a status that is not reliable any more."""
        return {}


class PartialControlPlane(PartialObject):
    """ControlPlane with only metadata and status."""

    kind = ControlPlane
    resource = ControlPlane.resource

    status: ControlPlaneStatus = ControlPlaneStatus()
    """Last status."""

    @property
    @override
    def published(self) -> bool:
        return self.status.endpoint is not None

    @override
    def holds(self, stores: Stores) -> bool:
        ends = self.status.credentials_expire_at
        return ends is None or datetime.now(UTC) < ends

    @override
    def withdrawn(self, reason: Reason) -> dict[str, Any]:
        # The endpoint stays in the status: credentials other than the published ones may still be valid.
        return {"phase": reason.phase(published=self.published)}


class PartialRegistration(PartialObject):
    """ControlPlaneRegistration with only metadata and status."""

    kind = ControlPlaneRegistration
    resource = ControlPlaneRegistration.resource

    status: ControlPlaneRegistrationStatus = ControlPlaneRegistrationStatus()
    """Last status."""

    @property
    @override
    def published(self) -> bool:
        return self.status.ready is True

    @override
    def holds(self, stores: Stores) -> bool:
        served = stores.control_planes.by("uid", self.status.control_plane_uid or "")
        return any("deletionTimestamp" not in obj["metadata"] for obj in served)

    @override
    def withdrawn(self, reason: Reason) -> dict[str, Any]:
        return {
            "ready": False,
            "resolved_endpoint": None,
            "resolved_kubeconfig_secret_ref": None,
            "resolved_controllers_secret_ref": None,
            "control_plane_uid": None,
        }


class PartialEndpoint(PartialObject):
    """ControlPlaneEndpoint with only metadata and status."""

    kind = ControlPlaneEndpoint
    resource = ControlPlaneEndpoint.resource

    status: ControlPlaneEndpointStatus = ControlPlaneEndpointStatus()
    """Last status."""

    @override
    def own(self, spec: Object) -> dict[str, Any]:
        # A URL in the status that differs from the spec belongs to another controller, and remains.
        urls = {field: (getattr(self.status, field), spec.get(alias)) for field, alias in _URLS.items()}
        return {field: url if url == written else None for field, (url, written) in urls.items()}


class PartialClass(PartialObject):
    """ControlPlaneClass with only metadata and status."""

    kind = ControlPlaneClass
    resource = ControlPlaneClass.resource

    status: ControlPlaneClassStatus = ControlPlaneClassStatus()
    """Last status."""


class PartialSnapshot(PartialObject):
    """ControlPlaneSnapshot with only metadata and status."""

    kind = ControlPlaneSnapshot
    resource = ControlPlaneSnapshot.resource

    status: ControlPlaneSnapshotStatus = ControlPlaneSnapshotStatus()
    """Last status."""


def validation_failure(kind: type[ResourceModel], obj: Object) -> ConditionError | None:
    """Return an error with the fields that this version of kplane does not accept; None if all are valid."""
    try:
        kind.model_validate(obj)
    except ValidationError as error:
        return ConditionError(Reason.SPEC_INVALID, _told(error))
    return None


def validated_endpoint(obj: Object) -> ControlPlaneEndpoint:
    """Return an endpoint that another object references. Raises ConditionError (EndpointInvalid) if it is not valid."""
    try:
        return ControlPlaneEndpoint.model_validate(obj)
    except ValidationError as error:
        message = f"ControlPlaneEndpoint {obj['metadata']['name']}: {_told(error)}"
        raise ConditionError(Reason.ENDPOINT_INVALID, message, waits_for_event=True) from error


def as_recorded(obj: Object) -> ControlPlane:
    """Return a control plane. An invalid object is built from its status, so that it can be deleted.

    The path, the deletion policy, and whether kplane runs the API server are the recorded values. So a deletion never
    destroys more than the recorded policy allows, and destroys no data if a part of the status is invalid. Without a
    record, no data were created.
    """
    try:
        return ControlPlane.model_validate(obj)
    except ValidationError:
        status = ControlPlaneStatus.model_validate(PartialControlPlane.of(obj).status.model_dump())
    given = obj.get("spec") or {}
    managed = find_condition(status.conditions, MANAGED)
    adopted = managed is not None and managed.status == "False" and _is_reference(given.get("endpointRef"))
    is_retained = given.get("deletionPolicy") == DeletionPolicy.RETAIN or not _is_understood(obj.get("status") or {})
    # The path is recorded only for mode Virtual, before any object of the control plane is created.
    path = status.cluster_path
    mode = ControlPlaneMode.DEDICATED if path is None else ControlPlaneMode.VIRTUAL
    mode = status.home.mode if status.home is not None else mode
    spec: dict[str, Any] = {
        "mode": mode,
        "virtual": {"clusterPath": path} if path is not None and mode is ControlPlaneMode.VIRTUAL else None,
        "deletionPolicy": DeletionPolicy.RETAIN if is_retained else status.deletion_policy,
        "endpointRef": given["endpointRef"] if adopted else None,
    }
    return ControlPlane.model_validate({"metadata": obj["metadata"], "spec": spec, "status": status.model_dump()})


def _told(error: ValidationError) -> str:
    fields = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()[:3])
    return f"this version of kplane does not understand {fields}; correct that, or upgrade the operator"


def _is_understood(status: Object) -> bool:
    try:
        ControlPlaneStatus.model_validate(status)
    except ValidationError:
        return False
    return True


def _is_reference(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("name"), str) and bool(value["name"])


def _without(status: Object, error: ValidationError) -> Object:
    """Return a status without the list items and fields that the error names.

    Raises the error if it names none of them.
    """
    places = [item["loc"][1:] for item in error.errors() if item["loc"][:1] == ("status",)]
    items = {(where[0], where[1]) for where in places if len(where) > 1 and isinstance(where[1], int)}
    fields = {where[0] for where in places if where and (where[0], *where[1:2]) not in items} & set(status)
    if not items and not fields:
        raise error
    remaining = {name: value for name, value in status.items() if name not in fields}
    for name in {name for name, _ in items} - fields:
        remaining[str(name)] = [
            entry for number, entry in enumerate(remaining[str(name)]) if (name, number) not in items
        ]
    return remaining
