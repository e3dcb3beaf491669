"""Sources of the control planes that get instances: registrations or endpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from kplane.api import RegistrationMode
from kplane.mcm.describe.kinds import SERVICES
from kplane.mcm.errors import ConfigurationError
from kplane.mcm.source.one_per_server import Age
from kplane.provider import Client, Provider, ProviderError, Resource
from kplane.provider.cache.selectors import parse_label_selector
from kplane.provider.client.resources import DNS_SUBDOMAIN
from kplane.provider.providers.kplane import (
    ENDPOINTS,
    REGISTRATIONS,
    EndpointProvider,
    RegistrationProvider,
    SecretTemplate,
)

__all__ = ["ClusterFeed", "Source", "SourceKind"]

_TEMPLATE: Final = "--cluster-kubeconfig-secret-template"
_SCOPE: Final = "--cluster-namespace-scope"
_SELECTOR: Final = "--cluster-selector"
_REGISTRATION: Final = "--registration"


class SourceKind(StrEnum):
    """Kind of the objects in the management cluster that stand for control planes."""

    REGISTRATIONS = "controlplaneregistration"
    """Registrations that controlplane-operator resolved. mcm writes their status."""
    ENDPOINTS = "controlplaneendpoint"
    """Endpoints, with credentials in Secrets whose names derive from the endpoint. mcm does not write their status."""

    @property
    def plural(self) -> str:
        """Short plural name of the objects."""
        return "registrations" if self is SourceKind.REGISTRATIONS else "endpoints"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFeed:
    """Provider of the clusters of a source, and functions that read the objects of the source."""

    provider: Provider
    synced: Callable[[], bool]
    """Returns whether all objects have been read once."""
    unused: Callable[[Callable[[str], bool]], bool]
    """Returns whether no object names an instance, among the objects that the argument selects by name.

    False for objects whose status mcm does not write. Raises ProviderError until all registrations have been read.
    """
    look_again: Callable[[], None]
    """Reads all objects again; to be called when the clusters that this mcm owns have changed."""
    registrations: RegistrationProvider | None
    """Provider, if the source is registrations."""
    endpoints: EndpointProvider | None
    """Provider, if the source is endpoints."""
    resource: Resource
    """Kind of the objects."""
    seen: Callable[[str], Mapping[str, Any] | None]
    """Returns the last seen version of an object, by the name of its cluster."""

    def age(self, name: str) -> Age:
        """Return the age of an object; an unknown object is younger than all others."""
        metadata = (self.seen(name) or {}).get("metadata", {})
        return str(metadata.get("creationTimestamp", "~")), self.uid(name) or name

    def uid(self, name: str) -> str | None:
        """Return the uid of an object; None if the object is unknown."""
        metadata = (self.seen(name) or {}).get("metadata", {})
        return str(metadata["uid"]) if "uid" in metadata else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Source of control planes. Only endpoints have `secrets`."""

    kind: SourceKind
    secrets: SecretTemplate | None
    selector: str | None
    """Label selector as in the Kubernetes API; None: all objects of the kind."""
    registration: str | None = None
    """Name of the only registration, of mode Dedicated; None: this mcm serves registrations of mode Shared."""

    @property
    def mode(self) -> RegistrationMode:
        """Mode of the registrations that mcm serves."""
        return RegistrationMode.DEDICATED if self.registration is not None else RegistrationMode.SHARED

    @classmethod
    def of(
        cls,
        kind: SourceKind,
        *,
        template: str | None,
        scope: str | None,
        selector: str | None,
        registration: str | None,
    ) -> Source:
        """Create the source from the flags. Raises ConfigurationError if the flags do not fit together."""
        if registration is not None:
            _check_alone(registration, kind=kind, selector=selector)
        try:
            parse_label_selector(selector or "")
            if kind is SourceKind.ENDPOINTS:
                return cls(kind=kind, secrets=_template(template, scope=scope), selector=selector or None)
        except ProviderError as error:
            raise ConfigurationError(str(error)) from error
        for flag, value in ((_TEMPLATE, template), (_SCOPE, scope)):
            if value is not None:
                raise ConfigurationError(
                    f"{flag} is for --cluster-source={SourceKind.ENDPOINTS}: the status of a registration names the"
                    " namespace and the name of its Secret. Leave it out; --cluster-selector chooses registrations"
                )
        return cls(kind=kind, secrets=None, selector=selector or None, registration=registration)

    def follow(self, client: Client, *, mine: Callable[[str], bool] = lambda _name: True) -> ClusterFeed:
        """Create the provider. `client` is a client of the management cluster, and belongs to the caller.

        The provider reads Secrets only of clusters for which `mine` returns True, by their names.
        """
        if self.secrets is not None:
            endpoints = EndpointProvider(client, secrets=self.secrets, label_selector=self.selector, mine=mine)
            return ClusterFeed(
                provider=endpoints,
                synced=endpoints.has_synced,
                unused=lambda _among: False,
                look_again=endpoints.look_again,
                registrations=None,
                endpoints=endpoints,
                resource=ENDPOINTS,
                seen=endpoints.endpoint,
            )
        registrations = RegistrationProvider(
            client,
            services=SERVICES,
            label_selector=self.selector,
            mode=self.mode,
            object_name=self.registration,
            mine=mine,
        )
        return ClusterFeed(
            provider=registrations,
            synced=registrations.has_synced,
            unused=lambda among: _unused(registrations, among=among),
            look_again=registrations.look_again,
            registrations=registrations,
            endpoints=None,
            resource=REGISTRATIONS,
            seen=registrations.registration,
        )


def _unused(registrations: RegistrationProvider, *, among: Callable[[str], bool]) -> bool:
    if not registrations.has_synced():
        raise ProviderError("the registrations have not been read yet")
    candidates = (registrations.registration(name) for name in registrations.names() if among(name))
    return all(((candidate or {}).get("status") or {}).get("instance") is None for candidate in candidates)


def _check_alone(registration: str, *, kind: SourceKind, selector: str | None) -> None:
    if DNS_SUBDOMAIN.fullmatch(registration) is None:
        raise ConfigurationError(f"{_REGISTRATION} {registration!r} cannot be the name of a registration")
    if kind is not SourceKind.REGISTRATIONS:
        raise ConfigurationError(f"{_REGISTRATION} is for --cluster-source={SourceKind.REGISTRATIONS}: leave one out")
    if selector is not None:
        raise ConfigurationError(f"{_SELECTOR} chooses among many, and {_REGISTRATION} names one: leave one out")


def _template(text: str | None, *, scope: str | None) -> SecretTemplate:
    if text is None:
        raise ConfigurationError(
            f"--cluster-source={SourceKind.ENDPOINTS} needs {_TEMPLATE}, which says where the kubeconfig of an endpoint"
            " is, such as kplane-cp-{name}/controlplane-{name}-controllers"
        )
    return SecretTemplate(text, namespace_scope=scope)
