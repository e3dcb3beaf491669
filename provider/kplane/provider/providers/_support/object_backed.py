"""Reconciles a fleet with objects of a kind: the common part of providers that find clusters in objects.

The `Plan` of a provider maps each object to its desired cluster. This module has the watch, a follower for each object,
the Secrets with credentials, unobserved deletions, and the shutdown.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from kplane.provider.access.config import ClusterConfig
from kplane.provider.aio.backoff import Backoff
from kplane.provider.aio.cancellation import end_tasks
from kplane.provider.cache.entry import Key
from kplane.provider.cache.event import Event
from kplane.provider.cache.informer import Informer
from kplane.provider.client.client import Client
from kplane.provider.client.resources import SECRETS, Resource
from kplane.provider.client.tls import require_usable
from kplane.provider.cluster.cluster import Cluster
from kplane.provider.contracts import Fleet
from kplane.provider.errors import ClusterNotFound, ClusterNotReady, KubeconfigError, ProviderError
from kplane.provider.providers._support.memo import KubeconfigMemo
from kplane.provider.providers._support.secret import values_of

__all__ = ["KEEP", "FromSecret", "Keep", "Object", "ObjectBackedProvider", "Plan", "cluster_name"]

log: Final = logging.getLogger(__name__)

Object = Mapping[str, Any]

_RELIST_SECONDS: Final = 600.0


ReadKubeconfig = Callable[[bytes], ClusterConfig]
"""Function that parses a kubeconfig, or raises KubeconfigError. Caches the last result while its Secret is followed."""


@dataclass(frozen=True, slots=True)
class FromSecret:
    """A cluster that `make` creates from the decoded values of a Secret, which is watched by its name.

    While the Secret is missing or invalid, or `make` raises KubeconfigError, the engaged cluster stays. If CA, client
    certificate and key for the same address cannot be used, the previous kubeconfig stays, and everything else is
    updated.
    """

    namespace: str
    name: str
    make: Callable[[Mapping[str, bytes], ReadKubeconfig], Cluster]


class Keep:
    """Result of a plan that keeps the engaged cluster, if any."""


KEEP: Final = Keep()

Desired = Cluster | FromSecret | Keep | None
"""Desired cluster of an object, with the name that the provider's `name` function returns; None for no cluster."""

Plan = Callable[[Object], Desired | Awaitable[Desired]]
"""Function that returns the desired cluster of an object.

A plan is called in the loop and must not block; a coroutine function delays no other object. After a KubeconfigError,
the engaged cluster stays until the object changes. After any other error the plan is retried, with growing delays.
"""


def cluster_name(namespace: str, name: str) -> str:
    """Return the name of the cluster of an object: `<namespace>/<name>`, or the plain name for cluster-scoped kinds."""
    return f"{namespace}/{name}" if namespace else name


