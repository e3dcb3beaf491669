"""Clusters from ControlPlaneRegistration objects: what mcm follows, and nothing else of the management cluster."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from api import KubernetesVersion
from api.names import API_VERSION, KUBECONFIG_KEY
from provider.backoff import Backoff
from provider.client import Client
from provider.cluster import Cluster
from provider.clusters import Clusters
from provider.errors import KubeconfigError, ProviderError
from provider.kubeconfig import ClusterConfig
from provider.reflector import Reflector
from provider.resources import SECRETS, Resource

__all__ = ["PROFILE_ATTRIBUTE", "REGISTRATIONS", "UID_ATTRIBUTE", "VERSION_ATTRIBUTE", "RegistrationProvider"]

log: Final = logging.getLogger(__name__)

REGISTRATIONS: Final = Resource(API_VERSION, "ControlPlaneRegistration", "controlplaneregistrations", namespaced=False)

UID_ATTRIBUTE: Final = "controlPlaneUID"
"""Attribute of a cluster: metadata.uid of the control plane that its registration resolves to; may be empty."""

PROFILE_ATTRIBUTE: Final = "profile"
"""Attribute of a cluster: the profile of controllers that its registration resolves to; empty where it names none."""

VERSION_ATTRIBUTE: Final = "version"
"""Attribute of a cluster: the minor version of Kubernetes that its API server reports, such as 1.36; empty where it is
not known. Patches are left out, so that none of them makes another cluster.
"""

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Wish:
    """What a ready registration resolves to."""

    endpoint: str
    namespace: str
    secret: str
    attributes: Mapping[str, str]


class _Keep:
    """A registration that says nothing new: whatever is engaged stays."""


_KEEP: Final = _Keep()


class RegistrationProvider:
    """Engages a cluster, named as the registration, for every registration that is ready and wants a known service.

    A registration counts when the operator has answered its present spec (`status.observedGeneration`) with `ready`,
    it is not being deleted, and one of its services is in `services` (upper and lower case are the same). The cluster
    is made of `status.resolvedEndpoint` and the one Secret that the status names, controllers' before admin's; its
    attributes are controlPlaneUID, services, the profile of controllers and the minor version of the status.

    While the operator has not answered a changed spec, and while the Secret is missing or garbage, the cluster stays
    as it last was. `client` is one of the management cluster, and belongs to the caller.
    """

    def __init__(self, client: Client, *, services: frozenset[str], label_selector: str | None = None) -> None:
        self._client = client
        self._services = frozenset(service.lower() for service in services)
        self._registrations = Reflector(client, REGISTRATIONS, label_selector=label_selector)
        self._listeners: list[Callable[[str], None]] = []

    @property
    def name(self) -> str:
        """For logs."""
        return "registration"

    @property
    def synced(self) -> asyncio.Event:
        """Set once all registrations were read for the first time."""
        return self._registrations.synced

    def registration(self, name: str) -> Object | None:
        """Return a registration as it was last seen; None where there is none."""
        return self._registrations.store.get(("", name))

    def listen(self, listener: Callable[[str], None]) -> None:
        """Call back with the name of each registration that is new, changed or gone."""
        self._listeners.append(listener)

    async def run(self, clusters: Clusters) -> None:
        """Follow registrations and their Secrets until cancelled."""
        followers: dict[str, _Follower] = {}
        async with asyncio.TaskGroup() as tasks:

            async def follow(name: str) -> None:
                await followers[name].run()
                # Without a pause in between, in which the follower could be told something that it does not hear.
                del followers[name]

            def tell(name: str, registration: Object | None) -> None:
                if name not in followers:
                    followers[name] = _Follower(name, self._client, clusters, services=self._services)
                    tasks.create_task(follow(name), name=f"registration {name}")
                followers[name].see(registration)

            def handle(event: str, registration: dict[str, Any]) -> None:
                name = registration["metadata"]["name"]
                tell(name, None if event == "DELETED" else registration)
                for listener in self._listeners:
                    listener(name)

            async def forget_strangers() -> None:
                # Of an earlier run: their registrations may have gone in between.
                await self._registrations.synced.wait()
                for name in clusters.names():
                    if ("", name) not in self._registrations.store:
                        tell(name, None)

            for registration in self._registrations.store.values():
                handle("ADDED", registration)
            tasks.create_task(forget_strangers(), name="registrations that are gone")
            await self._registrations.run(handle)


class _Follower:
    """Brings one cluster in line with its registration, at its own pace: a slow one blocks no other."""

    def __init__(self, name: str, client: Client, clusters: Clusters, *, services: frozenset[str]) -> None:
        self._name = name
        self._client = client
        self._clusters = clusters
        self._services = services
        self._registration: Object | None = None
        self._seen = asyncio.Event()
        self._backoff = Backoff(initial_seconds=0.5, maximum_seconds=30.0)
        self._secret: Reflector | None = None
        self._secret_at: tuple[str, str] | None = None
        self._secret_task: asyncio.Task[None] | None = None

    def see(self, registration: Object | None) -> None:
        """Take note of the registration as it is now; None: it is gone."""
        self._registration = registration
        self._seen.set()

    async def run(self) -> None:
        """Follow until the registration is gone and its cluster closed."""
        try:
            while True:
                await self._seen.wait()
                self._seen.clear()
                try:
                    await self._reconcile()
                except ProviderError as error:
                    await self._retry(error)
                except Exception as error:
                    log.exception("registration %s: unexpected failure", self._name)
                    await self._retry(error)
                else:
                    self._backoff.reset()
                    if self._registration is None and not self._seen.is_set():
                        return
        finally:
            await self._stop_secret()

    async def _retry(self, error: Exception) -> None:
        delay = self._backoff.next_delay()
        log.warning("registration %s: again in %.1f s: %s", self._name, delay, error)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._seen.wait()
        self._seen.set()

    async def _reconcile(self) -> None:
        wish = read_wish(self._registration, services=self._services)
        if isinstance(wish, _Keep):
            return
        if wish is None:
            await self._stop_secret()
            await self._clusters.remove(self._name)
            return
        await self._follow_secret(wish)
        cluster = self._cluster(wish)
        if cluster is not None:
            await self._clusters.add_or_replace(cluster)

    def _cluster(self, wish: _Wish) -> Cluster | None:
        secret = None if self._secret is None else self._secret.store.get((wish.namespace, wish.secret))
        where = f"Secret {wish.namespace}/{wish.secret}"
        if secret is None:
            if self._secret is not None and self._secret.synced.is_set():
                log.warning("registration %s: %s is missing; what is engaged stays", self._name, where)
            return None
        try:
            credentials = _read_secret(secret)
            config = ClusterConfig.from_kubeconfig(credentials[KUBECONFIG_KEY])
            config = config.with_server(wish.endpoint)
        except KubeconfigError as error:
            log.warning("registration %s: %s cannot be used, what is engaged stays: %s", self._name, where, error)
            return None
        return Cluster(self._name, config=config, credentials=credentials, attributes=wish.attributes)

    async def _follow_secret(self, wish: _Wish) -> None:
        if self._secret_at == (wish.namespace, wish.secret):
            return
        await self._stop_secret()
        self._secret_at = (wish.namespace, wish.secret)
        self._secret = Reflector(self._client, SECRETS, namespace=wish.namespace, name=wish.secret)
        self._secret_task = asyncio.create_task(
            self._mirror(self._secret),
            name=f"registration {self._name}: Secret {wish.namespace}/{wish.secret}",
        )

    async def _mirror(self, secret: Reflector) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(secret.run(lambda _event, _secret: self._seen.set()), name=f"mirror of {secret}")
            # A Secret that is absent from the beginning has no event, and should be told of.
            await secret.synced.wait()
            self._seen.set()

    async def _stop_secret(self) -> None:
        task, self._secret_task, self._secret, self._secret_at = self._secret_task, None, None, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])


def read_wish(registration: Object | None, *, services: frozenset[str]) -> _Wish | _Keep | None:
    """What a registration asks for: a cluster, none, or nothing new. Users write these objects: all is checked.

    `services` are lower-case.
    """
    if registration is None:
        return None
    metadata, status = _mapping(registration.get("metadata")), _mapping(registration.get("status"))
    if metadata.get("deletionTimestamp"):
        return None
    if status.get("observedGeneration") != metadata.get("generation"):
        return _KEEP
    wanted = _services(status.get("services")) or _services(_mapping(registration.get("spec")).get("services"))
    if status.get("ready") is not True or not services.intersection(name.lower() for name in wanted):
        return None
    reference = _mapping(status.get("resolvedControllersSecretRef")) or _mapping(
        status.get("resolvedKubeconfigSecretRef")
    )
    endpoint, namespace, secret = status.get("resolvedEndpoint"), reference.get("namespace"), reference.get("name")
    if not (_is_text(endpoint) and _is_text(namespace) and _is_text(secret)):
        log.warning("registration %s: its status is ready but names no endpoint or Secret", metadata.get("name"))
        return _KEEP
    attributes = {
        UID_ATTRIBUTE: str(status.get("controlPlaneUID") or ""),
        "services": ",".join(sorted({name.title() for name in wanted})),
        PROFILE_ATTRIBUTE: str(_mapping(status.get("controllers")).get("profile") or ""),
        VERSION_ATTRIBUTE: _minor_version(status.get("version")),
    }
    return _Wish(str(endpoint), str(namespace), str(secret), attributes)


def _mapping(value: object) -> Object:
    return value if isinstance(value, Mapping) else {}


def _minor_version(value: object) -> str:
    version = KubernetesVersion.parse(value) if isinstance(value, str) else None
    return f"{version.major}.{version.minor}" if version is not None else ""


def _services(value: object) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _read_secret(secret: Object) -> dict[str, bytes]:
    """Decode a Secret's data; raises KubeconfigError where there is no kubeconfig in it."""
    try:
        data = {
            key: base64.b64decode(value, validate=True)
            for key, value in _mapping(secret.get("data")).items()
            if isinstance(value, str)
        }
    except (binascii.Error, ValueError) as error:
        raise KubeconfigError("its data is not base64") from error
    if KUBECONFIG_KEY not in data:
        raise KubeconfigError(f"it has no key {KUBECONFIG_KEY!r}")
    return data
