"""Webhook configurations: they tell an API server which requests it asks webhooks about, and how it reaches them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from kplane.provider.client.client import Client
from kplane.provider.client.kinds import KindName
from kplane.provider.client.resources import Resource
from kplane.provider.client.typed import Kind
from kplane.provider.errors import ProviderError
from kplane.provider.webhooks.admission import Operation
from kplane.provider.webhooks.reviews import Object

__all__ = [
    "AdmissionRule",
    "ClientConfig",
    "Entry",
    "at_host",
    "at_service",
    "at_url",
    "configure",
    "host_and_port",
]

ClientConfig = Callable[[str], Object]
"""Returns the clientConfig for a path."""

_SERVICE: Final = re.compile(r"([a-z0-9-]{1,63})/([a-z0-9-]{1,63})")
_SERVICE_HOST: Final = re.compile(r"([a-z0-9-]{1,63})\.([a-z0-9-]{1,63})\.svc")
_LONGEST_SECONDS: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRule:
    """The requests that an API server asks a webhook about, for `Webhooks.configurations`.

    Raises ProviderError for a text in place of a tuple, and for a timeout that no API server accepts.
    """

    operations: tuple[Operation, ...] = ("CREATE", "UPDATE")
    resources: tuple[str, ...] = ()
    """Plurals, and subresources such as `pods/status`; by default the plural of the kind."""
    failure_policy: Literal["Fail", "Ignore"] = "Fail"
    """Result of a request whose webhook fails: refuse it, or carry it out."""
    match_policy: Literal["Equivalent", "Exact"] = "Equivalent"
    """Whether requests for other versions of the kind are converted for the webhook, or pass without it."""
    timeout_seconds: int = 10
    """Time that the API server waits for the answer, from 1 to 30."""
    namespace_selector: Mapping[str, Any] | None = None
    """Selects namespaces by their labels, such as `{"matchLabels": {"team": "a"}}`."""
    object_selector: Mapping[str, Any] | None = None
    """Selects objects by their labels. Users who set the labels can avoid the webhook."""

    def __post_init__(self) -> None:
        if str in map(type, (self.operations, self.resources)):
            raise ProviderError("operations and resources are tuples: write operations=('CREATE',)")
        if not 1 <= self.timeout_seconds <= _LONGEST_SECONDS:
            raise ProviderError(f"timeout_seconds={self.timeout_seconds} is not between 1 and {_LONGEST_SECONDS}")


class Entry(NamedTuple):
    """A webhook in a configuration."""

    path: str
    name: KindName
    kind: Kind[Any]
    rule: AdmissionRule


def at_service(service: str) -> ClientConfig:
    """Reach webhooks through port 443 of a Service, given as `namespace/name`. Raises ProviderError for other texts."""
    match = _SERVICE.fullmatch(service)
    if match is None:
        raise ProviderError(f"service {service!r} is not written as 'namespace/name'")
    namespace, name = match.groups()
    return lambda path: {"service": {"namespace": namespace, "name": name, "port": 443, "path": path}}


def at_url(url: str) -> ClientConfig:
    """Reach webhooks by a URL, which may have a path. Raises ProviderError unless it begins with `https://`."""
    if not url.startswith("https://"):
        raise ProviderError(f"url {url!r} does not begin with 'https://', so no API server uses it")
    return lambda path: {"url": url.rstrip("/") + path}


def at_host(host: str, port: int) -> ClientConfig:
    """Reach webhooks by the Service of a host `NAME.NAMESPACE.svc`, and by a URL for any other host."""
    if (match := _SERVICE_HOST.fullmatch(host)) is not None:
        return at_service(f"{match[2]}/{match[1]}")
    return at_url(f"https://{host_and_port(host, port)}")


def host_and_port(host: str, port: int) -> str:
    """Return an address as in URLs, such as `[::1]:9443`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def configure(
    client: Client, resource: Resource, name: str, entries: Sequence[Entry], reached: ClientConfig
) -> Object:
    """Return a webhook configuration without `caBundle`.

    Kinds that are neither built in nor declared with a plural are looked up. Raises NotServed if the cluster does not
    serve a kind.
    """
    webhooks = [await _webhook(client, entry, reached) for entry in entries]
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": name},
        "webhooks": webhooks,
    }


async def _webhook(client: Client, entry: Entry, reached: ClientConfig) -> Object:
    _, name, kind, rule = entry
    group, _, version = name.api_version.rpartition("/")
    resources = rule.resources or ((await client.resource(kind)).plural,)
    selectors = {"namespaceSelector": rule.namespace_selector, "objectSelector": rule.object_selector}
    return {
        # API servers need three parts at least, as in `deployment.v1.apps`.
        "name": f"{name.kind.lower()}.{version}.{group or 'core'}",
        "clientConfig": reached(entry.path),
        "rules": [
            {
                "apiGroups": [group],
                "apiVersions": [version],
                "resources": [*resources],
                "operations": [*rule.operations],
            }
        ],
        "failurePolicy": rule.failure_policy,
        "matchPolicy": rule.match_policy,
        "sideEffects": "None",
        "timeoutSeconds": rule.timeout_seconds,
        "admissionReviewVersions": ["v1"],
        **{field: dict(selector) for field, selector in selectors.items() if selector is not None},
    }
