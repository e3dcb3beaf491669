"""Follows the Secrets of single namespaces, each by a watch of its own that begins and ends with its namespace.

A watch costs memory here and in the API server. So the Secrets of control planes that sleep are read now and then.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Final, NamedTuple, NoReturn

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
from kplane.controlplane_operator.watch.cache import Change, Key, Object, Store, key_of
from kplane.controlplane_operator.watch.conditions import stored_condition
from kplane.controlplane_operator.watch.stores import Stores
from kplane.provider import Client, ClusterNotReady, Informer, ProviderError
from kplane.provider.aio.backoff import Backoff
from kplane.provider.aio.cancellation import end_tasks
from kplane.provider.cache.server_state import ServerState
from kplane.provider.client.resources import SECRETS

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
"""In users' namespaces, where a right may be revoked: an API server asks when a watch begins, and not later."""
_RETRY_SECONDS: Final = 15.0
_COMPARE_SECONDS: Final = 60.0
_READ_SECONDS: Final = 600.0
"""So often the Secrets of a control plane that sleeps are read."""
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
    """Tell whether a name is that of a management namespace."""
    return name.startswith(("kplane-cp-", "kplane-cpx-"))


def sleeps(stores: Stores, namespace: str) -> bool:
    """Tell whether a namespace is of a control plane that sleeps: condition Hibernated is True."""
    return any(map(_is_asleep, stores.control_planes.by("namespace", namespace)))


def _is_asleep(control_plane: Object | None) -> bool:
    return stored_condition(control_plane, HIBERNATED).get("status") == "True"


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


