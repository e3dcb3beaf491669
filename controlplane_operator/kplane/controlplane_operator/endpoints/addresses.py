"""The URLs under which a control plane is reached, taken from a ControlPlaneEndpoint."""

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
    """The three URLs of a control plane, each where its own is not given the next best."""

    internal: str
    external: str
    join: str

    def published(self) -> list[EndpointAddress]:
        """Return them as `status.endpoints`."""
        return [
            EndpointAddress(type=EndpointType.INTERNAL, url=self.internal),
            EndpointAddress(type=EndpointType.EXTERNAL, url=self.external),
            EndpointAddress(type=EndpointType.JOIN, url=self.join),
        ]


def addresses_of(endpoint: ControlPlaneEndpoint, *, control_plane: ControlPlane) -> Addresses:
    """Take a control plane's URLs out of an endpoint: those of the status win, then those of the spec.

    An endpoint that kplane made for this control plane is taken as it is. No other one may have the path of another
    tenant in it; for mode Virtual `/clusters/<clusterPath>/control-plane` is appended where it is missing. Raises
    ConditionError: EndpointPending where there is no URL yet, EndpointInvalid where the endpoint or its URL belongs to
    another control plane, or is no URL.
    """
    owner = next((ref for ref in endpoint.metadata.owner_references if ref.kind == ControlPlane.resource.kind), None)
    if owner is not None and owner.uid != control_plane.metadata.uid:
        raise ConditionError(
            Reason.ENDPOINT_INVALID,
            f"ControlPlaneEndpoint {endpoint.name} belongs to control plane {owner.name}; name another one",
        )
    urls = written_urls(endpoint)
    # Anybody may write an owner into an endpoint: it frees of the path only where kplane runs the API server.
    made = owner is not None and control_plane.spec.endpoint_ref is None
    if not made:
        of_tenant = [tenant_url(url, cluster_path=control_plane.cluster_path) for url in urls]
        urls = of_tenant if control_plane.home.mode is ControlPlaneMode.VIRTUAL else urls
    return Addresses(*(url.rstrip("/") for url in urls))


def written_urls(endpoint: ControlPlaneEndpoint) -> list[str]:
    """Return the URLs of an endpoint, internal, external and join, as they are written.

    Raises ConditionError: EndpointPending where there is none yet, EndpointInvalid where one is no https URL: what is
    in the status was never held to the rules of the spec.
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
    wanted: str | None = getattr(endpoint.spec, field)
    current = endpoint.status.observed_generation in (None, endpoint.metadata.generation)
    return observed or wanted if current else wanted or observed


def tenant_url(url: str, *, cluster_path: str) -> str:
    """Return the URL with `/clusters/<clusterPath>/control-plane` in it, appended where it is missing.

    Raises ConditionError (EndpointInvalid) where the URL names another tenant's path, or is written so that a server
    could read it in another way than we do.
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
        why = error.errors(include_url=False, include_input=False)[0]["msg"].removeprefix("Value error, ")
        raise ConditionError(
            Reason.ENDPOINT_INVALID, f"{url[:200]!r} cannot be an endpoint: {why}", waits_for_event=True
        ) from error


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:
        raise ConditionError(
            Reason.ENDPOINT_INVALID, f"{url} is no URL: {error}; correct the endpoint's URL"
        ) from error
