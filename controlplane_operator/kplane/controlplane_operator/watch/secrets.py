"""Watches of Secrets by namespace. Each watch starts and ends with its namespace.

A watch costs memory here and in the API server. So the Secrets of sleeping control planes are not watched, but read
periodically.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections import Counter
from collections.abc import Callable, Container, Coroutine, Iterable, Mapping
from typing import Any, Final, NamedTuple, NoReturn

from kplane.api.conditions import HIBERNATED
from kplane.api.names import (
    ALLOW_ENDPOINT_LABEL,
    ALLOW_REGISTRATION_LABEL,
    CONTROL_PLANE_LABEL,
    controllers_secret_name,
    kubeconfig_secret_name,
    management_namespace,
)
from kplane.controlplane_operator.watch.backoff import jittered
from kplane.controlplane_operator.watch.cache import Change, Key, MergedStore, Object, key_of
from kplane.controlplane_operator.watch.conditions import stored_condition
from kplane.controlplane_operator.watch.stores import Stores
from kplane.provider import Client, ClusterNotReady, Informer, ProviderError
from kplane.provider.aio.backoff import Backoff
from kplane.provider.aio.cancellation import end_tasks
from kplane.provider.cache.server_state import ServerState
from kplane.provider.client.resources import SECRETS
from kplane.provider.client.written import Written

__all__ = [
    "FOR_ENDPOINTS",
    "FOR_REGISTRATIONS",
    "OWN",
    "SecretWatches",
    "Wanted",
    "Watched",
    "is_managed_namespace",
    "listen",
    "sleeps",
]

_log: Final = logging.getLogger(__name__)

_RELIST_SECONDS: Final = 600.0
_WATCH_SECONDS: Final = 300.0
_USERS_WATCH_SECONDS: Final = 60.0
"""Duration of a watch in users' namespaces, which may revoke access: an API server checks access only when a watch
begins."""
_RETRY_SECONDS: Final = 15.0
_COMPARE_SECONDS: Final = 60.0
_READ_SECONDS: Final = 600.0
"""Interval at which the Secrets of a sleeping control plane are read."""
_ANSWER_SECONDS: Final = 10.0
_READ_AT_ONCE: Final = 4

OWN: Final = CONTROL_PLANE_LABEL
"""The label of Secrets that the operator writes."""
FOR_REGISTRATIONS: Final = f"{ALLOW_REGISTRATION_LABEL}=true"
FOR_ENDPOINTS: Final = f"{ALLOW_ENDPOINT_LABEL}=true"


class Watched(NamedTuple):
    """The Secrets of a namespace that have a label."""

    namespace: str
    label: str


def is_managed_namespace(name: str) -> bool:
    """Return whether a name is that of a management namespace."""
    return name.startswith(("kplane-cp-", "kplane-cpx-"))


def sleeps(stores: Stores, namespace: str) -> bool:
    """Return whether a namespace belongs to a sleeping control plane: condition Hibernated is True."""
    return any(map(_is_asleep, stores.control_planes.by("namespace", namespace)))


def _is_asleep(control_plane: Object | None) -> bool:
    return stored_condition(control_plane, HIBERNATED).get("status") == "True"


def _named_by(obj: Object | None) -> set[Watched]:
    """Return the namespaces and labels of Secrets that an endpoint or a registration names.

    Secrets that kplane publishes for the same control plane are left out.
    """
    spec = (obj or {}).get("spec") or {}
    watched = set()
    for field, label in (
        ("credentialsSecretRef", FOR_ENDPOINTS),
        ("kubeconfigSecretRef", FOR_REGISTRATIONS),
    ):
        secret = spec.get(field) or {}
        namespace, name = secret.get("namespace"), secret.get("name")
        served = (spec.get("controlPlaneRef") or {}).get("name") or ""
        published = {kubeconfig_secret_name(served), controllers_secret_name(served)}
        if namespace and not (namespace == management_namespace(served) and name in published):
            watched.add(Watched(namespace, label))
    return watched


class Wanted:
    """The set of Secrets to watch; calls back when it may have changed.

    It has the namespaces of the installation, of control planes, and of users. A management namespace without a control
    plane, which keeps retained data, needs no watch. Users' namespaces are in the set if an endpoint or a registration
    names a Secret there.
    """

    def __init__(
        self,
        stores: Stores,
        *,
        installed: Iterable[str],
        bound: Container[str],
        changed: Callable[[Watched], None],
    ) -> None:
        """`installed` are the namespaces of operator and gateway, `bound` the readable management namespaces.

        The owner of `bound` has to call `changed` when a namespace enters or leaves it. `changed` is also called at
        once for all present namespaces.
        """
        self._stores = stores
        self._installed = frozenset(installed)
        self._bound = bound
        self._changed = changed
        self._named: Counter[Watched] = Counter()
        for name in self._installed:
            changed(Watched(name, OWN))
        for store, listener in (
            (stores.namespaces, self._namespace),
            (stores.control_planes, self._control_plane),
            (stores.endpoints, self._user_of_secrets),
            (stores.registrations, self._user_of_secrets),
        ):
            store.replay(listener)
            store.listen(listener)

    def __contains__(self, watched: Watched) -> bool:
        namespace = watched.namespace
        if watched.label != OWN:
            return watched in self._named
        if namespace in self._installed:
            return True
        exists = namespace in self._bound and self._stores.namespaces.get(("", namespace)) is not None
        return exists and bool(self._stores.control_planes.by("namespace", namespace))

    def _namespace(self, change: Change) -> None:
        if change.old is None or change.new is None:
            self._changed(Watched(change.key[1], OWN))

    def _control_plane(self, change: Change) -> None:
        if change.old is None or change.new is None:
            self._changed(Watched(management_namespace(change.key[1]), OWN))

    def _user_of_secrets(self, change: Change) -> None:
        before, after = _named_by(change.old), _named_by(change.new)
        for watched in before - after:
            self._named[watched] -= 1
            if not self._named[watched]:
                del self._named[watched]
        self._named.update(after - before)
        for watched in before ^ after:
            self._changed(watched)


def _version_of(obj: Object) -> tuple[Key, str]:
    return key_of(obj), obj["metadata"]["resourceVersion"]


def listen(stores: Stores, turned: Callable[[str], None]) -> None:
    """Call `turned` with the namespace at each change that may alter the result of `sleeps`."""

    def fell_asleep_or_woke(change: Change) -> None:
        if _is_asleep(change.old) != _is_asleep(change.new):
            turned(management_namespace(change.key[1]))

    stores.control_planes.listen(fell_asleep_or_woke)


class _Reading:
    """The Secrets of a sleeping control plane, read periodically instead of watched."""

    def __init__(self, client: Client, watched: Watched, *, store: MergedStore, known: bool) -> None:
        """`known` means that the Secrets were watched until now."""
        self.synced: Final = asyncio.Event()
        self.error = ""
        self.ended = False
        self._client = client
        self._watched = watched
        self._store = store
        self._turn = asyncio.Lock()
        self._due = time.monotonic()
        if known:
            self.synced.set()
            self._due += jittered(_READ_SECONDS)

    @property
    def due(self) -> bool:
        """Whether the Secrets are due to be read again."""
        return time.monotonic() >= self._due

    async def known(self) -> None:
        """Read the Secrets unless they have been read before. Raises ClusterNotReady if that fails."""
        async with self._turn:
            if not self.synced.is_set():
                await self._read()
        if not self.synced.is_set():
            raise ClusterNotReady(self.error)

    async def read(self) -> None:
        """Read the Secrets. A failure is stored in `error`, and a later call retries."""
        async with self._turn:
            await self._read()

    async def _read(self) -> None:
        namespace = self._watched.namespace
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                listing = await self._client.list(SECRETS, namespace=namespace, label_selector=self._watched.label)
        except (ProviderError, TimeoutError) as error:
            self.error = str(error) or "no answer in time"
            return
        except Exception as error:  # noqa: BLE001 - a failure for one namespace must not stop the others
            _log.exception("failed to read the Secrets of %s", namespace)
            self.error = f"the operator failed: {error}"
            return
        if not self.ended:
            self._store.replace(listing.items, resource_version=listing.resource_version, namespace=namespace)
            self.error, self._due = "", time.monotonic() + jittered(_READ_SECONDS)
            self.synced.set()


class _Watch:
    """An informer of Secrets with its task and the store that it fills."""

    def __init__(
        self, client: Client, watched: Watched, *, store: MergedStore, server: ServerState, known: bool = False
    ) -> None:
        """`known` means that the Secrets were read before the watch."""
        self._known = known
        users = watched.label != OWN
        self.informer: Final = Informer(
            client,
            SECRETS,
            namespace=watched.namespace,
            label_selector=watched.label,
            relist_seconds=_RELIST_SECONDS,
            watch_seconds=_USERS_WATCH_SECONDS if users else _WATCH_SECONDS,
            server=server,
            backoff=Backoff(initial_seconds=0.1, maximum_seconds=_RETRY_SECONDS),
        )
        self._watched = watched
        self._store = store
        # A Secret that was deleted during the sleep is missing in the first list. No event reports its deletion.
        self._missing = set(map(_version_of, store.of_namespace(watched.namespace))) if known else set()
        title = f"Secrets {watched.label} in {watched.namespace}"
        self.tasks: Final = [self._task(self._run(), name=f"follow {title}")]
        if self._missing:
            self.tasks.append(self._task(self._compare_first(), name=f"compare {title} after sleep"))

    @staticmethod
    def _task(work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        # An empty context, not the context of the reconcile that started the watch.
        return asyncio.create_task(work, name=name, context=contextvars.Context())

    async def _run(self) -> NoReturn:
        while True:
            try:
                await self.informer.run(self._store.see)
            except Exception:  # noqa: BLE001 - a failed watch restarts, and must not affect others
                _log.exception("failed to follow the Secrets of namespace %s", self._watched.namespace)
            await asyncio.sleep(jittered(_RETRY_SECONDS))

    async def _compare_first(self) -> None:
        await self.informer.wait_synced()
        self.compare()

    @property
    def is_known(self) -> bool:
        """Whether the Secrets have been read at least once."""
        return self._known or self.informer.synced.is_set()

    async def end(self) -> None:
        """Stop the watch. The store keeps the Secrets."""
        await end_tasks(self.tasks)
        await self.informer.aclose()

    def compare(self) -> None:
        """Remove Secrets from the store that the informer lacked at this call and at the previous call.

        The operator stores the Secrets that it writes. If such a Secret is deleted while the watch is interrupted, no
        event reports the deletion. If the Secrets of a user are not readable now, the dependent objects are reconciled.
        """
        namespace = self._watched.namespace
        if self.informer.state != "ready":
            if self._watched.label != OWN:
                self._store.repeat(namespace)
            return
        stored = [obj for obj in self._store.of_namespace(namespace) if self._lacks(obj)]
        missing = set(map(_version_of, stored))
        for obj in stored:
            if _version_of(obj) in self._missing:
                self._store.remove(obj)
        self._missing = missing

    def _lacks(self, obj: Object) -> bool:
        return self.informer.entry(obj["metadata"]["name"], namespace=self._watched.namespace) is None


class SecretWatches:
    """The running watches by namespace and label. A failed watch retries by itself and does not affect others."""

    def __init__(
        self, client: Client, stores: Mapping[str, MergedStore], *, asleep: Callable[[str], bool] = lambda _: False
    ) -> None:
        """`stores` are keyed by the label of their Secrets. `asleep` returns whether a namespace needs no watch now."""
        self._client = client
        self._stores = stores
        self._asleep = asleep
        self._readings: dict[Watched, _Reading] = {}
        self._watches: dict[Watched, _Watch] = {}
        self._server = ServerState()

    def observe(self, written: Written) -> None:
        """Store a Secret that the operator wrote or deleted; pass this method to `Client.observe_writes`."""
        if written.resource != SECRETS:
            return
        store = self._stores[OWN]
        if written.object is None:
            stored = store.get((written.namespace, written.name))
            if stored is not None and stored["metadata"]["uid"] == written.uid:
                store.remove(stored)
        elif OWN in (written.object["metadata"].get("labels") or {}):
            store.apply(written.object)

    async def run(self) -> NoReturn:
        """Compare stores with informers until cancelled; then stop all watches."""
        try:
            while True:
                await asyncio.sleep(jittered(_COMPARE_SECONDS))
                for watch in self._watches.values():
                    watch.compare()
                await self._read([reading for reading in self._readings.values() if reading.due])
        finally:
            await end_tasks([task for watch in self._watches.values() for task in watch.tasks])

    async def _read(self, due: Iterable[_Reading]) -> None:
        slots = asyncio.Semaphore(_READ_AT_ONCE)

        async def read(one: _Reading) -> None:
            async with slots:
                await one.read()

        await asyncio.gather(*map(read, due))

    def start(self, watched: Watched) -> None:
        """Start to watch these Secrets, or to read them periodically, unless that has started before."""
        if watched in self._watches or watched in self._readings:
            return
        if self._sleeps(watched):
            self._readings[watched] = self._reading(watched, known=False)
        else:
            self._watches[watched] = self._watch(watched, known=False)

    async def stop(self, watched: Watched) -> None:
        """Stop watching these Secrets, and remove them from the store."""
        reading, watch = self._readings.pop(watched, None), self._watches.pop(watched, None)
        if reading is not None:
            reading.ended = True
        if watch is not None:
            await watch.end()
        if reading is not None or watch is not None:
            self._stores[watched.label].forget(watched.namespace)

    def watched(self) -> set[Watched]:
        """Return the Secrets that are watched or read periodically."""
        return self._watches.keys() | self._readings.keys()

    async def turn(self, watched: Watched) -> None:
        """Switch between watching and periodic reads, if the control plane has fallen asleep or woken."""
        reading, watch = self._readings.get(watched), self._watches.get(watched)
        if reading is not None and not self._sleeps(watched):
            # The Secrets stay in the store, so that a wake does not wait for them.
            reading.ended = True
            del self._readings[watched]
            self._watches[watched] = self._watch(watched, known=reading.synced.is_set())
        elif watch is not None and watch.is_known and self._sleeps(watched):
            del self._watches[watched]
            self._readings[watched] = self._reading(watched, known=True)
            await watch.end()

    async def known(self, watched: Watched) -> None:
        """Wait until these Secrets have been read at least once; starts to watch them if needed.

        Raises ClusterNotReady if the watch ends, or if the read of a sleeping control plane's Secrets fails.
        """
        self.start(watched)
        if (reading := self._readings.get(watched)) is not None:
            await reading.known()
        elif not self._watches[watched].is_known:
            await self._watches[watched].informer.wait_synced()

    def is_known(self, watched: Watched) -> bool:
        """Return whether these Secrets have been read at least once."""
        watch, reading = self._watches.get(watched), self._readings.get(watched)
        return (watch is not None and watch.is_known) or (reading is not None and reading.synced.is_set())

    def _sleeps(self, watched: Watched) -> bool:
        return watched.label == OWN and self._asleep(watched.namespace)

    def _reading(self, watched: Watched, *, known: bool) -> _Reading:
        return _Reading(self._client, watched, store=self._stores[watched.label], known=known)

    def _watch(self, watched: Watched, *, known: bool) -> _Watch:
        store = self._stores[watched.label]
        return _Watch(self._client, watched, store=store, server=self._server, known=known)

    def is_lost(self, watched: Watched) -> bool:
        """Return whether these Secrets are watched but cannot be read now."""
        watch = self._watches.get(watched)
        return watch is not None and watch.informer.state in {"unreachable", "refused"}

    def error(self, watched: Watched) -> str:
        """Return why these Secrets cannot be read; empty if no error is known."""
        watch, reading = self._watches.get(watched), self._readings.get(watched)
        return watch.informer.error if watch is not None else reading.error if reading is not None else ""
