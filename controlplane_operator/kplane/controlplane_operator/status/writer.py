"""Writer of the statuses of kplane's kinds: by server-side apply with a fixed field manager, and only after changes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from kplane.api import (
    READY,
    RUNNING,
    Condition,
    ConditionStatus,
    ControlPlaneEndpointStatus,
    ControlPlaneRegistrationStatus,
    ResourceModel,
    find_condition,
)
from kplane.api.conditions import (
    ADDONS_READY,
    CLASS_FOUND,
    CONTESTED,
    DEDICATED_READY,
    DELETING,
    HIBERNATED,
    LEASES_UNGUARDED,
    MANAGED,
    MIGRATING,
    PAUSED,
    REACHABLE,
    STORAGE_SUFFICIENT,
    SUPPORTED,
    SYNCED,
    UP_TO_DATE,
)
from kplane.api.reasons import EXPECTED, Reason
from kplane.api.resource import ApiModel
from kplane.controlplane_operator.status.conditions import with_condition
from kplane.controlplane_operator.status.events import Events
from kplane.controlplane_operator.status.ownership import ForeignParts, foreign_parts
from kplane.controlplane_operator.watch.cache import Object, Store
from kplane.provider import Client, Conflict, NotFound

__all__ = [
    "FIELD_MANAGER",
    "StatusWriter",
]

_log: Final = logging.getLogger(__name__)

FIELD_MANAGER: Final = "kplane-status"

_APART: Final = {ADDONS_READY: "kplane-addons-status", DEDICATED_READY: "kplane-dedicated-status"}
"""Conditions with a separate writer, and the name of its field manager. The writer of the other conditions must not
overwrite them with older values.
"""
_OURS: Final = frozenset(
    {
        *_APART,
        CLASS_FOUND,
        CONTESTED,
        DELETING,
        HIBERNATED,
        LEASES_UNGUARDED,
        MANAGED,
        MIGRATING,
        PAUSED,
        REACHABLE,
        READY,
        STORAGE_SUFFICIENT,
        SUPPORTED,
        SYNCED,
        UP_TO_DATE,
    }
)
"""Conditions that the operator writes. Conditions of other types belong to other controllers."""
_NOTHING: Final = ForeignParts()
_HEARTBEAT_MANAGER: Final = "kplane-heartbeat"
_HEARTBEAT_STALE: Final = "HeartbeatStale"
"""Reason of the condition Running, which otherwise mcm writes."""
_TRIES: Final = 5
"""Number of attempts if another writer is faster."""


class StatusWriter:
    """Writer of the statuses in a management cluster. Records an Event for each change of a condition."""

    def __init__(self, client: Client, *, events: Events) -> None:
        self._client = client
        self._events = events
        self._foreign: dict[str, ForeignParts] = {}
        """By the name of an endpoint: the parts of its status that other managers own."""

    async def write(
        self,
        store: Store,
        current: ResourceModel,
        *,
        status: ApiModel,
        only_as_seen: bool = False,
    ) -> None:
        """Make `status` the whole status of the object. Skips the write if the status is equal.

        Some parts belong to other writers and remain: the instance of a registration, which mcm writes, conditions of
        unknown types, and all fields of an endpoint that another field manager owns. If such a field is a condition of
        the operator, the condition Contested names the manager. A published value remains only if `status` contains the
        value, so start from the object's own status. Objects that are gone, or that were replaced by an object of the
        same name, are ignored. With `only_as_seen`, the object must still have the version of `current`; raises
        Conflict if it was changed, or if its deletion was requested, in the meantime.
        """
        if isinstance(status, ControlPlaneEndpointStatus):
            await self._write_shared(store, current, status)
            return
        before = _dump(getattr(current, "status"))  # noqa: B009 - each kind has one, of its own type
        after = _dump(status)
        if before == after:
            return
        stored = await self._apply(store, current, _without_apart(after), only_as_seen=only_as_seen)
        if stored is not None:
            self._tell(current, before, after)

    async def _write_shared(self, store: Store, current: ResourceModel, status: ControlPlaneEndpointStatus) -> None:
        """Make `status` the status of the endpoint, without the parts that other field managers own."""
        seen = getattr(current, "status")  # noqa: B009 - see above
        foreign = self._foreign.get(current.name, _NOTHING)
        if not foreign.are_in(seen.model_dump(mode="json", by_alias=True, exclude_none=True)):
            foreign = _NOTHING
        before, after = _dump(seen, foreign), _dump(_with_contest(status, of=current, foreign=foreign), foreign)
        if before == after:
            return
        try:
            stored = await self._apply(store, current, _with_remainders(after, foreign), force=False)
        except Conflict as error:
            if not _owners_differ(error):
                raise
            stored, foreign = await self._apply_own(store, current, status)
            before, after = _dump(seen, foreign), _dump(_with_contest(status, of=current, foreign=foreign), foreign)
        if stored is not None and before != after:
            self._tell(current, before, after)

    async def _apply_own(
        self, store: Store, current: ResourceModel, status: ControlPlaneEndpointStatus
    ) -> tuple[Object | None, ForeignParts]:
        """Read the owners of the fields, and apply the parts that no other manager owns. Returns these owners too."""
        tries = 0
        while True:
            tries += 1
            foreign = _NOTHING
            try:
                # A raw request, because `get` leaves out managedFields.
                live = await self._client.request("GET", store.resource.path(current.name))
                if live["metadata"]["uid"] != current.metadata.uid:
                    return None, foreign
                foreign = foreign_parts(live, manager=FIELD_MANAGER)
                after = _dump(_with_contest(status, of=current, foreign=foreign), foreign)
                metadata = {"name": current.name, "resourceVersion": live["metadata"]["resourceVersion"]}
                body = {"metadata": metadata, "status": _with_remainders(after, foreign)}
                # Forced, because another manager may own a field of the operator, such as a time.
                stored = await self._client.apply(
                    store.resource, body, subresource="status", field_manager=FIELD_MANAGER, force=True
                )
            except NotFound:
                return None, foreign
            except Conflict:
                if tries == _TRIES:
                    raise
                continue
            remaining = {name: parts for name, parts in self._foreign.items() if store.get(("", name)) is not None}
            self._foreign = remaining | {current.name: foreign}
            return stored, foreign

    async def write_apart(
        self,
        store: Store,
        current: ResourceModel,
        *,
        type: str,  # noqa: A002 - upstream's word
        status: ConditionStatus,
        reason: str,
        message: str,
    ) -> None:
        """Set a condition with a separate writer. Skips the write if the condition is equal."""
        existing = find_condition(_conditions(current), type)
        desired = with_condition(
            [existing] if existing is not None else [],
            of=current,
            type=type,
            status=status,
            reason=reason,
            message=message,
        )
        if desired != [existing]:
            await self._write_apart(
                store, current, type=type, known=[existing] if existing is not None else [], wanted=desired
            )

    async def drop_apart(self, store: Store, current: ResourceModel, *, type: str) -> None:  # noqa: A002 - see above
        """Remove a condition with a separate writer from the object."""
        existing = find_condition(_conditions(current), type)
        if existing is not None:
            await self._write_apart(store, current, type=type, known=[existing], wanted=[])

    async def end_instance(self, store: Store, current: ResourceModel) -> None:
        """Record in the last seen status of a registration that its instance has ended.

        The operator does so if the mcm could not. Raises Conflict if the registration has changed in the meantime.
        """
        seen = store.get(("", current.name))
        if seen is None or seen["metadata"]["uid"] != current.metadata.uid:
            return
        ended = with_condition(
            [condition for condition in _conditions(current) if condition.type == RUNNING],
            of=current,
            type=RUNNING,
            status="False",
            reason="Ended",
            message="the instance has ended",
        )
        others = [condition for condition in seen["status"].get("conditions", ()) if condition["type"] != RUNNING]
        running = [condition.model_dump(mode="json", by_alias=True, exclude_none=True) for condition in ended]
        # Not by server-side apply, which removes only fields that the same manager has applied.
        body = {
            "metadata": {"resourceVersion": seen["metadata"]["resourceVersion"]},
            "status": {"instance": None, "conditions": [*others, *running]},
        }
        try:
            await self._client.patch(store.resource, current.name, body, subresource="status")
        except NotFound:
            return
        self._say(
            current, reason="InstanceEnded", message="its instance ended with its mcm, which could not confirm that"
        )

    async def doubt_instance(self, store: Store, current: ResourceModel, *, message: str) -> None:
        """Record in the last seen status of a registration that the state of its instance is unknown.

        A separate field manager takes the condition over from mcm. With its next write, mcm takes the condition back.
        Raises Conflict if the registration has changed in the meantime, because mcm may be the writer.
        """
        doubted = with_condition(
            [condition for condition in _conditions(current) if condition.type == RUNNING],
            of=current,
            type=RUNNING,
            status="Unknown",
            reason=_HEARTBEAT_STALE,
            message=message,
        )
        status = {
            "conditions": [condition.model_dump(mode="json", by_alias=True, exclude_none=True) for condition in doubted]
        }
        stored = await self._apply(store, current, status, manager=_HEARTBEAT_MANAGER, only_as_seen=True)
        if stored is not None:
            self._say(current, reason=_HEARTBEAT_STALE, message=message, warning=True)

    async def _write_apart(
        self,
        store: Store,
        current: ResourceModel,
        *,
        type: str,  # noqa: A002 - see above
        known: list[Condition],
        wanted: list[Condition],
    ) -> None:
        before, after = (
            {
                "conditions": [
                    condition.model_dump(mode="json", by_alias=True, exclude_none=True) for condition in conditions
                ]
            }
            for conditions in (known, wanted)
        )
        stored = await self._apply(store, current, after, manager=_APART[type])
        if stored is not None:
            self._tell(current, before, after)

    async def _apply(
        self,
        store: Store,
        current: ResourceModel,
        status: dict[str, Any],
        *,
        manager: str = FIELD_MANAGER,
        only_as_seen: bool = False,
        force: bool = True,
    ) -> Object | None:
        """Apply the status to this object, and to no other object of its name. Returns None if the object is gone.

        The API server compares the resourceVersion of a status, but ignores a uid in the applied object.
        """
        seen = None if only_as_seen else store.get(("", current.name))
        tries = 0
        try:
            while seen is None or seen["metadata"]["uid"] == current.metadata.uid:
                version = seen["metadata"]["resourceVersion"] if seen is not None else current.metadata.resource_version
                body = {"metadata": {"name": current.name, "resourceVersion": version}, "status": status}
                try:
                    return await self._client.apply(
                        store.resource, body, subresource="status", field_manager=manager, force=force
                    )
                except Conflict as error:
                    tries += 1
                    if only_as_seen or _owners_differ(error) or tries == _TRIES:
                        raise
                seen = await self._client.get(store.resource, current.name)
        except NotFound:
            return None
        return None

    def _tell(self, current: ResourceModel, before: dict[str, Any], after: dict[str, Any]) -> None:
        old = {condition["type"]: condition for condition in before.get("conditions", ())}
        for kind in _ended(before, after):
            reason, message = _OVER[kind]
            self._say(current, reason=reason, message=message)
        reported = set()
        for condition in after.get("conditions", ()):
            former = old.get(condition["type"], {})
            words = condition["reason"], condition["message"]
            changed = (former.get("status"), former.get("reason")) != (condition["status"], condition["reason"])
            warning = condition["status"] == "False" and condition["reason"] not in EXPECTED
            # The first conditions of a new object cause no Event, unless they report a problem.
            begins = not former and (condition["type"] in _FROM_THE_START or _is_born(condition, old))
            # If two conditions change for the same reason, record one Event.
            if changed and words not in reported and (warning or not begins):
                reported.add(words)
                self._say(
                    current,
                    warning=warning,
                    reason=condition["reason"],
                    message=condition["message"],
                )

    def _say(self, current: ResourceModel, *, reason: str, message: str, warning: bool = False) -> None:
        """Record an Event, which expires after an hour and may be dropped, and write the message to the log."""
        _log.log(logging.WARNING if warning else logging.INFO, "%s", message, extra={"reason": reason})
        self._events.record(current, reason=reason, message=message, warning=warning)


_FROM_THE_START: Final = frozenset({MANAGED, READY, REACHABLE})
"""Conditions that each object of a kind has."""
_OVER: Final = {
    "ClassFound": ("ClassFound", "the class is followed again, and not what was remembered of it"),
    LEASES_UNGUARDED: ("LeasesUnguarded", "no webhook judges the Leases of controllers any more"),
    STORAGE_SUFFICIENT: ("StorageSufficient", "less than 80 % of the storage quota is used again"),
    "Supported": ("Supported", "every field has effect again"),
    "UpToDate": ("UpToDate", "the API server is what spec and class ask for"),
    "Paused": ("Resumed", "the operator reconciles it again"),
    CONTESTED: ("Uncontested", "no other field manager owns a condition of the operator any more"),
    SYNCED: ("Synced", "the operator reconciles what is published again"),
    DEDICATED_READY: (
        "DedicatedEnded",
        "its mcm has ended: spec.mode is not Dedicated any more, or its control plane sleeps",
    ),
    ADDONS_READY: ("AddonsRemoved", "the class names no add-on any more, and the installed ones are removed"),
}
"""Reason and message of the Event when a condition disappears that exists only in exceptional states."""


def _is_born(condition: dict[str, Any], old: Mapping[str, Any]) -> bool:
    """Return whether the condition shows that a new control plane, which had no status yet, starts asleep."""
    return condition["type"] == HIBERNATED and READY not in old


def _ended(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the conditions that have disappeared and whose end needs an Event."""
    here = {condition["type"] for condition in after.get("conditions", ())}
    gone = [former["type"] for former in before.get("conditions", ()) if former["type"] not in here]
    # A change of the version already has its own Event.
    reported = {"UpToDate"} if before.get("version") != after.get("version") else set()
    return [kind for kind in gone if kind in _OVER and kind not in reported]


