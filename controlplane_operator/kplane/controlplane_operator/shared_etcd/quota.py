"""Storage usage in the status of control planes, and the condition of their quota."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kplane.api import Condition, ControlPlane, StorageStatus
from kplane.api.conditions import STORAGE_SUFFICIENT
from kplane.api.reasons import Reason
from kplane.controlplane_operator.status.conditions import with_condition
from kplane.data import Usage

__all__ = ["recorded", "with_storage"]

_NEAR: Final = 0.8
_SHARE: Final = 0.1
_LEAST_BYTES: Final = 1 << 20
_LEAST_KEYS: Final = 100
"""Minimum number of keys for a recorded change.

Changes below these minimums, or below a tenth, are recorded with the next larger change.
"""


def recorded(known: StorageStatus | None, *, usage: Usage | None, quota_bytes: int | None) -> StorageStatus | None:
    """Return the storage status: the recorded one, or that of the measurement if the two differ enough."""
    if known is not None and known.quota_bytes != quota_bytes:
        known = known.model_copy(update={"quota_bytes": quota_bytes})
    if usage is None:
        return known
    measured = StorageStatus(keys=usage.keys, bytes=usage.bytes, quota_bytes=quota_bytes)
    if known is None or _reason(known) != _reason(measured):
        return measured
    moved = _moved(known.bytes, measured.bytes, least=_LEAST_BYTES) or _moved(
        known.keys, measured.keys, least=_LEAST_KEYS
    )
    return measured if moved else known


def with_storage(
    conditions: Iterable[Condition], *, of: ControlPlane, storage: StorageStatus | None
) -> list[Condition]:
    """Return the conditions with StorageSufficient=False if 80 % of the quota are used, and otherwise without it."""
    reason = _reason(storage) if storage is not None else None
    if reason is None:
        return [condition for condition in conditions if condition.type != STORAGE_SUFFICIENT]
    class_ref = of.spec.class_ref
    share = "80 % or more" if reason is Reason.NEAR_STORAGE_QUOTA else "all"
    message = (
        f"keys and values in the shared etcd fill {share} of the storage quota, as status.storage says; delete objects"
        f" of the control plane, or raise spec.virtual.storage.quota of class {class_ref.name if class_ref else '-'}"
    )
    return with_condition(conditions, of=of, type=STORAGE_SUFFICIENT, status="False", reason=reason, message=message)


def _reason(storage: StorageStatus) -> Reason | None:
    if storage.quota_bytes is None or storage.bytes < _NEAR * storage.quota_bytes:
        return None
    return Reason.STORAGE_QUOTA_REACHED if storage.is_full else Reason.NEAR_STORAGE_QUOTA


def _moved(known: int, found: int, *, least: int) -> bool:
    return abs(found - known) >= max(least, _SHARE * known)