class Wanted:
    """Tells which Secrets are to be followed, and calls back with those of which that may have changed.

    They are in the namespaces of the installation, those of control planes, and those of users. One without a control
    plane, which keeps retained data, needs no watch. Users' namespaces are those that endpoints and registrations name.
    """

    def __init__(
        self,
        stores: Stores,
        *,
        installed: Iterable[str],
        bound: Container[str],
        changed: Callable[[Watched], None],
    ) -> None:
        """`installed` are the operator's own and the gateway's. `bound` are the management namespaces whose Secrets the
        operator may read; tell `changed` of one that comes or goes. `changed` hears at once of all that there is.
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
        present = namespace in self._bound and self._stores.namespaces.get(("", namespace)) is not None
        return present and bool(self._stores.control_planes.by("namespace", namespace))

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


def listen(stores: Stores, turned: Callable[[str], None]) -> None:
    """Have every change call `turned` that may change what `sleeps` returns."""

    def fell_asleep_or_woke(change: Change) -> None:
        if _is_asleep(change.old) != _is_asleep(change.new):
            turned(management_namespace(change.key[1]))

    stores.control_planes.listen(fell_asleep_or_woke)


class _Reading:
    """The Secrets of a control plane that sleeps: read at times, and not followed."""

    def __init__(self, client: Client, watched: Watched, *, store: Store, known: bool) -> None:
        """`known`: they were followed until now."""
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
        """Whether they are to be read again."""
        return time.monotonic() >= self._due

    async def known(self) -> None:
        """Read them, unless they were read once. Raises ClusterNotReady if that fails."""
        async with self._turn:
            if not self.synced.is_set():
                await self._read()
        if not self.synced.is_set():
            raise ClusterNotReady(self.error)

    async def read(self) -> None:
        """Read them; a failure is kept, and a later call retries."""
        async with self._turn:
            await self._read()

    async def _read(self) -> None:
        namespace = self._watched.namespace
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                found = await self._client.list(SECRETS, namespace=namespace, label_selector=self._watched.label)
        except (ProviderError, TimeoutError) as error:
            self.error = str(error) or "no answer in time"
            return
        except Exception as error:  # noqa: BLE001 - one namespace must not end what reads the others
            _log.exception("failed to read the Secrets of %s", namespace)
            self.error = f"the operator failed: {error}"
            return
        if not self.ended:
            self._store.replace(found.items, resource_version=found.resource_version, namespace=namespace)
            self.error, self._due = "", time.monotonic() + jittered(_READ_SECONDS)
            self.synced.set()


class _Watch:
    """One informer, the task that runs it, and the store that it feeds."""

    def __init__(
        self, client: Client, watched: Watched, *, store: Store, server: ServerState, known: bool = False
    ) -> None:
        """`known`: they were read before the watch."""
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

    @property
    def is_known(self) -> bool:
        """Whether the Secrets were read once."""
        return self._known or self.informer.synced.is_set()

    async def end(self) -> None:
        """Stop; the store keeps the Secrets."""
        await end_tasks([self.task])
        await self.informer.aclose()

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

    def __init__(
        self, client: Client, stores: Mapping[str, Store], *, asleep: Callable[[str], bool] = lambda _: False
    ) -> None:
        """`stores` are by the label that their Secrets have. `asleep` tells whether a namespace needs no watch now."""
        self._client = client
        self._stores = stores
        self._asleep = asleep
        self._readings: dict[Watched, _Reading] = {}
        self._watches: dict[Watched, _Watch] = {}
        self._server = ServerState()

    async def run(self) -> NoReturn:
        """Compare stores with what is watched until cancelled; then end all watches."""
        try:
            while True:
                await asyncio.sleep(jittered(_COMPARE_SECONDS))
                for watch in self._watches.values():
                    watch.compare()
                await self._read([reading for reading in self._readings.values() if reading.due])
        finally:
            await end_tasks([watch.task for watch in self._watches.values()])

    async def _read(self, due: Iterable[_Reading]) -> None:
        slots = asyncio.Semaphore(_READ_AT_ONCE)

        async def read(one: _Reading) -> None:
            async with slots:
                await one.read()

        await asyncio.gather(*map(read, due))

    def start(self, watched: Watched) -> None:
        """Follow these Secrets, or read them at times, unless that is done."""
        if watched in self._watches or watched in self._readings:
            return
        if self._sleeps(watched):
            self._readings[watched] = self._reading(watched, known=False)
        else:
            self._watches[watched] = self._watch(watched, known=False)

    async def stop(self, watched: Watched) -> None:
        """Follow these Secrets no longer, and forget them."""
        reading, watch = self._readings.pop(watched, None), self._watches.pop(watched, None)
        if reading is not None:
            reading.ended = True
        if watch is not None:
            await watch.end()
        if reading is not None or watch is not None:
            self._stores[watched.label].forget(watched.namespace)

    def watched(self) -> set[Watched]:
        """Return what is followed, or read at times."""
        return self._watches.keys() | self._readings.keys()

    async def turn(self, watched: Watched) -> None:
        """Read at times what was followed, because its control plane sleeps now, or follow it again."""
        reading, watch = self._readings.get(watched), self._watches.get(watched)
        if reading is not None and not self._sleeps(watched):
            # What was read stays, so that a wake does not wait for it.
            reading.ended = True
            del self._readings[watched]
            self._watches[watched] = self._watch(watched, known=reading.synced.is_set())
        elif watch is not None and watch.is_known and self._sleeps(watched):
            del self._watches[watched]
            self._readings[watched] = self._reading(watched, known=True)
            await watch.end()

    async def known(self, watched: Watched) -> None:
        """Wait until these Secrets were read once. Raises ClusterNotReady if they are followed no longer."""
        self.start(watched)
        if (reading := self._readings.get(watched)) is not None:
            await reading.known()
        elif not self._watches[watched].is_known:
            await self._watches[watched].informer.wait_synced()

    def is_known(self, watched: Watched) -> bool:
        """Tell whether these Secrets were read once."""
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
        """Tell whether these Secrets are followed, and cannot be read now."""
        watch = self._watches.get(watched)
        return watch is not None and watch.informer.state in {"unreachable", "refused"}

    def error(self, watched: Watched) -> str:
        """Return why these Secrets cannot be read; empty if that is not known."""
        watch, reading = self._watches.get(watched), self._readings.get(watched)
        return watch.informer.error if watch is not None else reading.error if reading is not None else ""
