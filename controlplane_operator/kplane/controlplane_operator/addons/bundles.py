"""Bundles in the management cluster: ConfigMaps in the namespace of the operator, with a label for bundles."""

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
    """Bundles by the names of their ConfigMaps. Each version is parsed once."""

    def __init__(self, store: Store, *, namespace: str) -> None:
        self._store = store
        self._namespace = namespace
        self._read: dict[str, _Read] = {}
        self._reading = asyncio.Lock()

    def version(self, addon: str) -> str:
        """Return a text that changes whenever the bundle may have changed; empty if there is no bundle."""
        config_map = self._store.get((self._namespace, addon))
        return (
            f"{config_map['metadata']['uid']}/{config_map['metadata']['resourceVersion']}"
            if config_map is not None
            else ""
        )

    async def find(self, addon: str) -> Bundle:
        """Return a bundle.

        Raises ConditionError (AddonUnknown, BundleInvalid); only a change of the bundle can resolve the error.
        """
        async with self._reading:
            config_map = self._store.get((self._namespace, addon))
            where = f"ConfigMap {self._namespace}/{addon}"
            if config_map is None:
                self._read.pop(addon, None)
                raise ConditionError(
                    Reason.ADDON_UNKNOWN,
                    f"there is no {where} with label {BUNDLES}; create it, or take the add-on off the class",
                )
            version = self.version(addon)
            read = self._read.get(addon)
            if read is None or read.version != version:
                # In a thread, because a megabyte of YAML takes a second, which would delay health checks and watches.
                read = await asyncio.to_thread(_parse, config_map.get("data") or {}, version)
                self._read[addon] = read
        if read.bundle is None:
            raise ConditionError(Reason.BUNDLE_INVALID, f"{where} cannot be used: {read.problem}")
        return read.bundle

    async def problems(self, addons: list[str]) -> list[ConditionError]:
        """Return the errors of these add-ons, before any control plane tries to install them."""
        failures = []
        for addon in addons:
            if addon in BUILT_IN:
                if self._store.get((self._namespace, addon)) is not None:
                    message = (
                        f"ConfigMap {self._namespace}/{addon} is not used: kplane has an add-on of its own of that name"
                    )
                    failures.append(ConditionError(Reason.BUNDLE_INVALID, f"{message}; rename yours"))
                continue
            try:
                await self.find(addon)
            except ConditionError as failure:
                failures.append(failure)
        return failures


def _parse(data: dict[str, str], version: str) -> _Read:
    try:
        return _Read(version, read_bundle(data), "")
    except BundleInvalid as error:
        return _Read(version, None, str(error))
