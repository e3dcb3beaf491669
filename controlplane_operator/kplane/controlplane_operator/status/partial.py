"""Objects that the models do not understand, by what their status recorded.

Such an object was stored before a rule of the CRD, or by a later version of kplane. It is told, what is published of it
stays, and to delete it needs no more than what was written down when it was made.
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
from kplane.api.resource import ApiModel
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
    """An object of which only metadata and status are read."""

    kind: ClassVar[type[ResourceModel]]
    """The model of all of it."""

    status: ApiModel

    @classmethod
    def of(cls, obj: Object) -> Self:
        """Read what can be understood: of a status that cannot, the rest."""
        status = obj.get("status") or {}
        while True:
            try:
                return cls.model_validate({"metadata": obj["metadata"], "status": status})
            except ValidationError as error:
                status = _without(status, error)

    @property
    def conditions(self) -> list[Condition]:
        """Those of the status."""
        conditions: list[Condition] = getattr(self.status, "conditions")  # noqa: B009 - each kind's status has them
        return conditions

    @property
    def published(self) -> bool:
        """Whether users may rely on the status."""
        return is_true(self.conditions, READY)

    def holds(self, stores: Stores) -> bool:  # noqa: ARG002 - of some kinds it does not depend on others
        """Tell whether what is published is still good, though it is not reconciled."""
        return True

    def own(self, spec: Object) -> dict[str, Any]:  # noqa: ARG002 - see PartialEndpoint
        """Return what of the status is ours, besides its conditions; all of it where that is empty."""
        return {}

    def withdrawn(self, reason: Reason) -> dict[str, Any]:  # noqa: ARG002 - see PartialControlPlane
        """Return what the status says if nothing in it can be relied on any more."""
        return {}


class PartialControlPlane(PartialObject):
    """A control plane's status."""

    kind = ControlPlane
    resource = ControlPlane.resource

    status: ControlPlaneStatus = ControlPlaneStatus()
    """What was said of it before."""

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
        # The endpoint stays: credentials other than the published ones may still be good.
        return {"phase": reason.phase(published=self.published)}


class PartialRegistration(PartialObject):
    """A registration's status."""

    kind = ControlPlaneRegistration
    resource = ControlPlaneRegistration.resource

    status: ControlPlaneRegistrationStatus = ControlPlaneRegistrationStatus()
    """What was said of it before."""

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
    """An endpoint's status."""

    kind = ControlPlaneEndpoint
    resource = ControlPlaneEndpoint.resource

    status: ControlPlaneEndpointStatus = ControlPlaneEndpointStatus()
    """What was said of it before."""

    @override
    def own(self, spec: Object) -> dict[str, Any]:
        # Another URL in the status belongs to another controller, and stays.
        said = {field: (getattr(self.status, field), spec.get(alias)) for field, alias in _URLS.items()}
        return {field: url if url == written else None for field, (url, written) in said.items()}


class PartialClass(PartialObject):
    """A class's status."""

    kind = ControlPlaneClass
    resource = ControlPlaneClass.resource

    status: ControlPlaneClassStatus = ControlPlaneClassStatus()
    """What was said of it before."""


class PartialSnapshot(PartialObject):
    """A snapshot's status."""

    kind = ControlPlaneSnapshot
    resource = ControlPlaneSnapshot.resource

    status: ControlPlaneSnapshotStatus = ControlPlaneSnapshotStatus()
    """What was said of it before."""


def validation_failure(kind: type[ResourceModel], obj: Object) -> ConditionError | None:
    """Say what of an object this version of kplane does not understand; None where it understands all of it."""
    try:
        kind.model_validate(obj)
    except ValidationError as error:
        return ConditionError(Reason.SPEC_INVALID, _told(error))
    return None


def validated_endpoint(obj: Object) -> ControlPlaneEndpoint:
    """Return an endpoint that another object names; raises ConditionError (EndpointInvalid) where it is not
    understood."""
    try:
        return ControlPlaneEndpoint.model_validate(obj)
    except ValidationError as error:
        message = f"ControlPlaneEndpoint {obj['metadata']['name']}: {_told(error)}"
        raise ConditionError(Reason.ENDPOINT_INVALID, message, waits_for_event=True) from error


def as_recorded(obj: Object) -> ControlPlane:
    """Return a control plane; one that is not understood as its status recorded it, so that it can be deleted.

    Path, policy, and who runs the API server are those that were in force then: never is more destroyed than that
    allows, and nothing where a part of the status cannot be read. Where nothing was recorded, nothing was made.
    """
    try:
        return ControlPlane.model_validate(obj)
    except ValidationError:
        status = ControlPlaneStatus.model_validate(PartialControlPlane.of(obj).status.model_dump())
    given = obj.get("spec") or {}
    managed = find_condition(status.conditions, MANAGED)
    adopted = managed is not None and managed.status == "False" and _is_reference(given.get("endpointRef"))
    kept = given.get("deletionPolicy") == DeletionPolicy.RETAIN or not _is_understood(obj.get("status") or {})
    # Written down of control planes of mode Virtual only, before anything is made of one.
    path = status.cluster_path
    mode = ControlPlaneMode.DEDICATED if path is None else ControlPlaneMode.VIRTUAL
    mode = status.home.mode if status.home is not None else mode
    spec: dict[str, Any] = {
        "mode": mode,
        "virtual": {"clusterPath": path} if path is not None and mode is ControlPlaneMode.VIRTUAL else None,
        "deletionPolicy": DeletionPolicy.RETAIN if kept else status.deletion_policy,
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
    """Return a status without what the error names, items of a list or whole fields. Raises it where there are none."""
    places = [item["loc"][1:] for item in error.errors() if item["loc"][:1] == ("status",)]
    items = {(where[0], where[1]) for where in places if len(where) > 1 and isinstance(where[1], int)}
    fields = {where[0] for where in places if where and (where[0], *where[1:2]) not in items} & set(status)
    if not items and not fields:
        raise error
    kept = {name: value for name, value in status.items() if name not in fields}
    for name in {name for name, _ in items} - fields:
        kept[str(name)] = [each for number, each in enumerate(kept[str(name)]) if (name, number) not in items]
    return kept
