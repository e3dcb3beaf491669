"""Follows the Secrets of single namespaces, each by a watch of its own that begins and ends with its namespace."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, NoReturn

from kplane.api.names import (
    ALLOW_ENDPOINT_LABEL,
    ALLOW_REGISTRATION_LABEL,
    CONTROL_PLANE_LABEL,
    controllers_secret_name,
    kubeconfig_secret_name,
    management_namespace,
)
from kplane.controlplane_operator.watch.backoff import jittered
from kplane.controlplane_operator.watch.cache import Change, Key, Object, Store, key_of
from kplane.controlplane_operator.watch.stores import Stores
from kplane.provider import Client, Informer
from kplane.provider.aio.backoff import Backoff
from kplane.provider.aio.cancellation import end_tasks
from kplane.provider.cache.feed import Streaming
from kplane.provider.client.resources import SECRETS

__all__ = [
    "FOR_ENDPOINTS",
    "FOR_REGISTRATIONS",
    "OWN",
    "SecretWatches",
    "Watched",
    "is_managed_namespace",
    "listen",
    "wanted",
]

_log: Final = logging.getLogger(__name__)

_RELIST_SECONDS: Final = 600.0
_WATCH_SECONDS: Final = 300.0
_USERS_WATCH_SECONDS: Final = 60.0
"""In users' namespaces, where a right may be revoked: an API server asks when a watch begins, and not later."""
_RETRY_SECONDS: Final = 15.0
_COMPARE_SECONDS: Final = 60.0

OWN: Final = CONTROL_PLANE_LABEL
"""The label of Secrets that the operator writes."""
FOR_REGISTRATIONS: Final = f"{ALLOW_REGISTRATION_LABEL}=true"
FOR_ENDPOINTS: Final = f"{ALLOW_ENDPOINT_LABEL}=true"


class Watched(NamedTuple):
    """The Secrets of a namespace that have a label."""

    namespace: str
    label: str


def is_managed_namespace(name: str) -> bool:
    """Tell whether a name is that of a management namespace."""
    return name.startswith(("kplane-cp-", "kplane-cpx-"))


def wanted(stores: Stores, *, installed: Iterable[str], bound: Iterable[str]) -> set[Watched]:
    """Return what is to be followed: the namespaces of the installation, those of control planes, and those of users.

    `installed` are the operator's own and the gateway's. `bound` are the management namespaces whose Secrets the
    operator may read. One without a control plane, which keeps retained data, needs no watch. Users' namespaces are
    those that endpoints and registrations name.
    """
    present = {obj["metadata"]["name"] for obj in stores.namespaces}.intersection(bound)
    managed = {management_namespace(obj["metadata"]["name"]) for obj in stores.control_planes} & present
    found = {Watched(name, OWN) for name in (*installed, *managed)}
    for obj in (*stores.endpoints, *stores.registrations):
        found |= _named_by(obj)
    return found


def _named_by(obj: Object | None) -> set[Watched]:
    """Return where an endpoint or a registration names a Secret that kplane did not make for its control plane."""
    spec = (obj or {}).get("spec") or {}
    found = set()
    for field, label in (
        ("credentialsSecretRef", FOR_ENDPOINTS),
        ("kubeconfigSecretRef", FOR_REGISTRATIONS),
    ):
        secret = spec.get(field) or {}
        namespace, name = secret.get("namespace"), secret.get("name")
        served = (spec.get("controlPlaneRef") or {}).get("name") or ""
        published = {kubeconfig_secret_name(served), controllers_secret_name(served)}
        if namespace and not (namespace == management_namespace(served) and name in published):
            found.add(Watched(namespace, label))
    return found


def listen(stores: Stores, changed: Callable[[], None]) -> None:
    """Have every change call back that may change what `wanted` returns."""

    def came_or_went(change: Change) -> None:
        if change.old is None or change.new is None:
            changed()

    def named(change: Change) -> None:
        if _named_by(change.old) != _named_by(change.new):
            changed()

    for store in (stores.namespaces, stores.control_planes):
        store.listen(came_or_went)
    for store in (stores.endpoints, stores.registrations):
        store.listen(named)


