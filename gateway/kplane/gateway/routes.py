"""What the gateway serves: one route for each control plane."""

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
"""Fields of `Limits`, as the operator names them: as in a ControlPlaneClass."""
_UNBOUNDED: Final = 1 << 32
REQUEST_IDLE_SECONDS: Final = 60
"""As long as kube-apiserver itself works on a request that changes something."""


def clusters_path(cluster_path: str) -> str:
    """Return the path under which the gateway serves a control plane, without a slash at the end."""
    return f"/clusters/{cluster_path}/control-plane"


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its key, PEM."""

    certificate: bytes
    key: bytes = field(repr=False)

    def check(self) -> None:
        """Raise RouteInvalid unless both can be read and belong together."""
        try:
            certificate = x509.load_pem_x509_certificate(self.certificate)
            key = load_pem_private_key(self.key, password=None)
        except (TypeError, ValueError) as error:
            raise RouteInvalid(f"the certificate of the gateway or its key cannot be read: {error}") from error
        if certificate.public_key() != key.public_key():
            raise RouteInvalid("the certificate of the gateway and its key do not belong together")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontProxy:
    """How the gateway tells an API server who a user with a client certificate is."""

    certificate: KeyPair
    """By which the API server knows the gateway, and takes X-Remote-User and X-Remote-Group from it."""
    client_ca: bytes
    """CAs of the users' certificates, PEM: those of this control plane and of no other."""

    def check(self) -> None:
        """Raise RouteInvalid if a part is damaged."""
        self.certificate.check()
        _check_authorities(self.client_ca, of="users")


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """The API server of a control plane."""

    host: str
    """An IP address, or a name that the resolver of the gateway's machine knows."""
    port: int
    ca: bytes
    """CAs of its serving certificate, PEM; empty for a route with a `host`: its clients verify it."""
    front_proxy: FrontProxy | None = None
    """None: the gateway hands on no client certificates."""
    trust: TokenTrust = field(default_factory=TokenTrust)
    """The tokens that it accepts."""

    @property
    def address(self) -> tuple[str, int]:
        """Where it is."""
        return self.host, self.port

    @classmethod
    def at(cls, url: str, *, ca: bytes, front_proxy: FrontProxy | None = None, trust: TokenTrust | None = None) -> Self:
        """Return the API server at an https URL. Raises RouteInvalid if the URL has a path, or what is given is
        damaged."""
        host, port = _address(url)
        upstream = cls(host=host, port=port, ca=ca, front_proxy=front_proxy, trust=trust or TokenTrust())
        upstream.check()
        return upstream

    @classmethod
    def behind(cls, url: str) -> Self:
        """Return the API server at an https URL for a route with a `host`: its clients speak TLS with it, and the
        gateway needs nothing but its address. Raises RouteInvalid if the URL has a path.
        """
        host, port = _address(url)
        upstream = cls(host=host, port=port, ca=b"")
        upstream.check_host()
        return upstream

    @property
    def is_address(self) -> bool:
        """Whether `host` is an IP address, and no name."""
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return False
        return True

    def check(self) -> None:
        """Raise RouteInvalid if a part is damaged: Envoy would reject it, or accept another server."""
        self.check_host()
        _check_authorities(self.ca, of="the API server")
        if self.front_proxy is not None:
            self.front_proxy.check()

    def check_host(self) -> None:
        """Raise RouteInvalid if `host` is none."""
        if not self.is_address and not _HOST_NAME.fullmatch(self.host):
            raise RouteInvalid(f"{self.host!r} cannot be an IP address or the name of a host")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much of the gateway a control plane may use at one time; None where its class does not say."""

    set_by: str = "the gateway"
    """Who limits it, for users who meet a limit."""
    requests_in_flight: int | None = None
    requests_per_second: int | None = None
    request_bytes: int | None = None
    """Of the body of a request that changes something."""
    request_idle_seconds: int = REQUEST_IDLE_SECONDS
    """How long a request that changes something may go without a byte in either direction."""

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Read what the operator writes. Raises RouteInvalid if it is damaged."""
        try:
            found = orjson.loads(text)
            name = found["class"]
            numbers = {field: found[key] for field, key in _LIMITS.items() if found.get(key) is not None}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise RouteInvalid(f"the limits of the control plane cannot be read: {error}") from error
        valid = all(type(value) is int and 0 < value < _UNBOUNDED for value in numbers.values())
        if not valid or not isinstance(name, str) or not _HOST_NAME.fullmatch(name):
            raise RouteInvalid("the limits of the control plane are none")
        return cls(set_by=f"ControlPlaneClass {name}", **numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleep:
    """Of a control plane without an API server, which starts when the gateway asks for it."""

    name: str
    """Of the object that is asked."""
    since: datetime
    requested: datetime | None = None
    """When a wake was asked for last."""
    crowded: bool = False
    """It waits until others sleep: as many control planes are awake as may be."""
    problem: str = ""
    """Why it is not Ready, as its condition says; empty if it is."""
    failed: bool = False
    """It cannot wake before a person acts."""

    def is_asked(self, now: datetime) -> bool:
        """Tell whether the end of this sleep was asked for already."""
        return self.requested is not None and self.since < self.requested and not is_future(self.requested, now=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Has requests wait that change something, for example while a control plane moves."""

    until: datetime
    asked: str
    """As it was asked for: an answer says the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A control plane as the gateway serves it."""

    key: str
    """Unique among all control planes that ever were: the object's uid. A successor of the same path has another."""
    cluster_path: str
    upstream: Upstream | None
    """None: there is no API server to talk to."""
    why_absent: str = ""
    """A sentence for users who get 503."""
    asleep: Sleep | None = None
    """There: no API server is to be relied on, and requests wait until one is."""
    held: Hold | None = None
    limits: Limits = Limits()
    full: bool = False
    """Whether it has reached its storage quota: what would have it keep more is refused."""
    host: str = ""
    """The host name under which it is served, in the place of the path: `<clusterPath>.<domain>`. Its connections pass
    through the gateway as they are. Empty: it is served by its path.
    """

    def __post_init__(self) -> None:
        """Raise RouteInvalid if key, path or host name are no such: they stand in names of files and in patterns."""
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
        """Raise RouteInvalid unless the host name is of this clusterPath, which no other control plane has."""
        label, _, domain = self.host.partition(".")
        if label != self.cluster_path or len(self.host) > _LONGEST_HOST or not _HOST_NAME.fullmatch(domain):
            raise RouteInvalid(f"{self.host!r} cannot be a host name of clusterPath {self.cluster_path}")

    @property
    def domain(self) -> str:
        """What follows the clusterPath in the host name; empty if it has none."""
        return self.host.partition(".")[2]

    @property
    def path(self) -> str:
        """The path under which the control plane is served, without a slash at the end."""
        return clusters_path(self.cluster_path)


def _address(url: str) -> tuple[str, int]:
    """Return host and port of an API server. Raises RouteInvalid unless the URL has nothing else."""
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
