"""Certificate authorities and keys of a single control plane, and the leaf certificates that they issue."""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Self

from kplane.api.clocks import is_future
from kplane.pki.entries import entries, kept, read_entry, read_pair
from kplane.pki.errors import CredentialsInvalid
from kplane.pki.primitives import (
    CLOCK_SKEW,
    KeyPair,
    create_authority,
    create_signing_key,
    issue_client,
    issue_serving,
    public_key,
    user_of,
    valid_from,
)
from kplane.pki.rotation import Rotation

__all__ = [
    "CONTROLLERS_USER",
    "ENCRYPTION_KEY",
    "ETCD_SERVER_USER",
    "FRONT_PROXY_USER",
    "KUBELET_CLIENT_USER",
    "TenantAuthorities",
    "TenantCertificates",
    "TrustedAuthorities",
]

CONTROLLERS_USER: Final = "kplane:controller-manager"
"""User of the controllers' client certificate; the operator adds the uid of the control plane."""

ENCRYPTION_KEY: Final = "encryption.key"
"""Name of the Secret entry with the key for encryption at rest."""

_ENCRYPTION_BYTES: Final = 32
ETCD_SERVER_USER: Final = "etcd"
"""CN of a dedicated etcd's certificate, which identifies its members to each other."""

FRONT_PROXY_USER: Final = "front-proxy-client"
"""User whose X-Remote-* headers an API server trusts; also in --requestheader-allowed-names."""

KUBELET_CLIENT_USER: Final = "kplane:kube-apiserver"
"""User of an API server at kubelets. No client CA issues its certificate, so the API server itself has no such user."""

_ADMINISTRATOR_USER: Final = "kplane:controlplane-operator"
_ADMINISTRATOR_GROUP: Final = "system:masters"
_ADMINISTRATOR_LIFETIME: Final = dt.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class TrustedAuthorities:
    """CA certificates and a public key (PEM) that are trusted without being used to issue. Empty entries are unused."""

    serving: bytes = b""
    client: bytes = b""
    front_proxy: bytes = b""
    etcd: bytes = b""
    service_account: bytes = b""


