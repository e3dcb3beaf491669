"""Provider of ControlPlaneRegistrations, the only objects of the management cluster that mcm follows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from kplane.api import KubernetesVersion, RegistrationMode
from kplane.api.names import API_VERSION, KUBECONFIG_KEY
from kplane.provider.client.client import Client
from kplane.provider.client.resources import Resource
from kplane.provider.cluster.cluster import Cluster
from kplane.provider.contracts import Fleet
from kplane.provider.providers._support.condition import section
from kplane.provider.providers._support.object_backed import (
    KEEP,
    FromSecret,
    Keep,
    Object,
    ObjectBackedProvider,
    ReadKubeconfig,
)
from kplane.provider.providers._support.secret import value_of

__all__ = [
    "CONTROLLERS_ATTRIBUTE",
    "PROFILE_ATTRIBUTE",
    "REGISTRATIONS",
    "SERVICES_ATTRIBUTE",
    "UID_ATTRIBUTE",
    "VERSION_ATTRIBUTE",
    "RegistrationProvider",
    "is_occupied",
    "is_served",
]

log: Final = logging.getLogger(__name__)

REGISTRATIONS: Final = Resource(API_VERSION, "ControlPlaneRegistration", "controlplaneregistrations", namespaced=False)

UID_ATTRIBUTE: Final = "controlPlaneUID"
"""Attribute of a cluster: metadata.uid of the control plane that its registration resolves to; may be empty."""

SERVICES_ATTRIBUTE: Final = "services"
"""Attribute of a cluster: the comma-separated services of its registration, such as Controllers,Scheduler."""

PROFILE_ATTRIBUTE: Final = "profile"
"""Attribute of a cluster: the profile of controllers that its registration resolves to; empty if it names none."""

CONTROLLERS_ATTRIBUTE: Final = "controllers"
"""Attribute of a cluster: the comma-separated controllers of its registration, instead of a profile; may be empty."""

VERSION_ATTRIBUTE: Final = "version"
"""Attribute of a cluster: the minor version of Kubernetes that its API server reports, such as 1.36; empty if unknown.

The attribute omits the patch version, because another value of an attribute makes another cluster.
"""


@dataclass(frozen=True, slots=True)
class _DesiredCluster:
    """Address, Secret and attributes of the cluster of a ready registration."""

    endpoint: str
    namespace: str
    secret: str
    attributes: Mapping[str, str]


class RegistrationProvider:
    """Engages a cluster for every ready registration with a known service, under the registration's name.

    The cluster of a registration is engaged under three conditions: the operator reports `ready` for the current spec
    (`status.observedGeneration`), the registration is not being deleted, and at least one of its services is in
    `services`, ignoring case. The address of the cluster is `status.resolvedEndpoint`. Its credentials come from a
    Secret that the status names: the Secret for controllers, else the Secret for admins. Its attributes are
    controlPlaneUID, services, profile or controllers, and the minor version.

    The engaged cluster stays until the operator reports on a changed spec, and while the Secret is missing or invalid.
    `client` reaches the management cluster, and belongs to the caller.

    With a `mode`, the provider ignores registrations of the other mode, and registrations with an instance of the other
    mode. So after a change of mode the cluster is engaged when that instance has stopped. Without a mode, the provider
    follows both modes, and ignores registrations with an instance of another mode than Shared. With `object_name`, the
    provider follows only the registration of that name, and needs `get` and `watch` on that name only (a ClusterRole
    with `resourceNames`).

    `mine` tells whether this process works on the cluster of a name, if several processes share the fleet. For example,
    it is `may_work` of a coordinator whose listeners call `look_again`. Such a coordinator must divide by shards,
    because the fleet of a process has no clusters of other processes.
    """

    def __init__(
        self,
        client: Client,
        *,
        services: frozenset[str],
        label_selector: str | None = None,
        mode: RegistrationMode | None = None,
        object_name: str | None = None,
        mine: Callable[[str], bool] = lambda _name: True,
    ) -> None:
        self._services = frozenset(service.lower() for service in services)
        self._mode = mode
        self._objects = ObjectBackedProvider(
            client,
            REGISTRATIONS,
            plan=self._plan,
            what="registration",
            label_selector=label_selector,
            object_name=object_name,
            mine=mine,
        )

    @property
    def name(self) -> str:
        """Name for logs and metrics."""
        return "registration"

    def has_synced(self) -> bool:
        """Tell whether the initial list of registrations was read."""
        return self._objects.has_synced()

    def names(self) -> list[str]:
        """Return the names of all observed registrations, served or not."""
        return self._objects.names()

    def registration(self, name: str) -> Object | None:
        """Return a registration as last observed, or None."""
        return self._objects.get(name)

    def listen(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with the name of each registration that is new, changed or gone."""
        self._objects.listen(listener)

    def look_again(self) -> None:
        """Call `mine` for each registration again, and engage or remove its cluster."""
        self._objects.look_again()

    async def run(self, fleet: Fleet) -> None:
        """Follow registrations and their Secrets until cancelled."""
        await self._objects.run(fleet)

    def _plan(self, registration: Object) -> FromSecret | Keep | None:
        name = registration["metadata"]["name"]
        desired = read_desired(registration, services=self._services, mode=self._mode)
        if desired is None or isinstance(desired, Keep):
            return desired

        def make(credentials: Mapping[str, bytes], read: ReadKubeconfig) -> Cluster:
            config = read(value_of(credentials, KUBECONFIG_KEY)).with_server(desired.endpoint)
            return Cluster(name, config=config, credentials=credentials, attributes=desired.attributes)

        return FromSecret(desired.namespace, desired.secret, make)


