"""Writes the status of our kinds: by server-side apply, as one manager, and only where it changed."""

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
"""Conditions that have a writer of their own, with the name of their field manager. A writer of other conditions must
not overwrite them with what it read before."""
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
"""A reason of mcm's condition."""
_TRIES: Final = 5
"""Number of attempts if another writer is faster."""


class StatusWriter:
    """Writes statuses of one management cluster and records an Event for each change of a condition."""

    def __init__(self, client: Client, *, events: Events) -> None:
        self._client = client
        self._events = events
        self._foreign: dict[str, ForeignParts] = {}
        """By the name of an endpoint: what of its status other managers were found to own."""

    async def write(
        self,
        store: Store,
        current: ResourceModel,
        *,
        status: ApiModel,
        only_as_seen: bool = False,
    ) -> None:
        """Make `status` the whole status of the object, unless it is already.

        Some parts belong to others and stay: a registration's instance to mcm, conditions of unknown types to any
        controller, and of an endpoint whatever another field manager owns. If that is a condition of ours, condition
        Contested names the manager.
        A published value stays only if `status` carries it: start from the object's own one. The answer goes into the
        store at once, so that the next look at it is not behind. An object that is gone, or was replaced by one of the
        same name, is left alone. With `only_as_seen`, it has to be as `current` says; raises Conflict where it was
        changed, or its deletion asked for, meanwhile.
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
            store.apply(stored)
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
        if stored is not None:
            store.apply(stored)
            if before != after:
                self._tell(current, before, after)

    async def _apply_own(
        self, store: Store, current: ResourceModel, status: ControlPlaneEndpointStatus
    ) -> tuple[Object | None, ForeignParts]:
        """Apply what no other manager owns, after a look at the owners; returns them too."""
        tries = 0
        while True:
            tries += 1
            foreign = _NOTHING
            try:
                # With managedFields, which `get` leaves out.
                live = await self._client.request("GET", store.resource.path(current.name))
                if live["metadata"]["uid"] != current.metadata.uid:
                    return None, foreign
                foreign = foreign_parts(live, manager=FIELD_MANAGER)
                after = _dump(_with_contest(status, of=current, foreign=foreign), foreign)
                metadata = {"name": current.name, "resourceVersion": live["metadata"]["resourceVersion"]}
                body = {"metadata": metadata, "status": _with_remainders(after, foreign)}
                # By force, because a field of ours may have another owner, such as a time.
                stored = await self._client.apply(
                    store.resource, body, subresource="status", field_manager=FIELD_MANAGER, force=True
                )
            except NotFound:
                return None, foreign
            except Conflict:
                if tries == _TRIES:
                    raise
                continue
            known = {name: parts for name, parts in self._foreign.items() if store.get(("", name)) is not None}
            self._foreign = known | {current.name: foreign}
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
        """Make this a condition of the object that has a writer of its own, unless it is already."""
        known = find_condition(_conditions(current), type)
        wanted = with_condition(
            [known] if known is not None else [],
            of=current,
            type=type,
            status=status,
            reason=reason,
            message=message,
        )
        if wanted != [known]:
            await self._write_apart(
                store, current, type=type, known=[known] if known is not None else [], wanted=wanted
            )

    async def drop_apart(self, store: Store, current: ResourceModel, *, type: str) -> None:  # noqa: A002 - see above
        """Take such a condition off the object."""
        known = find_condition(_conditions(current), type)
        if known is not None:
            await self._write_apart(store, current, type=type, known=[known], wanted=[])

    async def end_instance(self, store: Store, current: ResourceModel) -> None:
        """Say of a registration, as it was last seen, that its instance has ended, in the place of an mcm that did not.

        Raises Conflict where it changed meanwhile.
        """
        seen = store.get(("", current.name))
        if seen is None or seen["metadata"]["uid"] != current.metadata.uid:
            return
        ended = with_condition(
            [each for each in _conditions(current) if each.type == RUNNING],
            of=current,
            type=RUNNING,
            status="False",
            reason="Ended",
            message="the instance has ended",
        )
        others = [each for each in seen["status"].get("conditions", ()) if each["type"] != RUNNING]
        told = [each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in ended]
        # No server-side apply: that takes away only what the same manager has said.
        body = {
            "metadata": {"resourceVersion": seen["metadata"]["resourceVersion"]},
            "status": {"instance": None, "conditions": [*others, *told]},
        }
        try:
            stored = await self._client.patch(store.resource, current.name, body, subresource="status")
        except NotFound:
            return
        store.apply(stored)
        self._say(
            current, reason="InstanceEnded", message="its instance ended with its mcm, which could not confirm that"
        )

    async def doubt_instance(self, store: Store, current: ResourceModel, *, message: str) -> None:
        """Say of a registration, as it was last seen, that it is not known whether its instance runs.

        The field manager is one of its own, which takes the condition over from mcm. With its next write mcm takes it
        back. Raises Conflict if the registration changed meanwhile: it may be mcm that wrote.
        """
        doubted = with_condition(
            [each for each in _conditions(current) if each.type == RUNNING],
            of=current,
            type=RUNNING,
            status="Unknown",
            reason=_HEARTBEAT_STALE,
            message=message,
        )
        status = {"conditions": [each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in doubted]}
        stored = await self._apply(store, current, status, manager=_HEARTBEAT_MANAGER, only_as_seen=True)
        if stored is not None:
            store.apply(stored)
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
            {"conditions": [each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in conditions]}
            for conditions in (known, wanted)
        )
        stored = await self._apply(store, current, after, manager=_APART[type])
        if stored is not None:
            store.apply(stored)
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
        """Apply the status to this object and to no other one of its name; None where it is gone.

        Of a status the API server compares the resourceVersion, and of a uid in what is applied it takes no notice.
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
        told = set()
        for condition in after.get("conditions", ()):
            known = old.get(condition["type"], {})
            words = condition["reason"], condition["message"]
            changed = (known.get("status"), known.get("reason")) != (condition["status"], condition["reason"])
            warning = condition["status"] == "False" and condition["reason"] not in EXPECTED
            # How a new object begins is no news, unless something is wrong with it.
            begins = not known and (condition["type"] in _FROM_THE_START or _is_born(condition, old))
            # Where two conditions change for one reason, it is said once.
            if changed and words not in told and (warning or not begins):
                told.add(words)
                self._say(
                    current,
                    warning=warning,
                    reason=condition["reason"],
                    message=condition["message"],
                )

    def _say(self, current: ResourceModel, *, reason: str, message: str, warning: bool = False) -> None:
        """Say it in an Event, which ends after an hour and may be dropped, and in the log."""
        _log.log(logging.WARNING if warning else logging.INFO, "%s", message, extra={"reason": reason})
        self._events.record(current, reason=reason, message=message, warning=warning)


