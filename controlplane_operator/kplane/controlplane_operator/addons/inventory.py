"""What was installed in a control plane: one ConfigMap in the tenant for each add-on.

It is in the tenant because it belongs to the tenant's data: retained, adopted and moved data bring it along. A user who
may write it can have the operator delete objects with an add-on's label, see `installation`.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable
from typing import Any, Final

import orjson

from kplane.api.names import GROUP
from kplane.controlplane_operator.addons.manifest import ObjectId
from kplane.controlplane_operator.tenant.bootstrap import TENANT_NAMESPACE
from kplane.provider import Client, NotFound
from kplane.provider.client.resources import CONFIG_MAPS
from kplane.provider.errors import AnswerTooLarge

__all__ = ["FIELD_MANAGER", "Inventory"]

FIELD_MANAGER: Final = "kplane-addons"

_LABEL: Final = f"{GROUP}/addon-inventory"
"""`"true"` on a ConfigMap in a control plane: it lists the objects that an add-on installed."""
_ADDON: Final = "addon"
_OBJECTS: Final = "objects"
_PREFIX: Final = "kplane-addon-"
_MAX_NAME: Final = 253
_MAX_READ: Final = 2000
"""More objects than kplane writes into one."""
_MAX_INVENTORIES: Final = 200
"""A class has 64 add-ons at most, and those that were taken off it may still be on their way out."""
_MAX_OBJECTS: Final = 50_000
"""In all of them: 64 add-ons of 500 objects are 32,000."""
_ADDON_NAME: Final = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
"""A ConfigMap's name, as RFC 1123 has it; a tenant may have written anything, and it is told in conditions."""


class Inventory:
    """The inventories of one control plane."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[str, list[ObjectId]] = {}

    async def load(self) -> None:
        """Read them; what cannot be read counts as nothing.

        Names first, then one inventory after the other, so that no more than one is in memory as it came. Raises
        AnswerTooLarge where there are more of them, or of objects in them, than we ever write.
        """
        listed = await self._client.list(
            CONFIG_MAPS,
            namespace=TENANT_NAMESPACE,
            label_selector=f"{_LABEL}=true",
            metadata_only=True,
            max_items=_MAX_INVENTORIES,
        )
        objects = 0
        for item in listed.items:
            addon, found = await self._one(item["metadata"].get("name", ""))
            if addon is None:
                continue
            self._known[addon] = found
            objects += len(found)
            if objects > _MAX_OBJECTS:
                raise AnswerTooLarge(
                    f"the ConfigMaps with label {_LABEL}=true in namespace {TENANT_NAMESPACE} of the control plane name"
                    f" more than {_MAX_OBJECTS} objects; delete those that kplane did not make"
                )

    async def _one(self, name: str) -> tuple[str | None, list[ObjectId]]:
        if not name.startswith(_PREFIX):
            return None, []
        try:
            data = (await self._client.get(CONFIG_MAPS, name, namespace=TENANT_NAMESPACE)).get("data")
        except NotFound:
            return None, []
        data = data if isinstance(data, dict) else {}
        addon = data.get(_ADDON)
        if not isinstance(addon, str) or not _ADDON_NAME.fullmatch(addon) or name != _name(addon):
            return None, []
        return addon, _read(data.get(_OBJECTS))

    def addons(self) -> list[str]:
        """Return the add-ons that have one."""
        return sorted(self._known)

    def of(self, addon: str) -> list[ObjectId]:
        """Return what was installed for an add-on, in that order."""
        return self._known.get(addon, [])

    async def note(self, addon: str, objects: Iterable[ObjectId]) -> None:
        """Add objects that are about to be made: whatever happens then, they are not forgotten."""
        known = self.of(addon)
        keys = {each.key for each in known}
        added = [each for each in objects if each.key not in keys]
        if added or addon not in self._known:
            await self.write(addon, [*known, *added])

    async def write(self, addon: str, objects: list[ObjectId]) -> None:
        """Have exactly these be what is installed; nothing is written where that is known already."""
        if addon in self._known and self._known[addon] == objects:
            return
        body = {
            "metadata": {"name": _name(addon), "namespace": TENANT_NAMESPACE, "labels": {_LABEL: "true"}},
            "data": {_ADDON: addon, _OBJECTS: _written(objects)},
        }
        await self._client.apply(CONFIG_MAPS, body, field_manager=FIELD_MANAGER, force=True)
        self._known[addon] = objects

    async def drop(self, addon: str) -> None:
        """The add-on is not installed any more."""
        with contextlib.suppress(NotFound):
            await self._client.delete(CONFIG_MAPS, _name(addon), namespace=TENANT_NAMESPACE)
        self._known.pop(addon, None)


def _name(addon: str) -> str:
    name = f"{_PREFIX}{addon}"
    return name if len(name) <= _MAX_NAME else f"{_PREFIX}{hashlib.sha256(addon.encode()).hexdigest()}"


def _written(objects: list[ObjectId]) -> str:
    # One object a line, for people who look at it.
    lines = (orjson.dumps([each.api_version, each.kind, each.namespace, each.name]).decode() for each in objects)
    return "\n".join(lines)


def _read(text: Any) -> list[ObjectId]:
    found: list[ObjectId] = []
    for line in text.splitlines()[:_MAX_READ] if isinstance(text, str) else ():
        with contextlib.suppress(orjson.JSONDecodeError):
            parts = orjson.loads(line)
            if isinstance(parts, list) and len(parts) == 4 and all(isinstance(part, str) for part in parts):
                entry = ObjectId(*parts)
                if entry.readable():
                    found.append(entry)
    return found