class ObjectBackedProvider:
    """Follows the objects of `resource`, and keeps the clusters they ask for in a fleet.

    `client` reaches the cluster with the objects, and belongs to the caller. `what` names the kind in log messages.
    `name` returns the name of an object's cluster by namespace and name, and must be unique. `namespace=None` means all
    namespaces. Objects that no longer match `label_selector` count as gone. The plan is called for objects that
    are `ready`, and for objects with an engaged cluster, to keep the cluster up to date. With `object_name` the
    provider reads and watches only the object of that name, by its name.

    `mine` tells whether this process works on the cluster of a name. The provider reads no Secret of any other cluster,
    and keeps it out of the fleet. Call `look_again` when the result may have changed.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        *,
        plan: Plan,
        what: str,
        name: Callable[[str, str], str] = cluster_name,
        ready: Callable[[Object], bool] = lambda _obj: True,
        namespace: str | None = None,
        label_selector: str | None = None,
        object_name: str | None = None,
        mine: Callable[[str], bool] = lambda _name: True,
    ) -> None:
        self._client = client
        self._mine = mine
        self._plan = plan
        self._ready = ready
        self._what = what
        self._name = name
        self._objects = Informer(
            client,
            resource,
            namespace=namespace,
            name=object_name,
            label_selector=label_selector,
            relist_seconds=_RELIST_SECONDS,
        )
        self._listeners: list[Callable[[str], None]] = []
        self._notify: Callable[[str, Object | None], None] | None = None
        self._followers: dict[str, _Follower] = {}

    def has_synced(self) -> bool:
        """Tell whether the initial list of objects was read."""
        return self._objects.synced.is_set()

    def get(self, name: str, *, namespace: str = "") -> Object | None:
        """Return an object as last observed; None if it is missing or not followed."""
        followed = self._objects.scope.covers(name=name, namespace=namespace)
        return self._objects.get(name, namespace=namespace) if followed else None

    def names(self) -> list[str]:
        """Return the cluster names of all objects."""
        return [self._name(*entry.key) for entry in self._objects.entries()]

    def listen(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with the cluster's name for each object that is new, changed or gone."""
        self._listeners.append(listener)

    def wake(self, name: str, *, namespace: str = "") -> None:
        """Call the plan for an object again, because another source of its cluster has changed."""
        obj = self.get(name, namespace=namespace)
        if obj is not None and self._notify is not None:
            self._notify(self._name(namespace, name), obj)

    def wake_all(self) -> None:
        """Call the plan for every object again."""
        for entry in self._objects.entries():
            self.wake(entry.name, namespace=entry.namespace)

    def look_again(self) -> None:
        """Call `mine` for each cluster again, and update clusters whose result has changed."""
        for entry in self._objects.entries():
            follower = self._followers.get(name := self._name(*entry.key))
            if self._mine(name) != (follower is not None and follower.mine):
                self.wake(entry.name, namespace=entry.namespace)

    async def run(self, fleet: Fleet) -> NoReturn:
        """Follow until cancelled; the clusters stay as they are."""
        followers = self._followers = {}
        async with asyncio.TaskGroup() as tasks:

            async def follow(follower: _Follower) -> None:
                await follower.run()
                # Remove the follower without an await since its last check: it must not miss a notification.
                del followers[follower.name]

            def notify(name: str, obj: Object | None) -> None:
                follower = followers.get(name)
                if follower is None:
                    follower = followers[name] = _Follower(
                        name,
                        self._client,
                        fleet,
                        plan=self._plan,
                        ready=self._ready,
                        may_follow=self._mine,
                        what=self._what,
                    )
                    tasks.create_task(follow(follower), name=f"{self._what} {name}")
                follower.observe(obj)

            def handle(event: Event) -> None:
                name = self._name(event.namespace, event.name)
                notify(name, None if event.kind == "DELETED" else event.object)
                for listener in self._listeners:
                    listener(name)

            async def remove_stale() -> None:
                # Clusters of an earlier run: their objects may have been deleted meanwhile.
                await self._objects.synced.wait()
                current = set(self.names())
                for name in fleet.names():
                    if name not in current:
                        notify(name, None)

            self._notify = notify
            try:
                tasks.create_task(remove_stale(), name=f"every {self._what} that is gone")
                await self._objects.run(handle)
            finally:
                self._notify = None


