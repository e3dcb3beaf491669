"""References from an object to another object, and text types of several kinds: names, URLs, services."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, StringConstraints

from kplane.api.extensions import ATOMIC_LIST, ATOMIC_MAP, Extension, Rule, rules
from kplane.api.resource import ApiModel

__all__ = [
    "HttpsUrl",
    "NamespaceName",
    "ObjectName",
    "ObjectReference",
    "SecretReference",
    "Service",
    "Services",
    "TypedReference",
    "url_rules",
]

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_HOST: Final = r"([a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?(\.[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?)*|\[[0-9a-fA-F:.]+\])"
_PORT: Final = "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_URL: Final = rf"^https://{_HOST}(:{_PORT})?(/[-A-Za-z0-9._~:+,=]*)*$"
_DOT_SEGMENT: Final = r"/\.\.?(/|$)"

ObjectName = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=rf"^{_LABEL}(\.{_LABEL})*$")]
NamespaceName = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=f"^{_LABEL}$")]


class ObjectReference(ApiModel):
    """Reference to an object of a fixed kind."""

    model_config = ConfigDict(json_schema_extra=ATOMIC_MAP)

    name: ObjectName
    """Name of the object."""


class SecretReference(ApiModel):
    """Reference to a Secret of the management cluster."""

    model_config = ConfigDict(json_schema_extra=ATOMIC_MAP)

    name: ObjectName
    """Name of the Secret."""
    namespace: NamespaceName
    """Namespace of the Secret."""


class TypedReference(ApiModel):
    """Reference to an object of any kind."""

    model_config = ConfigDict(json_schema_extra=ATOMIC_MAP)

    api_group: Annotated[str, StringConstraints(max_length=253)] | None = None
    """API group of the object; absent or empty for the core group."""
    kind: Annotated[str, StringConstraints(min_length=1, max_length=63)]
    """Kind of the object."""
    name: Annotated[str, StringConstraints(min_length=1, max_length=253)]
    """Name of the object."""


class Service(StrEnum):
    """A service of the multicluster controller manager for a control plane.

    Controllers runs kube-controller-manager, Scheduler runs kube-scheduler. Workloads is accepted beside them, for
    compatibility with existing manifests, and has no effect.
    """

    CONTROLLERS = "Controllers"
    SCHEDULER = "Scheduler"
    WORKLOADS = "Workloads"

    @property
    def served(self) -> bool:
        """Whether kplane runs a program for the service."""
        return self is not Service.WORKLOADS


def _normalise_service(value: Any) -> Any:
    return value.capitalize() if isinstance(value, str) and value.islower() else value


_SERVED_SENTENCE: Final = "nothing serves Workloads: name Controllers or Scheduler, or leave the list empty"


def _each_once(services: list[Service]) -> list[Service]:
    if services and not any(service.served for service in services):
        raise ValueError(_SERVED_SENTENCE)
    return list(dict.fromkeys(services))


Services = Annotated[
    list[
        Annotated[
            Service,
            BeforeValidator(_normalise_service),
            Extension({"enum": [*map(str, Service), *(service.lower() for service in Service)]}),
        ]
    ],
    Field(max_length=16),
    AfterValidator(_each_once),
    ATOMIC_LIST,
    Extension(
        rules(
            Rule(
                rule="size(self) == 0 || self.exists(service, !(service in ['Workloads', 'workloads']))",
                message=_SERVED_SENTENCE,
            )
        )
    ),
]
"""Services in the notation of users, `controllers` or `Controllers`; read as `Service`, without duplicates."""


_URL_SENTENCE: Final = (
    "must be an https URL such as https://api.example.com:6443/path; user information, a query and a fragment are not"
    " allowed, put credentials into a Secret"
)
_DOT_SENTENCE: Final = "must not contain the path segments '.' and '..': write the path as the server sees it"


def _https_url(url: str) -> str:
    """Validate a URL by the rules of `url_rules`, for objects that no API server has validated."""
    if not re.fullmatch(_URL, url):
        raise ValueError(f"the URL {_URL_SENTENCE}")
    if re.search(_DOT_SEGMENT, url):
        raise ValueError(f"the URL {_DOT_SENTENCE}")
    return url


HttpsUrl = Annotated[str, StringConstraints(min_length=1, max_length=2048), AfterValidator(_https_url)]


def url_rules(field: str) -> Extension:
    """Return the CEL rules of an `HttpsUrl`; `field` is its path in the object, for the messages."""
    return Extension(
        rules(
            Rule(rule=f"self.matches(r'{_URL}')", message=f"{field} {_URL_SENTENCE}"),
            Rule(rule=f"!self.matches(r'{_DOT_SEGMENT}')", message=f"{field} {_DOT_SENTENCE}"),
        )
    )