_FROM_THE_START: Final = frozenset({MANAGED, READY, REACHABLE})
"""Conditions that every object of a kind has."""
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
"""What is said when a condition goes that is there only while something is out of the ordinary."""


def _is_born(condition: dict[str, Any], old: Mapping[str, Any]) -> bool:
    """Tell whether the condition says of a control plane that had no status yet that it begins asleep."""
    return condition["type"] == HIBERNATED and READY not in old


def _ended(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the conditions that are not there any more and whose end is worth a word."""
    here = {condition["type"] for condition in after.get("conditions", ())}
    gone = [each["type"] for each in before.get("conditions", ()) if each["type"] not in here]
    # Of a version that changed there is an Event already.
    said = {"UpToDate"} if before.get("version") != after.get("version") else set()
    return [kind for kind in gone if kind in _OVER and kind not in said]


def _owners_differ(error: Conflict) -> bool:
    """Tell whether other managers own fields; otherwise the object has changed."""
    causes = error.details.get("causes") or ()
    return any(cause.get("reason") == "FieldManagerConflict" for cause in causes)


def _conditions(current: ResourceModel) -> list[Condition]:
    conditions: list[Condition] = getattr(current, "status").conditions  # noqa: B009 - see above
    return conditions


def _dump(status: ApiModel, foreign: ForeignParts = _NOTHING) -> dict[str, Any]:
    """Return what of a status is ours."""
    conditions: list[Condition] = getattr(status, "conditions")  # noqa: B009 - see above
    ours = [each for each in conditions if each.type in _OURS and each.type not in foreign.managers]
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
    return {**status, "conditions": [each for each in status["conditions"] if each["type"] not in _APART]}


def _with_remainders(status: dict[str, Any], foreign: ForeignParts) -> dict[str, Any]:
    if not foreign.remainders:
        return status
    return {**status, "conditions": [*status.get("conditions", ()), *foreign.remainders]}


def _with_contest(
    status: ControlPlaneEndpointStatus, *, of: ResourceModel, foreign: ForeignParts
) -> ControlPlaneEndpointStatus:
    """Return the status with condition Contested if other managers own conditions in it, and without it otherwise."""
    told = [
        f"field manager {foreign.managers[each.type]!r} owns condition {each.type}; the operator found {each.status}"
        f" ({each.reason}: {each.message})"
        for each in status.conditions
        if each.type in (_OURS - {CONTESTED}) & foreign.managers.keys()
    ]
    if not told:
        kept = [each for each in status.conditions if each.type != CONTESTED]
        return status.model_copy(update={"conditions": kept})
    conditions = with_condition(
        status.conditions,
        of=of,
        type=CONTESTED,
        status="True",
        reason=Reason.OWNED_BY_ANOTHER_MANAGER,
        message="; ".join(told),
    )
    return status.model_copy(update={"conditions": conditions})
