"""Writes the status of our kinds: by server-side apply, as one manager, and only where it changed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from api import Condition, ConditionStatus, ResourceModel, set_condition
from api.resource import ApiModel
from controlplane_operator.cache import Store
from controlplane_operator.events import Events
from provider import Client, Conflict, NotFound

__all__ = ["FIELD_MANAGER", "StatusWriter", "with_condition", "with_supported"]

FIELD_MANAGER: Final = "kplane-status"


class StatusWriter:
    """Writes statuses of one management cluster and records an Event for each change of a condition."""

    def __init__(self, client: Client, *, events: Events) -> None:
        self._client = client
        self._events = events

    async def write(
        self,
        store: Store,
        current: ResourceModel,
        *,
        status: ApiModel,
        yield_fields: Iterable[str] = (),
    ) -> None:
        """Make `status` the whole status of the object, unless it is already.

        A published value stays only if `status` carries it: start from the object's own one. Fields in `yield_fields`
        are left to whoever else wrote them. The answer goes into the store at once, so that the next look at it is not
        behind. An object that is gone, or was replaced by one of the same name, is left alone.
        """
        before = _dump(getattr(current, "status"))  # noqa: B009 - each kind has one, of its own type
        after = _dump(status)
        if before == after:
            return
        try:
            stored = await self._apply(store, current, after, yield_fields=tuple(yield_fields))
        except NotFound:
            return
        store.apply(stored)
        self._tell(current, before, after)

    async def _apply(
        self, store: Store, current: ResourceModel, status: dict[str, Any], *, yield_fields: tuple[str, ...]
    ) -> dict[str, Any]:
        # The uid makes the API server refuse where the object was deleted and made anew meanwhile.
        metadata = {"name": current.name, "uid": current.metadata.uid}
        try:
            return await self._client.apply(
                store.resource,
                {"metadata": metadata, "status": status},
                subresource="status",
                field_manager=FIELD_MANAGER,
                force=not yield_fields,
            )
        except Conflict:
            if not yield_fields:
                raise
        kept = {name: value for name, value in status.items() if name not in yield_fields}
        return await self._client.apply(
            store.resource, {"metadata": metadata, "status": kept}, subresource="status", field_manager=FIELD_MANAGER
        )

    def _tell(self, current: ResourceModel, before: dict[str, Any], after: dict[str, Any]) -> None:
        old = {condition["type"]: condition for condition in before.get("conditions", ())}
        for condition in after.get("conditions", ()):
            known = old.get(condition["type"], {})
            if (known.get("status"), known.get("reason")) != (condition["status"], condition["reason"]):
                self._events.record(
                    current,
                    warning=condition["status"] == "False" and condition["reason"] not in _EXPECTED,
                    reason=condition["reason"],
                    message=condition["message"],
                )


_EXPECTED: Final = frozenset({"Provisioning", "Bootstrapping", "Deleting", "EndpointPending", "KubeconfigPending"})


def with_condition(
    conditions: Iterable[Condition],
    *,
    of: ResourceModel,
    type: str = "Ready",  # noqa: A002 - upstream's word
    status: ConditionStatus,
    reason: str,
    message: str,
) -> list[Condition]:
    """Return the conditions with one set as of now, for the generation of the object."""
    return set_condition(
        conditions,
        type=type,
        status=status,
        reason=reason,
        message=message,
        observed_generation=of.metadata.generation,
        now=datetime.now(UTC),
    )


def with_supported(conditions: Iterable[Condition], *, of: ResourceModel, missing: Iterable[str]) -> list[Condition]:
    """Return the conditions with Supported=False where sentences say what is not acted on, and without it otherwise."""
    told = "; ".join(missing)
    if told:
        return with_condition(conditions, of=of, type="Supported", status="False", reason="NotSupported", message=told)
    return [condition for condition in conditions if condition.type != "Supported"]


def _dump(status: ApiModel) -> dict[str, Any]:
    return {
        name: value
        for name, value in status.model_dump(mode="json", by_alias=True, exclude_none=True).items()
        if value not in ([], {})
    }