def _owners_differ(error: Conflict) -> bool:
    """Return whether other managers own fields. Otherwise the conflict is a change of the object."""
    causes = error.details.get("causes") or ()
    return any(cause.get("reason") == "FieldManagerConflict" for cause in causes)


def _conditions(current: ResourceModel) -> list[Condition]:
    conditions: list[Condition] = getattr(current, "status").conditions  # noqa: B009 - see above
    return conditions


def _dump(status: ApiModel, foreign: ForeignParts = _NOTHING) -> dict[str, Any]:
    """Return the operator's own part of a status."""
    conditions: list[Condition] = getattr(status, "conditions")  # noqa: B009 - see above
    ours = [condition for condition in conditions if condition.type in _OURS and condition.type not in foreign.managers]
    status = status.model_copy(update={"conditions": ours})
    if isinstance(status, ControlPlaneRegistrationStatus):
        status = status.model_copy(update={"instance": None})
    return {
        name: value
        for name, value in status.model_dump(mode="json", by_alias=True, exclude_none=True).items()
        if value not in ([], {}) and name not in foreign.fields
    }


def _without_apart(status: dict[str, Any]) -> dict[str, Any]:
    if "conditions" not in status:
        return status
    return {
        **status,
        "conditions": [condition for condition in status["conditions"] if condition["type"] not in _APART],
    }


def _with_remainders(status: dict[str, Any], foreign: ForeignParts) -> dict[str, Any]:
    if not foreign.remainders:
        return status
    return {**status, "conditions": [*status.get("conditions", ()), *foreign.remainders]}


def _with_contest(
    status: ControlPlaneEndpointStatus, *, of: ResourceModel, foreign: ForeignParts
) -> ControlPlaneEndpointStatus:
    """Return the status with condition Contested if other managers own its conditions, otherwise without."""
    messages = [
        f"field manager {foreign.managers[own.type]!r} owns condition {own.type}; the operator found {own.status}"
        f" ({own.reason}: {own.message})"
        for own in status.conditions
        if own.type in (_OURS - {CONTESTED}) & foreign.managers.keys()
    ]
    if not messages:
        remaining = [own for own in status.conditions if own.type != CONTESTED]
        return status.model_copy(update={"conditions": remaining})
    conditions = with_condition(
        status.conditions,
        of=of,
        type=CONTESTED,
        status="True",
        reason=Reason.OWNED_BY_ANOTHER_MANAGER,
        message="; ".join(messages),
    )
    return status.model_copy(update={"conditions": conditions})
