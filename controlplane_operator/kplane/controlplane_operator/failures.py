"""Reports lasting failures in the conditions of objects, if the reconciler itself does not report them.

Examples are a write that the management cluster refuses because of a quota or an admission policy, and an attempt that
exceeds its timeout. Others are an invalid object, and a bug of the operator. The published addresses and credentials
stay while they are valid, and condition Synced is False.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from pydantic import ValidationError

from kplane.api import READY
from kplane.api.conditions import SYNCED
from kplane.api.reasons import Reason
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.status.conditions import with_condition
from kplane.controlplane_operator.status.errors import ConditionError, management_refusal
from kplane.controlplane_operator.status.partial import PartialObject, validation_failure
from kplane.controlplane_operator.watch.cache import Key, Object, Store
from kplane.controlplane_operator.watch.conditions import stored_condition
from kplane.provider import Conflict, ProviderError, Result, Unreachable
from kplane.provider.errors import Expired, LeaseLost, TooManyRequests

__all__ = ["Failures", "Reconcile"]

Reconcile = Callable[[Key], Awaitable[Result | None]]

_log: Final = logging.getLogger(__name__)

_LASTS_SECONDS: Final = 3.0
"""Time in seconds before a failure is reported. Shorter failures, such as an election in etcd, are only logged."""

_OF_THE_MOMENT: Final = (Conflict, Expired, LeaseLost, TooManyRequests, Unreachable)
"""Errors that a retry cures, or with which the status cannot be written either."""


class Failures:
    """Reports the failures of one reconciler."""

    def __init__(
        self, context: OperatorContext, *, controller: str, store: Store, written: type[PartialObject]
    ) -> None:
        """Create the reporter; `store` has the reconciler's objects, and `written` reads invalid objects in part."""
        self.kind: Final = store.resource.kind
        self._context = context
        self._controller = controller
        self._store = store
        self._written = written
        self._since: dict[Key, float] = {}

    def guarded(self, reconcile: Reconcile) -> Reconcile:
        """Return a reconcile function that reports an invalid object in its conditions instead of an error."""

        async def attempt(key: Key) -> Result | None:
            try:
                result = await reconcile(key)
            except ValidationError:
                obj = self._store.get(key)
                failure = validation_failure(self._written.kind, obj) if obj is not None else None
                if failure is None:
                    raise
                await self.tell(key, failure)
                result = None
            else:
                await self._understood(key)
            self._since.pop(key, None)
            return result

        return attempt

    async def failed(self, key: Key, error: BaseException) -> None:
        """Report a failure if it lasts."""
        failure = self._lasting(key, error)
        if failure is None:
            return
        try:
            await self.tell(key, failure)
        except ProviderError as refused:
            _log.warning("failed to update the status of %s: %s", key[1], refused)

    async def over(self, key: Key) -> None:
        """Remove condition Synced after a successful reconcile."""
        obj = self._store.get(key)
        if obj is not None and _reason(obj) is not None:
            await self._drop(obj)

    async def _understood(self, key: Key) -> None:
        obj = self._store.get(key)
        if obj is not None and _reason(obj) == Reason.SPEC_INVALID:
            await self._drop(obj)

    async def _drop(self, obj: Object) -> None:
        current = self._written.of(obj)
        conditions = [condition for condition in current.conditions if condition.type != SYNCED]
        await self._write(current, conditions=conditions, **current.own(obj.get("spec") or {}))

    def _lasting(self, key: Key, error: BaseException) -> ConditionError | None:
        """Return the failure to report; None if it may pass by itself."""
        now = time.monotonic()
        since = self._since.setdefault(key, now)
        if isinstance(error, TimeoutError):
            cause = str(error) or "an answer took too long"
            return ConditionError(Reason.TIMED_OUT, f"one attempt timed out: {cause}; the operator retries")
        if isinstance(error, _OF_THE_MOMENT) or now - since < _LASTS_SECONDS:
            return None
        if isinstance(error, ProviderError):
            return management_refusal(error)
        # The message of an unexpected error could reveal anything, so only its type is reported.
        return ConditionError(
            Reason.INTERNAL_ERROR,
            f"the operator failed with {type(error).__name__}; report it, with the operator's log",
        )

    async def tell(self, key: Key, failure: ConditionError) -> None:
        """Report the failure in Synced if the published addresses and credentials are valid, and in Ready otherwise."""
        self._context.metrics.condition_failed(self._controller, reason=failure.reason)
        obj = self._store.get(key)
        if obj is None:
            return
        current = self._written.of(obj)
        update = current.own(obj.get("spec") or {})
        good = current.deleting or (current.published and current.holds(self._context.stores))
        if not good:
            update |= {"observed_generation": current.metadata.generation, **current.withdrawn(failure.reason)}
        update["conditions"] = with_condition(
            current.conditions,
            of=current,
            type=SYNCED if good else READY,
            status="False",
            reason=failure.reason,
            message=failure.message,
        )
        await self._write(current, **update)

    async def _write(self, current: PartialObject, **update: Any) -> None:
        status = current.status.model_copy(update=update)
        await self._context.status.write(self._store, current, status=status)


def _reason(obj: Object) -> str | None:
    """Return the reason of condition Synced; None if the condition is missing."""
    return stored_condition(obj, SYNCED).get("reason")