class _Watch:
    """One informer, the task that runs it, and the store that it feeds."""

    def __init__(self, client: Client, watched: Watched, *, store: Store, streaming: Streaming) -> None:
        users = watched.label != OWN
        self.informer: Final = Informer(
            client,
            SECRETS,
            namespace=watched.namespace,
            label_selector=watched.label,
            relist_seconds=_RELIST_SECONDS,
            watch_seconds=_USERS_WATCH_SECONDS if users else _WATCH_SECONDS,
            streaming=streaming,
            backoff=Backoff(initial_seconds=0.1, maximum_seconds=_RETRY_SECONDS),
        )
        self._watched = watched
        self._store = store
        self._missing: set[tuple[Key, str]] = set()
        # In a context of its own, not in that of the reconcile that needed it first.
        self.task: Final = asyncio.create_task(
            self._run(),
            name=f"follow Secrets {watched.label} in {watched.namespace}",
            context=contextvars.Context(),
        )

    async def _run(self) -> NoReturn:
        while True:
            try:
                await self.informer.run(self._store.see)
            except Exception:  # noqa: BLE001 - it is followed anew, whatever that was, and holds up no other one
                _log.exception("failed to follow the Secrets of namespace %s", self._watched.namespace)
            await asyncio.sleep(jittered(_RETRY_SECONDS))

    async def end(self) -> None:
        """Stop, and forget the Secrets."""
        await end_tasks([self.task])
        await self.informer.aclose()
        self._store.forget(self._watched.namespace)

    def compare(self) -> None:
        """Drop Secrets that are stored, and that the API server lacked at this call and at the one before.

        The operator stores what it writes. If such a Secret goes while a watch is interrupted, no event says so. If
        Secrets of a user cannot be read any more, what uses them is reconciled.
        """
        namespace = self._watched.namespace
        if self.informer.state != "ready":
            if self._watched.label != OWN:
                self._store.repeat(namespace)
            return
        stored = [obj for obj in self._store.of_namespace(namespace) if self._lacks(obj)]
        missing = {(key_of(obj), obj["metadata"]["resourceVersion"]) for obj in stored}
        for obj in stored:
            if (key_of(obj), obj["metadata"]["resourceVersion"]) in self._missing:
                self._store.remove(obj)
        self._missing = missing

    def _lacks(self, obj: Object) -> bool:
        return self.informer.entry(obj["metadata"]["name"], namespace=self._watched.namespace) is None


class SecretWatches:
    """The watches that run, by namespace and label. One that fails retries by itself, and holds up no other one."""

    def __init__(self, client: Client, stores: Mapping[str, Store]) -> None:
        """`stores` are by the label that their Secrets have."""
        self._client = client
        self._stores = stores
        self._watches: dict[Watched, _Watch] = {}
        self._streaming = Streaming()

    async def run(self) -> NoReturn:
        """Compare stores with what is watched until cancelled; then end all watches."""
        try:
            while True:
                await asyncio.sleep(jittered(_COMPARE_SECONDS))
                for watch in self._watches.values():
                    watch.compare()
        finally:
            await end_tasks([watch.task for watch in self._watches.values()])

    def start(self, watched: Watched) -> None:
        """Follow these Secrets, unless they are followed."""
        if watched not in self._watches:
            store = self._stores[watched.label]
            self._watches[watched] = _Watch(self._client, watched, store=store, streaming=self._streaming)

    async def stop(self, watched: Watched) -> None:
        """Follow these Secrets no longer, and forget them."""
        if (watch := self._watches.pop(watched, None)) is not None:
            await watch.end()

    async def become(self, watched: set[Watched]) -> None:
        """Follow these, and no others."""
        for each in watched - self._watches.keys():
            self.start(each)
        for each in self._watches.keys() - watched:
            await self.stop(each)

    async def known(self, watched: Watched) -> None:
        """Wait until these Secrets were read once. Raises ClusterNotReady if they are followed no longer."""
        self.start(watched)
        await self._watches[watched].informer.wait_synced()

    def is_known(self, watched: Watched) -> bool:
        """Tell whether these Secrets were read once."""
        watch = self._watches.get(watched)
        return watch is not None and watch.informer.synced.is_set()

    def is_lost(self, watched: Watched) -> bool:
        """Tell whether these Secrets are followed, and cannot be read now."""
        watch = self._watches.get(watched)
        return watch is not None and watch.informer.state == "unreachable"

    def error(self, watched: Watched) -> str:
        """Return why these Secrets cannot be read; empty if that is not known."""
        watch = self._watches.get(watched)
        return watch.informer.error if watch is not None else ""