@dataclass(frozen=True, slots=True)
class TenantAuthorities:
    """Authorities, ServiceAccount key and encryption key of a control plane. Losing them invalidates its credentials.

    Serving and client certificates come from different authorities, so that a server cannot pose as a user.
    """

    serving: KeyPair
    client: KeyPair
    front_proxy: KeyPair
    etcd: KeyPair
    """CA of a dedicated control plane's own etcd."""
    service_account_key: bytes = field(repr=False)
    encryption_key: bytes = field(repr=False)
    """Key for encryption at rest of the resources that the class selects. A rotation keeps this key, because stored
    data are encrypted with it.
    """
    also_trusted: TrustedAuthorities = TrustedAuthorities()
    """Further trusted authorities during a rotation."""
    rotation: Rotation | None = None
    """The latest rotation; None before the first rotation."""

    @property
    def serving_trust(self) -> bytes:
        """CAs that clients of the API server trust."""
        return _bundle(self.serving.certificate, self.also_trusted.serving)

    @property
    def client_trust(self) -> bytes:
        """CAs whose client certificates the API server accepts."""
        return _bundle(self.client.certificate, self.also_trusted.client)

    @property
    def front_proxy_trust(self) -> bytes:
        """CAs by which extension API servers verify the API server's client certificate."""
        return _bundle(self.front_proxy.certificate, self.also_trusted.front_proxy)

    @property
    def etcd_trust(self) -> bytes:
        """CAs that a dedicated etcd and its clients trust."""
        return _bundle(self.etcd.certificate, self.also_trusted.etcd)

    @property
    def service_account_trust(self) -> bytes:
        """Public keys that verify ServiceAccount tokens."""
        return _bundle(public_key(self.service_account_key), self.also_trusted.service_account)

    @classmethod
    def create(cls, name: str) -> Self:
        """Create all authorities and keys for the control plane of that name."""
        return cls(
            serving=create_authority(_common_name(name, "serving")),
            client=create_authority(_common_name(name, "client")),
            front_proxy=create_authority(_common_name(name, "front-proxy")),
            etcd=create_authority(_common_name(name, "etcd")),
            service_account_key=create_signing_key(),
            encryption_key=secrets.token_bytes(_ENCRYPTION_BYTES),
        )

    @classmethod
    def from_secret(cls, data: Mapping[str, bytes]) -> Self:
        """Read the result of `to_secret`. Raises CredentialsInvalid with the name of a missing or damaged entry."""
        return cls(
            serving=read_pair(data, "serving-ca"),
            client=read_pair(data, "client-ca"),
            front_proxy=read_pair(data, "front-proxy-ca"),
            etcd=read_pair(data, "etcd-ca"),
            service_account_key=_signing_key(data, "sa.key"),
            encryption_key=_encryption_key(data),
        )

    def to_secret(self) -> dict[str, bytes]:
        """Return the data for a Secret that only the operator may read."""
        return {
            **{entry: part for name, pair in self._pairs().items() for entry, part in entries(name, pair).items()},
            "sa.key": self.service_account_key,
            ENCRYPTION_KEY: self.encryption_key,
        }

    def not_yet_valid(self, *, now: dt.datetime) -> dict[str, dt.datetime]:
        """Return the entries with CA certificates that become valid in the future, each with that time."""
        begins = {f"{name}.crt": valid_from(pair.certificate) for name, pair in self._pairs().items()}
        return {name: time for name, time in begins.items() if is_future(time, now=now)}

    def with_valid_authorities(self, *, now: dt.datetime) -> Self:
        """Return a copy with new certificates for the CAs that `not_yet_valid` returns.

        Keys and names of the CAs stay. A leaf certificate therefore verifies against the new CA certificate, and
        against the former one as well once it is valid.
        """
        future = self.not_yet_valid(now=now)

        def valid(name: str, pair: KeyPair) -> KeyPair:
            if f"{name}.crt" not in future:
                return pair
            return create_authority(user_of(pair.certificate), former_key=pair.key)

        pairs = {name: valid(name, pair) for name, pair in self._pairs().items()}
        return replace(
            self,
            serving=pairs["serving-ca"],
            client=pairs["client-ca"],
            front_proxy=pairs["front-proxy-ca"],
            etcd=pairs["etcd-ca"],
        )

    def _pairs(self) -> dict[str, KeyPair]:
        return {
            "serving-ca": self.serving,
            "client-ca": self.client,
            "front-proxy-ca": self.front_proxy,
            "etcd-ca": self.etcd,
        }

    def issue_administrator(self) -> KeyPair:
        """Issue a client certificate of one day for the operator, as administrator of the control plane."""
        return issue_client(
            self.client, user=_ADMINISTRATOR_USER, groups=[_ADMINISTRATOR_GROUP], lifetime=_ADMINISTRATOR_LIFETIME
        )