def is_served(registration: Object, *, mode: RegistrationMode | None) -> bool:
    """Tell whether a service for registrations of this mode (None: of both modes) serves a registration."""
    resolved = section(registration, "status").get("mode")
    return mode is None or (resolved or RegistrationMode.SHARED) == mode


def is_occupied(registration: Object, *, mode: RegistrationMode | None) -> bool:
    """Tell whether a registration may have an instance of another mode than `mode` (None: than Shared)."""
    instance = section(registration, "status").get("instance")
    if instance is None:
        return False
    return (section(instance).get("mode") or RegistrationMode.SHARED) != (mode or RegistrationMode.SHARED)


def read_desired(
    registration: Object | None, *, services: frozenset[str], mode: RegistrationMode | None = None
) -> _DesiredCluster | Keep | None:
    """Return the desired cluster of a registration: a cluster, None for no cluster, or KEEP for no change.

    `services` are lower-case. Every field is checked, because users may write these objects.
    """
    if registration is None:
        return None
    metadata, status = section(registration, "metadata"), section(registration, "status")
    if metadata.get("deletionTimestamp"):
        return None
    if status.get("observedGeneration") != metadata.get("generation"):
        return KEEP
    requested = _texts(status.get("services")) or _texts(section(registration, "spec").get("services"))
    if status.get("ready") is not True or not services.intersection(name.lower() for name in requested):
        return None
    if not is_served(registration, mode=mode):
        return None
    if is_occupied(registration, mode=mode):
        log.info("registration %s: waiting until the instance of the other mode has stopped", metadata.get("name"))
        return None
    reference = section(status, "resolvedControllersSecretRef") or section(status, "resolvedKubeconfigSecretRef")
    endpoint, namespace, secret = status.get("resolvedEndpoint"), reference.get("namespace"), reference.get("name")
    if not (_is_text(endpoint) and _is_text(namespace) and _is_text(secret)):
        log.warning(
            "failed to use registration %s: it is ready, but its status has no endpoint or Secret", metadata.get("name")
        )
        return KEEP
    controllers = section(status, "controllers")
    attributes = {
        UID_ATTRIBUTE: str(status.get("controlPlaneUID") or ""),
        SERVICES_ATTRIBUTE: ",".join(sorted({name.title() for name in requested})),
        PROFILE_ATTRIBUTE: str(controllers.get("profile") or ""),
        CONTROLLERS_ATTRIBUTE: ",".join(_texts(controllers.get("explicit"))),
        VERSION_ATTRIBUTE: _minor_version(status.get("version")),
    }
    return _DesiredCluster(str(endpoint), str(namespace), str(secret), attributes)


def _minor_version(value: object) -> str:
    version = KubernetesVersion.parse(value) if isinstance(value, str) else None
    return f"{version.major}.{version.minor}" if version is not None else ""


def _texts(value: object) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)
