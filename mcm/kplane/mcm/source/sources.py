"""Where mcm finds the control planes that instances run for."""

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
    """Which objects of the management cluster stand for control planes."""

    REGISTRATIONS = "controlplaneregistration"
    """Registrations that controlplane-operator resolved. mcm writes their status."""
    ENDPOINTS = "controlplaneendpoint"
    """Endpoints, with credentials in Secrets whose names follow from theirs. mcm does not write their status."""

    @property
    def plural(self) -> str:
        """What several of them are called, in short."""
        return "registrations" if self is SourceKind.REGISTRATIONS else "endpoints"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFeed:
    """What mcm follows of a source."""

    provider: Provider
    synced: Callable[[], bool]
    """Whether all objects have been read once."""
    unused: Callable[[Callable[[str], bool]], bool]
    """Whether no object says that it has an instance, among those that the argument picks by name.

    For objects that mcm writes no status of, the answer is False. Raises ProviderError until all have been read.
    """
    look_again: Callable[[], None]
    """To be called when other clusters are this mcm's own."""
    registrations: RegistrationProvider | None
    """The provider, if it follows registrations."""
    endpoints: EndpointProvider | None
    """The provider, if it follows endpoints."""
    resource: Resource
    """Kind of the objects."""
    seen: Callable[[str], Mapping[str, Any] | None]
    """An object as it was last seen, by the name of its cluster."""

    def age(self, name: str) -> Age:
        """Return the age of an object; one that is not known is younger than all others."""
        metadata = (self.seen(name) or {}).get("metadata", {})
        return str(metadata.get("creationTimestamp", "~")), self.uid(name) or name

    def uid(self, name: str) -> str | None:
        """Return the uid of an object; None if it is not known."""
        metadata = (self.seen(name) or {}).get("metadata", {})
        return str(metadata["uid"]) if "uid" in metadata else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where control planes are found. Only endpoints have `secrets`."""

    kind: SourceKind
    secrets: SecretTemplate | None
    selector: str | None
    """The API's label selector; None: all objects of the kind."""
    registration: str | None = None
    """The only registration that is served, one of mode Dedicated; None: this mcm is that of many."""

    @property
    def mode(self) -> RegistrationMode:
        """Of the registrations that are served."""
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
        """Make it of the flags. Raises ConfigurationError if they do not go together."""
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
        """Make the provider, which reads by a client of the management cluster that belongs to the caller.

        It reads Secrets only for clusters that are `mine`, by their names.
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
    found = (registrations.registration(name) for name in registrations.names() if among(name))
    return all(((each or {}).get("status") or {}).get("instance") is None for each in found)


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
