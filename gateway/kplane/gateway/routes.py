"""Routes: control planes as the gateway serves them."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Self
from urllib.parse import urlsplit

import orjson
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from kplane.api.clocks import is_future
from kplane.api.control_plane import RESERVED_CLUSTER_PATHS, is_cluster_path
from kplane.gateway.errors import RouteInvalid
from kplane.gateway.tokens import TokenTrust

__all__ = ["FrontProxy", "Hold", "KeyPair", "Limits", "Route", "Sleep", "Upstream", "clusters_path"]

_LONGEST_HOST: Final = 253
_KEY: Final = re.compile("[a-z0-9][-a-z0-9]{0,62}")
_HOST_NAME: Final = re.compile("[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_HTTPS_PORT: Final = 443
_LIMITS: Final = {
    "requests_in_flight": "requestsInFlight",
    "requests_per_second": "requestsPerSecond",
    "request_bytes": "requestBytes",
    "request_idle_seconds": "requestIdleSeconds",
}
"""Fields of `Limits`, with their names in a ControlPlaneClass and in the operator's Secret."""
_UNBOUNDED: Final = 1 << 32
REQUEST_IDLE_SECONDS: Final = 60
"""Default of `Limits.request_idle_seconds`: the time limit of kube-apiserver for a mutating request."""


