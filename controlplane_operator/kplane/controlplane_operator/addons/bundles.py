"""The bundles that the management cluster has: ConfigMaps beside the operator, with a label that says what they are."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from kplane.api.reasons import Reason
from kplane.controlplane_operator.addons.builtin import BUILT_IN
from kplane.controlplane_operator.addons.manifest import Bundle, read_bundle
from kplane.controlplane_operator.errors import BundleInvalid
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.watch.cache import Store
from kplane.controlplane_operator.watch.stores import BUNDLES

__all__ = ["Bundles"]


@dataclass(frozen=True, slots=True)
class _Read:
    version: str
    bundle: Bundle | None
    problem: str


class Bundles:
    """Finds bundles by the names of their ConfigMaps; each version is parsed once."""

    def __init__(self, store: Store, *, namespace: str) -> None:
        self._store = store
        self._namespace = namespace
        self._read: dict[str, _Read] = {}
        self._reading = asyncio.Lock()

    def version(self, addon: str) -> str:
        """Return what changes whenever the bundle may have; empty where there is none."""
        found = self._store.get((self._namespace, addon))
        return f"{found['metadata']['uid']}/{found['metadata']['resourceVersion']}" if found is not None else ""

    async def find(self, addon: str) -> Bundle:
        """Return a bundle. Raises ConditionError (AddonUnknown, BundleInvalid), which nothing but a change of it can
        end."""
        async with self._reading:
            found = self._store.get((self._namespace, addon))
            where = f"ConfigMap {self._namespace}/{addon}"
            if found is None:
                self._read.pop(addon, None)
                raise ConditionError(
                    Reason.ADDON_UNKNOWN,
                    f"there is no {where} with label {BUNDLES}; create it, or take the add-on off the class",
                )
            version = self.version(addon)
            known = self._read.get(addon)
            if known is None or known.version != version:
                # In a thread: a megabyte of YAML takes a second, which health and watches do not wait for.
                known = await asyncio.to_thread(_parse, found.get("data") or {}, version)
                self._read[addon] = known
        if known.bundle is None:
            raise ConditionError(Reason.BUNDLE_INVALID, f"{where} cannot be used: {known.problem}")
        return known.bundle

    async def problems(self, addons: list[str]) -> list[ConditionError]:
        """Say what is wrong with the add-ons of these names, before any control plane tries them."""
        found = []
        for addon in addons:
            if addon in BUILT_IN:
                if self._store.get((self._namespace, addon)) is not None:
                    told = (
                        f"ConfigMap {self._namespace}/{addon} is not used: kplane has an add-on of its own of that name"
                    )
                    found.append(ConditionError(Reason.BUNDLE_INVALID, f"{told}; rename yours"))
                continue
            try:
                await self.find(addon)
            except ConditionError as failure:
                found.append(failure)
        return found


def _parse(data: dict[str, str], version: str) -> _Read:
    try:
        return _Read(version, read_bundle(data), "")
    except BundleInvalid as error:
        return _Read(version, None, str(error))