class _Follower:
    """Reconciles a cluster with its object in a separate task, so a slow cluster blocks no other cluster.

    A follower exists while there is work or a Secret to watch, so that other objects cost no task.
    """

    def __init__(
        self,
        name: str,
        client: Client,
        fleet: Fleet,
        *,
        plan: Plan,
        ready: Callable[[Object], bool],
        may_follow: Callable[[str], bool],
        what: str,
    ) -> None:
        self.name: Final = name
        self.mine = False
        """The last result of `may_follow`."""
        self._may_follow = may_follow
        self._client = client
        self._fleet = fleet
        self._plan = plan
        self._ready = ready
        self._title = f"{what} {name}"
        self._object: Object | None = None
        self._gone = False
        self._changed = asyncio.Event()
        self._backoff = Backoff(initial_seconds=0.5, maximum_seconds=30.0)
        self._secret: Informer | None = None
        self._secret_key: Key | None = None
        self._secret_task: asyncio.Task[None] | None = None
        self._kubeconfigs = _new_memo()

    def observe(self, obj: Object | None) -> None:
        """Observe the current object; None means deleted. A recreated object gets a new cluster."""
        self._object = obj
        self._gone = self._gone or obj is None
        self._changed.set()

    async def run(self) -> None:
        """Reconcile until no work is left."""
        try:
            while self._changed.is_set() or self._secret is not None:
                await self._changed.wait()
                self._changed.clear()
                try:
                    await self._reconcile()
                except ProviderError as error:
                    await self._retry(error)
                except Exception as error:
                    log.exception("failed to process %s: unexpected error", self._title)
                    await self._retry(error)
                else:
                    self._backoff.reset()
        finally:
            await self._stop_secret()

    async def _retry(self, error: Exception) -> None:
        delay = self._backoff.next_delay()
        log.warning("failed to process %s: %s; retrying in %.1f s", self._title, error, delay)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._changed.wait()
        self._changed.set()

    async def _reconcile(self) -> None:
        if self._gone:
            await self._stop_secret()
            await self._fleet.remove(self.name)
            self._gone = False
        self.mine = self._may_follow(self.name)
        if not self.mine:
            await self._stop_secret()
            await self._fleet.remove(self.name)
            return
        if self._object is None or not (self._ready(self._object) or self._engaged()):
            return
        desired = await self._call_plan(self._object)
        if self._gone:
            # The object was deleted during the plan: the next pass handles the deletion.
            return
        if isinstance(desired, FromSecret):
            await self._follow_secret((desired.namespace, desired.name))
            desired = self._cluster_from_secret(desired)
        elif not isinstance(desired, Keep):
            await self._stop_secret()
        if desired is None:
            await self._fleet.remove(self.name)
        elif isinstance(desired, Cluster):
            await self._fleet.add_or_replace(self._usable(desired))

    def _engaged(self) -> bool:
        try:
            self._fleet.get(self.name)
        except ClusterNotFound:
            return False
        except ClusterNotReady:
            pass
        return True

    async def _call_plan(self, obj: Object) -> Desired:
        try:
            desired = self._plan(obj)
            return await desired if isinstance(desired, Awaitable) else desired
        except KubeconfigError as error:
            log.warning("failed to use %s: %s; keeping the engaged cluster", self._title, error)
            return KEEP

    def _usable(self, cluster: Cluster) -> Cluster:
        """Return the cluster, with the engaged kubeconfig if the new kubeconfig for the same address cannot be used.

        Without an engaged cluster at the same address, the cluster stays unchanged: its clients report the problem.
        """
        try:
            present = self._fleet.get(self.name).config
        except (ClusterNotFound, ClusterNotReady):
            return cluster
        if present == cluster.config or present.server != cluster.config.server:
            return cluster
        try:
            require_usable(cluster.config)
        except KubeconfigError as error:
            source = "Secret {}/{}".format(*self._secret_key) if self._secret_key is not None else "its object"
            log.warning(
                "%s: failed to use the kubeconfig in %s: %s; keeping the previous one", self._title, source, error
            )
            return cluster.with_config(present)
        return cluster

    def _cluster_from_secret(self, desired: FromSecret) -> Cluster | Keep:
        title = f"Secret {desired.namespace}/{desired.name}"
        secret = None if self._secret is None else self._secret.get(desired.name, namespace=desired.namespace)
        if secret is None:
            if self._secret is not None and self._secret.synced.is_set():
                log.warning("%s: %s is missing; keeping the engaged cluster", self._title, title)
            return KEEP
        try:
            return desired.make(values_of(secret), self._kubeconfigs.read)
        except KubeconfigError as error:
            log.warning("%s: failed to use %s: %s; keeping the engaged cluster", self._title, title, error)
            return KEEP

    async def _follow_secret(self, key: Key) -> None:
        if self._secret_key == key:
            return
        await self._stop_secret()
        namespace, name = self._secret_key = key
        self._secret = Informer(self._client, SECRETS, namespace=namespace, name=name)
        self._secret_task = asyncio.create_task(
            self._mirror(self._secret), name=f"{self._title}: Secret {namespace}/{name}"
        )

    async def _mirror(self, secret: Informer) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(secret.run(lambda _event: self._changed.set()), name=f"mirror of {secret}")
            # A Secret that is missing from the beginning has no event, and should be logged.
            await secret.synced.wait()
            self._changed.set()

    async def _stop_secret(self) -> None:
        task, self._secret_task, self._secret, self._secret_key = self._secret_task, None, None, None
        self._kubeconfigs = _new_memo()
        if task is not None:
            await end_tasks([task])


def _new_memo() -> KubeconfigMemo:
    """Return a cache for a single kubeconfig: a provider must not keep keys of clusters that it left."""
    return KubeconfigMemo(most_bytes=0)
