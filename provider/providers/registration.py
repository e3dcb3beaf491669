"""Clusters from ControlPlaneRegistrations: one for each that is ready and asks for a wanted service.

It reads registrations, and of each one the single Secret that it resolves to, by name.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from api import ControlPlaneRegistration
from api.names import KUBECONFIG_KEY
from provider.backoff import Backoff
from provider.client import Client
from provider.cluster import Cluster
from provider.clusters import Clusters
from provider.errors import KubeconfigError
from provider.kubeconfig import ClusterConfig
from provider.queue import WorkQueue
from provider.reflector import Reflector
from provider.resources import SECRETS, Resource

__all__ = ["PROFILE_ATTRIBUTE", "REGISTRATIONS", "RegistrationProvider"]

log: Final = logging.getLogger(__name__)

REGISTRATIONS: Final = Resource(
    ControlPlaneRegistration.resource.api_version,
    ControlPlaneRegistration.resource.kind,
    ControlPlaneRegistration.resource.plural,
    namespaced=False,
)

PROFILE_ATTRIBUTE: Final = "profile"
"""Attribute of a cluster with the profile of controllers that its class asks for."""

_CONTROL_PLANE_UID: Final = "controlPlaneUID"
_SERVICES: Final = "services"
_SECRET: Final = "secret"  # noqa: S105 - where it is, not what is in it


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a ready registration resolves to."""

    namespace: str
    secret: str
    server: str
    attributes: tuple[tuple[str, str], ...]


class RegistrationProvider:
    """Follows ControlPlaneRegistrations; the name of a cluster is that of its registration.

    A registration counts while its status is ready and answers the present generation, and its services include one
    of `services`. While the operator has not answered a change of the spec yet, or the status makes no sense, what is
    engaged stays. The cluster's server is `status.resolvedEndpoint`; its credentials come from the Secret that the
    registration resolves to, the controllers' if there is one. A Secret that vanishes or cannot be read leaves the last
    good credentials in place. `client` stays the caller's.
    """

    def __init__(self, client: Client, *, services: frozenset[str], label_selector: str | None = None) -> None:
        self._client = client
        self._services = frozenset(service.lower() for service in services)
        self._registrations = Reflector(client, REGISTRATIONS, label_selector=label_selector)
        self._wanted: dict[str, _Wanted] = {}
        self._followers: dict[str, asyncio.Task[None]] = {}

    @property
    def name(self) -> str:
        """For logs."""
        return "registration"

    @property
    def synced(self) -> bool:
        """Whether all registrations were read."""
        return self._registrations.synced.is_set()

    async def run(self, clusters: Clusters) -> None:
        """Follow registrations until cancelled."""
        changed: WorkQueue[str] = WorkQueue()
        # After a failure: begin again with what is known, and with what is engaged.
        self._wanted.clear()
        self._followers.clear()
        for name in {*(name for _, name in self._registrations.store), *clusters.names()}:
            changed.add(name)
        async with asyncio.TaskGroup() as group:
            following = group.create_task(
                self._registrations.run(lambda _, found: changed.add(found["metadata"]["name"])),
                name="follow registrations",
            )
            while not following.done():
                name = await changed.get()
                self._registration_changed(name, group=group, clusters=clusters)
                changed.done(name)

    def _registration_changed(self, name: str, *, group: asyncio.TaskGroup, clusters: Clusters) -> None:
        found = self._registrations.store.get(("", name))
        if found is not None and _unanswered(found):
            return
        try:
            wanted = self._resolve(found) if found is not None else None
        except ValidationError as error:
            log.warning("registration %s makes no sense, what is engaged stays: %s", name, error)
            return
        if name in self._followers and wanted == self._wanted.get(name):
            return
        previous = self._followers.pop(name, None)
        if previous is not None:
            previous.cancel()
        self._wanted.pop(name, None)
        if wanted is not None:
            self._wanted[name] = wanted
        self._followers[name] = group.create_task(
            self._follow(name, wanted, after=previous, clusters=clusters), name=f"follow {name}"
        )

    async def _follow(
        self, name: str, wanted: _Wanted | None, *, after: asyncio.Task[None] | None, clusters: Clusters
    ) -> None:
        """Bring about what is wanted for one registration and keep it current; for each name one such task at once."""
        if after is not None:
            await asyncio.wait([after])
        if wanted is None:
            await clusters.remove(name)
            if self._followers.get(name) is asyncio.current_task():
                del self._followers[name]
            return
        latest = asyncio.Event()
        backoff = Backoff(initial_seconds=0.5, maximum_seconds=30.0)
        secrets = Reflector(self._client, SECRETS, namespace=wanted.namespace, name=wanted.secret)
        async with asyncio.TaskGroup() as group:
            group.create_task(secrets.run(lambda *_: latest.set()), name=f"follow the Secret of {name}")
            while True:
                await latest.wait()
                latest.clear()
                secret = secrets.store.get((wanted.namespace, wanted.secret))
                if secret is None:
                    log.warning("Secret %s/%s of %s is gone", wanted.namespace, wanted.secret, name)
                    continue
                try:
                    cluster = _cluster(name, wanted, secret)
                except KubeconfigError as error:
                    log.warning("Secret %s/%s of %s: %s", wanted.namespace, wanted.secret, name, error)
                    continue
                try:
                    await clusters.add_or_replace(cluster)
                except Exception:
                    # Of this cluster only: the others do not notice.
                    delay = backoff.next_delay()
                    log.exception("cluster %s cannot be engaged, again in %.1f s", name, delay)
                    await asyncio.sleep(delay)
                    latest.set()
                else:
                    backoff.reset()

    def _resolve(self, found: Mapping[str, Any]) -> _Wanted | None:
        if found["metadata"].get("deletionTimestamp") is not None:
            return None
        status = ControlPlaneRegistration.model_validate(found).status
        secret = status.resolved_controllers_secret_ref or status.resolved_kubeconfig_secret_ref
        services = sorted(service.value for service in status.services if service.lower() in self._services)
        if not status.ready or not services:
            return None
        if secret is None or status.resolved_endpoint is None:
            return None
        attributes = {
            _SERVICES: ",".join(services),
            _CONTROL_PLANE_UID: status.control_plane_uid or "",
            _SECRET: f"{secret.namespace}/{secret.name}",
        }
        if status.controllers is not None:
            attributes[PROFILE_ATTRIBUTE] = status.controllers.profile
        return _Wanted(secret.namespace, secret.name, status.resolved_endpoint, tuple(sorted(attributes.items())))


def _unanswered(found: Mapping[str, Any]) -> bool:
    metadata, status = found["metadata"], found.get("status")
    if metadata.get("deletionTimestamp") is not None:
        return False
    return not isinstance(status, Mapping) or status.get("observedGeneration") != metadata.get("generation")


def _cluster(name: str, wanted: _Wanted, secret: Mapping[str, Any]) -> Cluster:
    data: dict[str, bytes] = {}
    for key, value in (secret.get("data") or {}).items():
        try:
            data[key] = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError, TypeError):
            raise KubeconfigError(f"entry {key} is not base64") from None
    kubeconfig = data.pop(KUBECONFIG_KEY, None)
    if kubeconfig is None:
        raise KubeconfigError(f"it has no entry {KUBECONFIG_KEY}")
    config = ClusterConfig.from_kubeconfig(kubeconfig).with_server(wanted.server)
    return Cluster(name, config=config, credentials=data, attributes=dict(wanted.attributes))
