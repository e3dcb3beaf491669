"""Reconciles ControlPlaneClass: says whether the class is valid, and what of it cannot be acted on."""

from __future__ import annotations

from typing import Final

from api import ControlPlaneClass
from controlplane_operator.cache import Key
from controlplane_operator.management import Management
from controlplane_operator.status import with_condition, with_supported
from provider import Result
from provider.logs import log_fields

__all__ = ["ControlPlaneClassReconciler", "unsupported_addons"]

_KNOWN_ADDONS: Final = frozenset({"starter"})
"""`starter` is the namespace for kplane's own objects, which every control plane has anyway."""


def unsupported_addons(chosen: ControlPlaneClass) -> list[str]:
    """Say, in sentences, which add-ons of the class are not installed."""
    missing = [addon for addon in chosen.spec.addons if addon not in _KNOWN_ADDONS]
    if not missing:
        return []
    return [
        f"add-ons {', '.join(missing)} of ControlPlaneClass {chosen.name} are not installed: no such bundle is known"
    ]


class ControlPlaneClassReconciler:
    """Keeps the status of classes."""

    def __init__(self, management: Management) -> None:
        self._management = management

    async def reconcile(self, key: Key) -> Result | None:
        """Bring one class's status up to date."""
        store = self._management.stores.classes
        obj = store.get(key)
        if obj is None:
            return None
        with log_fields(object=f"ControlPlaneClass/{key[1]}"):
            current = ControlPlaneClass.model_validate(obj)
            conditions = with_condition(
                current.status.conditions,
                of=current,
                status="True",
                reason="Valid",
                message="control planes can use this class",
            )
            status = current.status.model_copy(
                update={
                    "observed_generation": current.metadata.generation,
                    "conditions": with_supported(conditions, of=current, missing=unsupported_addons(current)),
                }
            )
            await self._management.status.write(store, current, status=status)
        return None
