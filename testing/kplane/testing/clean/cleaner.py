"""Resets the keys of a running API server in etcd, and waits until the API server has followed."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

from kplane.data import Client, Template, reset
from kplane.embedded.errors import NotReadyInTime
from kplane.testing.clean.api import Api, Discovery
from kplane.testing.clean.markers import MARKERS, PREFIX, Marker

__all__ = ["Cleaner"]

_POLL_SECONDS: Final = 0.005
_QUIET_SECONDS: Final = 0.7
_CLEAN_SECONDS: Final = 60.0
_READY_SECONDS: Final = 120.0

_WRITTEN_AT_START: Final = frozenset(
    {
        b"namespaces/default",
        b"namespaces/kube-node-lease",
        b"namespaces/kube-public",
        b"namespaces/kube-system",
        b"clusterrolebindings/cluster-admin",
        b"configmaps/kube-system/extension-apiserver-authentication",
        b"configmaps/kube-system/kube-apiserver-legacy-service-account-token-tracking",
        b"services/specs/default/kubernetes",
    }
)
"""Keys that different parts of an API server write at its first start."""

_NAMES: Final[Mapping[str, str]] = {
    "minions": "nodes",
    "controllers": "replicationcontrollers",
    "ingress": "ingresses",
    "services/specs": "services",
    "services/endpoints": "endpoints",
}
"""Names of resources in the API, if etcd has other names."""

_CRDS: Final = "apiextensions.k8s.io/customresourcedefinitions/"
_API_SERVICES: Final = "apiregistration.k8s.io/apiservices/"


class Cleaner:
    """Resets an API server: call `prepare` once, then `clean` any number of times."""

    def __init__(self, api: Api, *, etcd: Client, prefix: str) -> None:
        """Take the API server, its etcd, and the prefix of its keys there."""
        self._api = api
        self._etcd = etcd
        self._prefix = prefix
        self._template: Template | None = None
        self._announced: Discovery = {}
        self._paths: Mapping[str, str] = {}
        self._numbers = itertools.count()

    async def prepare(self) -> int:
        """Record the keys as the clean state when the API server has stopped writing, and return their number.

        Raises `NotReadyInTime`, and DataError of kplane.data.
        """
        deadline = time.monotonic() + _READY_SECONDS
        template, since = await Template.read(self._etcd, self._prefix), time.monotonic()
        while time.monotonic() - since < _QUIET_SECONDS or not template.values.keys() >= _WRITTEN_AT_START:
            await asyncio.sleep(0.05)
            present = await Template.read(self._etcd, self._prefix)
            if present.values != template.values:
                template, since = present, time.monotonic()
            if time.monotonic() > deadline:
                missing = b", ".join(sorted(_WRITTEN_AT_START - template.values.keys())).decode()
                raise NotReadyInTime(
                    f"failed to prepare the API server: its first start continues; missing: {missing or 'none'}"
                )
        self._template = template
        self._announced, self._paths = await self._api.discovery()
        return len(template.values)

    async def clean(self) -> Mapping[str, float]:
        """Reset the keys, and wait until the API server shows the reset. Returns the number of changes, and seconds.

        Raises `NotReadyInTime` if the reset is not done in 60 s, and DataError of kplane.data.
        """
        if self._template is None:
            raise NotReadyInTime("failed to clean the API server: it was not prepared; call prepare first")
        began, changes, in_etcd = time.monotonic(), 0, 0.0
        waiting = "its keys"
        try:
            async with asyncio.timeout(_CLEAN_SECONDS):
                while True:
                    started = time.monotonic()
                    changed = await reset(self._etcd, self._prefix, self._template)
                    in_etcd += time.monotonic() - started
                    keys = [key.decode() for key in (*changed.deleted, *changed.put)]
                    if not keys:
                        break
                    changes += len(keys)
                    waiting = ", ".join(sorted(keys)[:5])
                    await self._follow(keys, revision=changed.revision)
        except TimeoutError:
            raise NotReadyInTime(
                f"failed to clean the API server: not done after {_CLEAN_SECONDS:.0f} s; last reset: {waiting}"
            ) from None
        return {"changes": changes, "etcd_seconds": in_etcd, "seconds": time.monotonic() - began}

    async def _follow(self, keys: Collection[str], *, revision: int) -> None:
        """Wait until the API server has seen the changes of these keys."""
        await asyncio.gather(*(self._fresh(path, revision=revision) for path in self._lists(keys)))
        # Objects of markers have no effect, so they need no marker of their own.
        foreign = [key for key in keys if PREFIX not in key]
        kinds = {key.partition("/")[0] for key in foreign}
        waits = [self._marked(marker) for marker in MARKERS if marker.kinds & kinds]
        waits += [self._namespace(key.split("/")[1]) for key in foreign if key.startswith("namespaces/")]
        if any(key.startswith((_CRDS, _API_SERVICES)) for key in foreign):
            waits.append(self._served())
        await asyncio.gather(*waits)

    def _lists(self, keys: Collection[str]) -> set[str]:
        """Return the paths of the lists with these keys; all paths if the kind of a key is unknown."""
        paths = set[str]()
        for key in keys:
            first, second, *_ = [*key.split("/"), ""]
            name = _NAMES.get(f"{first}/{second}") or _NAMES.get(first, first)
            path = self._paths.get(f"{first}/{second}") or self._paths.get(name)
            if path is not None:
                paths.add(path)
            elif "." not in first and first != "ranges":
                return set(self._paths.values())
        return paths

    async def _fresh(self, path: str, *, revision: int) -> None:
        async def fresh() -> bool:
            return await self._api.revision(path) >= revision

        await _until(fresh)

    async def _served(self) -> None:
        """Wait until the discovery is the same as at first.

        Does not wait for the OpenAPI documents, which the API server renews about once a second.
        """

        async def announced() -> bool:
            return (await self._api.discovery())[0] == self._announced

        await _until(announced)

    async def _namespace(self, name: str) -> None:
        """Wait until admission accepts objects in a namespace, or refuses them because it does not exist."""
        exists = self._template is not None and f"namespaces/{name}".encode() in self._template.values
        path = f"/api/v1/namespaces/{name}/configmaps?dryRun=All"

        async def settled() -> bool:
            status, _ = await self._api.create(path, {"metadata": {"generateName": PREFIX}})
            return status == (201 if exists else 404)

        await _until(settled)

    async def _marked(self, marker: Marker) -> None:
        name = f"{PREFIX}{next(self._numbers)}"
        for path, body in marker.objects(name):
            status, answer = await self._api.create(path, body)
            if status != 201:
                raise NotReadyInTime(f"failed to create a marker at {path}: {answer}")
        await _until(lambda: marker.seen(self._api, name))


async def _until(probe: Callable[[], Awaitable[bool]]) -> None:
    while True:
        if await probe():
            return
        await asyncio.sleep(_POLL_SECONDS)
