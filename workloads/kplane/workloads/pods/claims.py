"""The PersistentVolumeClaims of components: their protection from deletion, and the mark on their data."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Final

from kplane.api.names import DATA_MARK_ANNOTATION, PROTECTION_FINALIZER
from kplane.provider import Client, NotFound
from kplane.provider.client.resources import PERSISTENT_VOLUME_CLAIMS
from kplane.workloads.errors import RuntimeFailure
from kplane.workloads.pods.calls import failing, get_own
from kplane.workloads.pods.objects import Object, claim_name
from kplane.workloads.pods.settings import Placement

__all__ = ["Claims"]

_VERIFIED_SECONDS: Final = 600.0


class Claims:
    """Reads and changes claims. `name` is the component's name. A refusal of the cluster raises RuntimeFailure."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._protected: dict[str, float] = {}
        """Names of components whose claim is protected, with the time until which this is assumed without a check."""

    async def protect(self, name: str, *, placement: Placement) -> None:
        """Protect the claim, which the StatefulSet controller creates, from the deletion of its namespace."""
        if time.monotonic() < self._protected.get(name, 0.0):
            return
        with _failing(name, placement):
            claim = await self._get(name, placement)
            # Kubernetes refuses further finalizers on an object that is being deleted.
            if claim is None or "deletionTimestamp" in claim["metadata"]:
                return
            finalizers = claim["metadata"].get("finalizers", ())
            if PROTECTION_FINALIZER not in finalizers:
                await self._patch_finalizers(claim, [*finalizers, PROTECTION_FINALIZER])
        self._protected[name] = time.monotonic() + _VERIFIED_SECONDS

    async def unprotect(self, name: str, *, placement: Placement) -> None:
        """Remove the protection of the claim, so that others can delete it."""
        self._protected.pop(name, None)
        with _failing(name, placement):
            claim = await self._get(name, placement)
            finalizers = claim["metadata"].get("finalizers", ()) if claim is not None else ()
            if claim is not None and PROTECTION_FINALIZER in finalizers:
                await self._patch_finalizers(
                    claim, [finalizer for finalizer in finalizers if finalizer != PROTECTION_FINALIZER]
                )

    async def describe(self, name: str, *, placement: Placement) -> str | None:
        """Return the name of the claim for people; None if the claim does not exist."""
        with _failing(name, placement):
            claim = await self._get(name, placement)
        if claim is None:
            self._protected.pop(name, None)
        return f"PersistentVolumeClaim {placement.namespace}/{claim_name(placement)}" if claim is not None else None

    async def exists(self, name: str, *, placement: Placement) -> bool:
        """Return whether the claim exists."""
        with _failing(name, placement):
            return await self._get(name, placement) is not None

    async def mark(self, name: str, *, placement: Placement) -> str | None:
        """Return the mark of the data; None if the claim does not exist, or has no mark."""
        with _failing(name, placement):
            claim = await self._get(name, placement)
        value: str | None = (claim["metadata"].get("annotations") or {}).get(DATA_MARK_ANNOTATION) if claim else None
        return value

    async def set_mark(self, name: str, mark: str, *, placement: Placement) -> None:
        """Mark the data. Raises RuntimeFailure if the claim does not exist."""
        with _failing(name, placement):
            claim = await self._get(name, placement)
            if claim is None:
                raise RuntimeFailure(f"Component {name}: it has no volume in namespace {placement.namespace} yet.")
            await self._patch(claim, {"annotations": {DATA_MARK_ANNOTATION: mark}})

    async def _get(self, name: str, placement: Placement) -> Object | None:
        claim = claim_name(placement)
        return await get_own(self._client, PERSISTENT_VOLUME_CLAIMS, claim, namespace=placement.namespace, of=name)

    async def _patch_finalizers(self, claim: Object, finalizers: list[str]) -> None:
        with contextlib.suppress(NotFound):
            await self._patch(claim, {"finalizers": finalizers})

    async def _patch(self, claim: Object, changed: dict[str, Any]) -> None:
        metadata = claim["metadata"]
        body = {"metadata": {**changed, "resourceVersion": metadata["resourceVersion"]}}
        await self._client.patch(PERSISTENT_VOLUME_CLAIMS, metadata["name"], body, namespace=metadata["namespace"])


def _failing(name: str, placement: Placement) -> contextlib.AbstractContextManager[None]:
    return failing(f"Component {name}: its volume in namespace {placement.namespace}")