@dataclass(frozen=True, slots=True)
class TenantCertificates:
    """Leaf certificates of a control plane's programs, stored in a Secret until their renewal is due."""

    api_server: KeyPair
    """The API server's serving certificate."""
    front_proxy: KeyPair
    """The API server's client certificate for extension API servers."""
    etcd_client: KeyPair
    """The API server's client certificate for etcd; its CN is the etcd user."""
    controllers: KeyPair
    """Client certificate of the controllers; its CN is their user."""
    etcd_server: KeyPair | None = None
    """Serving and peer certificate of a dedicated control plane's own etcd."""
    egress_proxy: KeyPair | None = None
    """Serving certificate of the egress proxy. The front-proxy CA issues it, and also `front_proxy` for its client."""
    kubelet_client: KeyPair | None = None
    """The API server's client certificate for kubelets, if an egress proxy leads to them. The serving CA issues it:
    joining nodes get this CA, and accept client certificates of it.
    """

    @classmethod
    def renewed(
        cls,
        previous: Self | None,
        *,
        authorities: TenantAuthorities,
        hosts: Sequence[str],
        etcd_authority: KeyPair,
        etcd_user: str,
        controllers_user: str,
        etcd_hosts: Sequence[str] = (),
        egress_hosts: Sequence[str] = (),
        now: dt.datetime,
        clock_skew: dt.timedelta = CLOCK_SKEW,
    ) -> Self:
        """Return `previous` if no renewal is due; otherwise a copy with new certificates in the place of due ones.

        A certificate is due if two thirds of its life have passed, or its issuer has changed. A serving certificate is
        also due if it lacks a host, and a client certificate if its user differs from the expected user.
        `etcd_authority` signs clients of the etcd in use, shared or dedicated. `etcd_hosts` is empty if the control
        plane has no etcd of its own, and `egress_hosts` if it has no egress proxy. New certificates are valid from
        now - `clock_skew`.
        """
        serving = partial(issue_serving, clock_skew=clock_skew)
        client = partial(issue_client, clock_skew=clock_skew)
        renewed = cls(
            api_server=kept(previous.api_server if previous else None, authorities.serving, now=now, hosts=hosts)
            or serving(authorities.serving, common_name="kube-apiserver", hosts=hosts),
            front_proxy=kept(previous.front_proxy if previous else None, authorities.front_proxy, now=now)
            or client(authorities.front_proxy, user=FRONT_PROXY_USER),
            etcd_client=kept(previous.etcd_client if previous else None, etcd_authority, now=now, user=etcd_user)
            or client(etcd_authority, user=etcd_user),
            controllers=kept(
                previous.controllers if previous else None, authorities.client, now=now, user=controllers_user
            )
            or client(authorities.client, user=controllers_user),
            etcd_server=(
                kept(previous.etcd_server if previous else None, authorities.etcd, now=now, hosts=etcd_hosts)
                or serving(authorities.etcd, common_name=ETCD_SERVER_USER, hosts=etcd_hosts, client=True)
            )
            if etcd_hosts
            else None,
            egress_proxy=(
                kept(previous.egress_proxy if previous else None, authorities.front_proxy, now=now, hosts=egress_hosts)
                or serving(authorities.front_proxy, common_name="egress-proxy", hosts=egress_hosts)
            )
            if egress_hosts
            else None,
            kubelet_client=(
                kept(
                    previous.kubelet_client if previous else None,
                    authorities.serving,
                    now=now,
                    user=KUBELET_CLIENT_USER,
                )
                or client(authorities.serving, user=KUBELET_CLIENT_USER)
            )
            if egress_hosts
            else None,
        )
        return previous if previous is not None and previous == renewed else renewed

    @classmethod
    def from_secret(cls, data: Mapping[str, bytes]) -> Self:
        """Read the result of `to_secret`. Raises CredentialsInvalid with the name of a missing or damaged entry."""
        return cls(
            api_server=read_pair(data, "apiserver"),
            front_proxy=read_pair(data, "front-proxy-client"),
            etcd_client=read_pair(data, "etcd-client"),
            controllers=read_pair(data, "controllers"),
            etcd_server=read_pair(data, "etcd-server") if "etcd-server.crt" in data else None,
            egress_proxy=read_pair(data, "egress-proxy") if "egress-proxy.crt" in data else None,
            kubelet_client=read_pair(data, "kubelet-client") if "kubelet-client.crt" in data else None,
        )

    def to_secret(self) -> dict[str, bytes]:
        """Return the data for a Secret that only the operator may read."""
        return {
            **entries("apiserver", self.api_server),
            **entries("front-proxy-client", self.front_proxy),
            **entries("etcd-client", self.etcd_client),
            **entries("controllers", self.controllers),
            **(entries("etcd-server", self.etcd_server) if self.etcd_server is not None else {}),
            **(entries("egress-proxy", self.egress_proxy) if self.egress_proxy is not None else {}),
            **(entries("kubelet-client", self.kubelet_client) if self.kubelet_client is not None else {}),
        }


def _bundle(*certificates: bytes) -> bytes:
    # The order is fixed: the issuer changes during a rotation, and a different order alone must not restart programs.
    return b"".join(sorted({certificate for certificate in certificates if certificate}))


def _common_name(name: str, role: str) -> str:
    # RFC 5280, 4.1.2.4 and appendix A: each CA has a name of its own, of at most 64 characters.
    return f"kplane-{name[:36]}-{role}-{secrets.token_hex(4)}"


def _encryption_key(data: Mapping[str, bytes]) -> bytes:
    key = read_entry(data, ENCRYPTION_KEY)
    if len(key) != _ENCRYPTION_BYTES:
        raise CredentialsInvalid(f"entry {ENCRYPTION_KEY}: it is not of {_ENCRYPTION_BYTES} bytes")
    return key


def _signing_key(data: Mapping[str, bytes], name: str) -> bytes:
    key = read_entry(data, name)
    try:
        public_key(key)
    except CredentialsInvalid as error:
        raise CredentialsInvalid(f"entry {name}: {error}") from None
    return key
