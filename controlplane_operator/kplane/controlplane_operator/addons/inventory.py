"""Inventories of the objects installed in a control plane: a ConfigMap in the tenant for each add-on.

The inventory is in the tenant because it belongs to the tenant's data: retained, adopted and moved data include it. A
user who may write inventories can make the operator delete objects with an add-on's label, see `installation`.
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
"""Label of a ConfigMap in a control plane that lists the objects of an add-on. The value is `"true"`."""
_ADDON: Final = "addon"
_OBJECTS: Final = "objects"
_PREFIX: Final = "kplane-addon-"
_MAX_NAME: Final = 253
_MAX_READ: Final = 2000
"""Maximum number of lines read from an inventory, more than kplane writes."""
_MAX_INVENTORIES: Final = 200
"""Maximum number of inventories. A class has at most 64 add-ons, and former add-ons may still be being removed."""
_MAX_OBJECTS: Final = 50_000
"""Maximum number of objects in all inventories. 64 add-ons of 500 objects have 32,000."""
_ADDON_NAME: Final = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
"""Name of a ConfigMap by RFC 1123. Names are checked because a tenant may have written any text, and conditions show
it.
"""


class Inventory:
    """Inventories of a control plane."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[str, list[ObjectId]] = {}

    async def load(self) -> None:
        """Read the inventories. Invalid inventories and lines are ignored.

        The names are listed first, and then each inventory is read by itself, so that memory holds a single unparsed
        inventory. Raises AnswerTooLarge if there are more inventories or objects than kplane ever writes.
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
            addon, entries = await self._one(item["metadata"].get("name", ""))
            if addon is None:
                continue
            self._known[addon] = entries
            objects += len(entries)
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
        """Return the names of the add-ons that have an inventory."""
        return sorted(self._known)

    def of(self, addon: str) -> list[ObjectId]:
        """Return the installed objects of an add-on, in the order of their installation."""
        return self._known.get(addon, [])

    async def note(self, addon: str, objects: Iterable[ObjectId]) -> None:
        """Add objects that are about to be created, so that a crash after the creation does not lose them."""
        existing = self.of(addon)
        keys = {item.key for item in existing}
        added = [item for item in objects if item.key not in keys]
        if added or addon not in self._known:
            await self.write(addon, [*existing, *added])

    async def write(self, addon: str, objects: list[ObjectId]) -> None:
        """Replace the objects of an inventory. Skips the write if they are equal."""
        if addon in self._known and self._known[addon] == objects:
            return
        body = {
            "metadata": {"name": _name(addon), "namespace": TENANT_NAMESPACE, "labels": {_LABEL: "true"}},
            "data": {_ADDON: addon, _OBJECTS: _written(objects)},
        }
        await self._client.apply(CONFIG_MAPS, body, field_manager=FIELD_MANAGER, force=True)
        self._known[addon] = objects

    async def drop(self, addon: str) -> None:
        """Delete the inventory of an add-on that is removed."""
        with contextlib.suppress(NotFound):
            await self._client.delete(CONFIG_MAPS, _name(addon), namespace=TENANT_NAMESPACE)
        self._known.pop(addon, None)


def _name(addon: str) -> str:
    name = f"{_PREFIX}{addon}"
    return name if len(name) <= _MAX_NAME else f"{_PREFIX}{hashlib.sha256(addon.encode()).hexdigest()}"


def _written(objects: list[ObjectId]) -> str:
    # One object per line, for people who read the ConfigMap.
    lines = (orjson.dumps([item.api_version, item.kind, item.namespace, item.name]).decode() for item in objects)
    return "\n".join(lines)


def _read(text: Any) -> list[ObjectId]:
    entries: list[ObjectId] = []
    for line in text.splitlines()[:_MAX_READ] if isinstance(text, str) else ():
        with contextlib.suppress(orjson.JSONDecodeError):
            parts = orjson.loads(line)
            if isinstance(parts, list) and len(parts) == 4 and all(isinstance(part, str) for part in parts):
                entry = ObjectId(*parts)
                if entry.readable():
                    entries.append(entry)
    return entries
