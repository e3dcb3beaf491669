"""Secrets with a label: a single watch of their metadata, and reads on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, NoReturn

from kplane.provider.cache.entry import Key
from kplane.provider.cache.event import Event
from kplane.provider.cache.informer import Informer
from kplane.provider.client.client import Client
from kplane.provider.client.resources import SECRETS
from kplane.provider.errors import KubeconfigError, NotFound
from kplane.provider.providers._support.secret import values_of

__all__ = ["LabelledSecrets"]

_MAX_CONCURRENT_READS: Final = 16
_RELIST_SECONDS: Final = 600.0


class LabelledSecrets:
    """The Secrets that match `label_selector`, in `namespace` or all namespaces.

    A single connection watches their metadata; contents are read on demand, a few at once. The identity of `client`
    needs `list`, `watch` and `get` on Secrets.
    """

    def __init__(self, client: Client, *, label_selector: str, namespace: str | None = None) -> None:
        self._client = client
        self._label_selector = label_selector
        self._metadata = Informer(
            client,
            SECRETS,
            namespace=namespace,
            label_selector=label_selector,
            metadata_only=True,
            relist_seconds=_RELIST_SECONDS,
        )
        self._values: dict[Key, tuple[str, Mapping[str, bytes]]] = {}
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT_READS)

    @property
    def synced(self) -> asyncio.Event:
        """Event that is set after the initial list of Secrets."""
        return self._metadata.synced

    async def run(self, changed: Callable[[str, str], None]) -> NoReturn:
        """Follow until cancelled; calls `changed` with namespace and name of each new, changed or deleted Secret."""

        def handle(event: Event) -> None:
            if event.kind == "DELETED":
                self._values.pop(event.entry.key, None)
            changed(*event.entry.key)

        await self._metadata.run(handle)

    async def values(self, namespace: str, name: str) -> Mapping[str, bytes]:
        """Return the decoded values of a Secret; reads it only if it has changed.

        Raises KubeconfigError if no Secret of this name has the label, or if its data is no base64. Raises other
        ProviderErrors if the read fails.
        """
        if not self._metadata.scope.covers(namespace=namespace):
            raise KubeconfigError(f"Secret {namespace}/{name} is outside of the namespace that is followed")
        key = namespace, name
        entry = self._metadata.entry(name, namespace=namespace)
        if entry is None:
            raise KubeconfigError(f"Secret {namespace}/{name} is missing, or has no label {self._label_selector!r}")
        version, values = self._values.get(key, ("", {}))
        if version != entry.resource_version:
            async with self._slots:
                try:
                    secret = await self._client.get(SECRETS, name, namespace=namespace)
                except NotFound as error:
                    raise KubeconfigError(f"Secret {namespace}/{name} is missing") from error
            try:
                values = values_of(secret)
            except KubeconfigError as error:
                raise KubeconfigError(f"Secret {namespace}/{name}: {error}") from error
            if self._metadata.entry(name, namespace=namespace) is not None:
                self._values[key] = str(secret["metadata"].get("resourceVersion")), values
        return values