def clusters_path(cluster_path: str) -> str:
    """Return the path under which the gateway serves a control plane, without a slash at the end."""
    return f"/clusters/{cluster_path}/control-plane"


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Certificate and its private key (PEM)."""

    certificate: bytes
    key: bytes = field(repr=False)

    def check(self) -> None:
        """Raise RouteInvalid if certificate or key cannot be read, or if they do not match."""
        try:
            certificate = x509.load_pem_x509_certificate(self.certificate)
            key = load_pem_private_key(self.key, password=None)
        except (TypeError, ValueError) as error:
            raise RouteInvalid(f"the certificate of the gateway or its key cannot be read: {error}") from error
        if certificate.public_key() != key.public_key():
            raise RouteInvalid("the certificate of the gateway and its key do not belong together")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontProxy:
    """Front proxy: the gateway as an API server trusts it to name the users of client certificates."""

    certificate: KeyPair
    """Front-proxy certificate. With it, the API server accepts X-Remote-User and X-Remote-Group from the gateway."""
    client_ca: bytes
    """CAs of the users' certificates (PEM): the CAs of this control plane alone."""

    def check(self) -> None:
        """Raise RouteInvalid if a field is damaged."""
        self.certificate.check()
        _check_authorities(self.client_ca, of="users")


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """API server of a control plane."""

    host: str
    """IP address, or host name that the gateway's machine can resolve."""
    port: int
    ca: bytes
    """CAs of the serving certificate (PEM). Empty for a route with a `host`, whose clients verify the certificate."""
    front_proxy: FrontProxy | None = None
    """Front proxy; None if the gateway passes on no users of client certificates."""
    trust: TokenTrust = field(default_factory=TokenTrust)
    """Tokens that the API server accepts."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return self.host, self.port

    @classmethod
    def at(cls, url: str, *, ca: bytes, front_proxy: FrontProxy | None = None, trust: TokenTrust | None = None) -> Self:
        """Return the API server at an https URL.

        Raises RouteInvalid if the URL has a path, or if an argument is damaged.
        """
        host, port = _address(url)
        upstream = cls(host=host, port=port, ca=ca, front_proxy=front_proxy, trust=trust or TokenTrust())
        upstream.check()
        return upstream

    @classmethod
    def behind(cls, url: str) -> Self:
        """Return the API server at an https URL, for a route with a `host`.

        Clients speak TLS with this API server, so the gateway needs only its address. Raises RouteInvalid if the URL
        has a path.
        """
        host, port = _address(url)
        upstream = cls(host=host, port=port, ca=b"")
        upstream.check_host()
        return upstream

    @property
    def is_address(self) -> bool:
        """Whether `host` is an IP address, and not a name."""
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return False
        return True

    def check(self) -> None:
        """Raise RouteInvalid if a field is damaged: Envoy would reject the cluster, or accept another server."""
        self.check_host()
        _check_authorities(self.ca, of="the API server")
        if self.front_proxy is not None:
            self.front_proxy.check()

    def check_host(self) -> None:
        """Raise RouteInvalid if `host` is not an IP address or a host name."""
        if not self.is_address and not _HOST_NAME.fullmatch(self.host):
            raise RouteInvalid(f"{self.host!r} cannot be an IP address or the name of a host")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of the use of the gateway by a control plane; None if its class sets no limit."""

    set_by: str = "the gateway"
    """Origin of the limits, for users who exceed a limit."""
    requests_in_flight: int | None = None
    requests_per_second: int | None = None
    request_bytes: int | None = None
    """Maximum body of a mutating request in bytes."""
    request_idle_seconds: int = REQUEST_IDLE_SECONDS
    """Maximum seconds of a mutating request without a byte in either direction."""

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Parse the entry that the operator writes. Raises RouteInvalid if the entry is damaged."""
        try:
            entry = orjson.loads(text)
            name = entry["class"]
            numbers = {field: entry[key] for field, key in _LIMITS.items() if entry.get(key) is not None}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise RouteInvalid(f"the limits of the control plane cannot be read: {error}") from error
        valid = all(type(value) is int and 0 < value < _UNBOUNDED for value in numbers.values())
        if not valid or not isinstance(name, str) or not _HOST_NAME.fullmatch(name):
            raise RouteInvalid("the limits of the control plane are none")
        return cls(set_by=f"ControlPlaneClass {name}", **numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleep:
    """Sleep of a control plane: no API server runs until the gateway requests a wake-up."""

    name: str
    """Name of the ControlPlane object."""
    since: datetime
    requested: datetime | None = None
    """Time of the last wake-up request."""
    crowded: bool = False
    """Whether the wake-up waits until another control plane sleeps, because the maximum number is awake."""
    problem: str = ""
    """Message of condition Ready; empty unless the status is False."""
    failed: bool = False
    """Whether the phase is Failed: the control plane cannot wake up before a person repairs it."""

    def is_asked(self, now: datetime) -> bool:
        """Return whether the end of this sleep was requested already.

        A request with a time in the future does not count.
        """
        return self.requested is not None and self.since < self.requested and not is_future(self.requested, now=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Write hold: mutating requests wait, for example while a control plane moves."""

    until: datetime
    asked: str
    """Value of the annotation that requested the hold. The Lease of the replica repeats this value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Control plane as the gateway serves it."""

    key: str
    """uid of the ControlPlane object. A later control plane with the same path has another uid."""
    cluster_path: str
    upstream: Upstream | None
    """API server; None if there is no API server to connect to."""
    why_absent: str = ""
    """Reason of a missing API server, for users who get 503."""
    asleep: Sleep | None = None
    """Sleep of the control plane, during which requests wait for an API server; None if it is awake."""
    held: Hold | None = None
    limits: Limits = Limits()
    full: bool = False
    """Whether the control plane has reached its storage quota. The gateway then refuses requests that would
    add data.
    """
    host: str = ""
    """Host name that serves the control plane in place of a path: `<clusterPath>.<domain>`. TLS connections to the host
    name pass through the gateway. Empty for a control plane with a path.
    """

    def __post_init__(self) -> None:
        """Raise RouteInvalid if key, path or host name is invalid. They are parts of file names and of patterns.

        Also raises RouteInvalid for an API server without a CA, unless the route has a host name.
        """
        if not _KEY.fullmatch(self.key):
            raise RouteInvalid(f"{self.key!r} cannot be the key of a route")
        path = self.cluster_path
        if not is_cluster_path(path) or path in RESERVED_CLUSTER_PATHS:
            raise RouteInvalid(f"{path!r} cannot be a clusterPath")
        if self.host:
            self._check_host()
        elif self.upstream is not None and not self.upstream.ca:
            raise RouteInvalid("without the CA of its API server, a control plane is not served by path")

    def _check_host(self) -> None:
        """Raise RouteInvalid if the host name does not begin with the clusterPath, which no other control plane has."""
        label, _, domain = self.host.partition(".")
        if label != self.cluster_path or len(self.host) > _LONGEST_HOST or not _HOST_NAME.fullmatch(domain):
            raise RouteInvalid(f"{self.host!r} cannot be a host name of clusterPath {self.cluster_path}")

    @property
    def domain(self) -> str:
        """Part of the host name after the clusterPath; empty without a host name."""
        return self.host.partition(".")[2]

    @property
    def path(self) -> str:
        """Path that serves the control plane, without a slash at the end."""
        return clusters_path(self.cluster_path)


def _address(url: str) -> tuple[str, int]:
    """Return host and port of an API server. Raises RouteInvalid if the URL has any other part."""
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").lower(), parts.port or _HTTPS_PORT
    except ValueError as error:
        raise RouteInvalid(f"{url!r} cannot be the address of an API server: {error}") from error
    if parts.scheme != "https" or not host or parts.path not in {"", "/"} or parts.query or parts.username:
        raise RouteInvalid(f"{url!r} cannot be the address of an API server: https://HOST:PORT is needed")
    return host, port


def _check_authorities(certificates: bytes, *, of: str) -> None:
    try:
        x509.load_pem_x509_certificates(certificates)
    except ValueError as error:
        raise RouteInvalid(f"the CA of {of} cannot be read: {error}") from error
