"""URLs of a control plane, derived from a ControlPlaneEndpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from pydantic import TypeAdapter, ValidationError

from kplane.api import (
    RESERVED_CLUSTER_PATHS,
    ControlPlane,
    ControlPlaneEndpoint,
    ControlPlaneMode,
    EndpointAddress,
    EndpointType,
)
from kplane.api.reasons import Reason
from kplane.api.references import HttpsUrl
from kplane.controlplane_operator.status.errors import ConditionError

__all__ = ["Addresses", "addresses_of", "tenant_url", "written_urls"]

_CLUSTERS: Final = "clusters"
_CONTROL_PLANE: Final = "control-plane"
_HTTPS_URL: Final = TypeAdapter[str](HttpsUrl)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Three URLs of a control plane. A missing join URL defaults to the external URL, and that to the internal URL."""

    internal: str
    external: str
    join: str

    def published(self) -> list[EndpointAddress]:
        """Return the URLs as `status.endpoints`."""
        return [
            EndpointAddress(type=EndpointType.INTERNAL, url=self.internal),
            EndpointAddress(type=EndpointType.EXTERNAL, url=self.external),
            EndpointAddress(type=EndpointType.JOIN, url=self.join),
        ]


def addresses_of(endpoint: ControlPlaneEndpoint, *, control_plane: ControlPlane) -> Addresses:
    """Return the URLs of a control plane from an endpoint. URLs in the status take precedence over the spec.

    The URLs of an endpoint that kplane created for this control plane are not changed. The URLs of other endpoints must
    not contain the path of another tenant. For mode Virtual, `/clusters/<clusterPath>/control-plane` is appended if it
    is missing. Raises ConditionError: EndpointPending if there is no URL yet, EndpointInvalid if a URL is invalid, or
    if the endpoint or a URL belongs to another control plane.
    """
    owner = next((ref for ref in endpoint.metadata.owner_references if ref.kind == ControlPlane.resource.kind), None)
    if owner is not None and owner.uid != control_plane.metadata.uid:
        raise ConditionError(
            Reason.ENDPOINT_INVALID,
            f"ControlPlaneEndpoint {endpoint.name} belongs to control plane {owner.name}; name another one",
        )
    urls = written_urls(endpoint)
    # Any user may write an owner into an endpoint. The owner exempts from the check of the path only if kplane runs the
    # API server.
    is_own = owner is not None and control_plane.spec.endpoint_ref is None
    if not is_own:
        of_tenant = [tenant_url(url, cluster_path=control_plane.cluster_path) for url in urls]
        urls = of_tenant if control_plane.home.mode is ControlPlaneMode.VIRTUAL else urls
    return Addresses(*(url.rstrip("/") for url in urls))


def written_urls(endpoint: ControlPlaneEndpoint) -> list[str]:
    """Return the internal, external and join URL of an endpoint, without changes.

    Raises ConditionError: EndpointPending if there is no URL yet, EndpointInvalid if a URL is no https URL. The URLs of
    the status are checked too, because the rules of the CRD for the spec do not apply to the status.
    """
    internal, external, join = (
        _in_force(endpoint, field) for field in ("endpoint", "external_endpoint", "join_endpoint")
    )
    if internal is None:
        raise ConditionError(
            Reason.ENDPOINT_PENDING,
            f"ControlPlaneEndpoint {endpoint.name} has no spec.endpoint (nor status.endpoint) yet",
        )
    external = external or internal
    urls = [internal, external, join or external]
    for url in urls:
        _check(url)
    return urls


def _in_force(endpoint: ControlPlaneEndpoint, field: str) -> str | None:
    observed: str | None = getattr(endpoint.status, field)
    desired: str | None = getattr(endpoint.spec, field)
    current = endpoint.status.observed_generation in (None, endpoint.metadata.generation)
    return observed or desired if current else desired or observed


def tenant_url(url: str, *, cluster_path: str) -> str:
    """Return the URL with the path `/clusters/<clusterPath>/control-plane`, which is appended if it is missing.

    Raises ConditionError (EndpointInvalid) if the URL has the path of another tenant, or if a server could interpret
    the path differently than this function.
    """
    segments = [unquote(segment) for segment in _split(url).path.strip("/").split("/")]
    if segments != [""] and any(segment in {"", ".", ".."} or "/" in segment for segment in segments):
        raise ConditionError(
            Reason.ENDPOINT_INVALID, f"{url}: write the path without empty, '.' and '..' segments and without %2F"
        )
    named = [
        segments[at + 1]
        for at in range(len(segments) - 2)
        if segments[at] == _CLUSTERS and segments[at + 2] == _CONTROL_PLANE
    ]
    foreign = next((name for name in named if name != cluster_path or name in RESERVED_CLUSTER_PATHS), None)
    if foreign is not None:
        raise ConditionError(
            Reason.ENDPOINT_INVALID,
            f"{url} is the address of clusterPath {foreign!r}, and this control plane's is {cluster_path!r};"
            " correct the endpoint's URL",
        )
    return url if named else f"{url.rstrip('/')}/{_CLUSTERS}/{cluster_path}/{_CONTROL_PLANE}"


def _check(url: str) -> None:
    _split(url)
    try:
        _HTTPS_URL.validate_python(url)
    except ValidationError as error:
        cause = error.errors(include_url=False, include_input=False)[0]["msg"].removeprefix("Value error, ")
        raise ConditionError(
            Reason.ENDPOINT_INVALID, f"{url[:200]!r} cannot be an endpoint: {cause}", waits_for_event=True
        ) from error


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:
        raise ConditionError(
            Reason.ENDPOINT_INVALID, f"{url} is no URL: {error}; correct the endpoint's URL"
        ) from error
