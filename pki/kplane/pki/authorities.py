"""What one control plane needs for life, and the certificates issued from it."""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self

from kplane.api.clocks import is_future
from kplane.pki.entries import entries, kept, read_entry, read_pair
from kplane.pki.errors import CredentialsInvalid
from kplane.pki.primitives import (
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
"""The user that controllers authenticate as by client certificate; the operator adds the control plane's uid."""

ENCRYPTION_KEY: Final = "encryption.key"
"""Name of the entry with the key by which an API server encrypts."""

_ENCRYPTION_BYTES: Final = 32
ETCD_SERVER_USER: Final = "etcd"
"""CN of the certificate of a dedicated etcd, by which its members know each other."""

FRONT_PROXY_USER: Final = "front-proxy-client"
"""Whom an API server believes what it says of users; also in --requestheader-allowed-names."""

KUBELET_CLIENT_USER: Final = "kplane:kube-apiserver"
"""Whom kubelets take an API server for. No client CA issues it, so it is no user of the API server itself."""

_ADMINISTRATOR_USER: Final = "kplane:controlplane-operator"
_ADMINISTRATOR_GROUP: Final = "system:masters"
_ADMINISTRATOR_LIFETIME: Final = dt.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class TrustedAuthorities:
    """What is trusted although it issues nothing: certificates and a public key, PEM; empty where there is none."""

    serving: bytes = b""
    client: bytes = b""
    front_proxy: bytes = b""
    etcd: bytes = b""
    service_account: bytes = b""


@dataclass(frozen=True, slots=True)
class TenantAuthorities:
    """The authorities of a control plane and its ServiceAccount key. Losing them makes its credentials worthless.

    Serving and client certificates come from different authorities, so that a server cannot pose as a user.
    """

    serving: KeyPair
    client: KeyPair
    front_proxy: KeyPair
    etcd: KeyPair
    """Of a dedicated control plane's own etcd."""
    service_account_key: bytes = field(repr=False)
    encryption_key: bytes = field(repr=False)
    """By which the API server encrypts what its class says. It is not exchanged with the others, because data are
    encrypted by it.
    """
    also_trusted: TrustedAuthorities = TrustedAuthorities()
    """The others, while these are being exchanged."""
    rotation: Rotation | None = None
    """The exchange that made these so; None where there was none."""

    @property
    def serving_trust(self) -> bytes:
        """CAs that clients of the API server trust."""
        return _bundle(self.serving.certificate, self.also_trusted.serving)

    @property
    def client_trust(self) -> bytes:
        """CAs whose client certificates the API server takes."""
        return _bundle(self.client.certificate, self.also_trusted.client)

    @property
    def front_proxy_trust(self) -> bytes:
        """CAs whose client certificates extension API servers take for the API server's."""
        return _bundle(self.front_proxy.certificate, self.also_trusted.front_proxy)

    @property
    def etcd_trust(self) -> bytes:
        """CAs that a dedicated etcd and its clients trust."""
        return _bundle(self.etcd.certificate, self.also_trusted.etcd)

    @property
    def service_account_trust(self) -> bytes:
        """Public keys by which ServiceAccount tokens are checked."""
        return _bundle(public_key(self.service_account_key), self.also_trusted.service_account)

    @classmethod
    def create(cls, name: str) -> Self:
        """Create everything anew for the control plane of that name."""
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
        """Read what `to_secret` wrote. Raises CredentialsInvalid with the entry that is missing or damaged."""
        return cls(
            serving=read_pair(data, "serving-ca"),
            client=read_pair(data, "client-ca"),
            front_proxy=read_pair(data, "front-proxy-ca"),
            etcd=read_pair(data, "etcd-ca"),
            service_account_key=_signing_key(data, "sa.key"),
            encryption_key=_encryption_key(data),
        )

    def to_secret(self) -> dict[str, bytes]:
        """Return the data of a Secret that only the operator may read."""
        return {
            **{entry: part for name, pair in self._pairs().items() for entry, part in entries(name, pair).items()},
            "sa.key": self.service_account_key,
            ENCRYPTION_KEY: self.encryption_key,
        }

    def not_yet_valid(self, *, now: dt.datetime) -> dict[str, dt.datetime]:
        """Return the entries with certificates of CAs whose life begins in the future, each with that time."""
        begins = {f"{name}.crt": valid_from(pair.certificate) for name, pair in self._pairs().items()}
        return {name: time for name, time in begins.items() if is_future(time, now=now)}

    def with_valid_authorities(self, *, now: dt.datetime) -> Self:
        """Return a copy in which the certificates of such CAs are issued anew.

        Their keys and names stay. So what the former certificates are trusted for is trusted by the new ones, and by
        the former ones too when their life begins.
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
        """Issue a client certificate of one day for the operator itself, as administrator of the control plane."""
        return issue_client(
            self.client, user=_ADMINISTRATOR_USER, groups=[_ADMINISTRATOR_GROUP], lifetime=_ADMINISTRATOR_LIFETIME
        )


@dataclass(frozen=True, slots=True)
class TenantCertificates:
    """Leaf certificates of a control plane's programs, kept in a Secret so that they stay until they are due."""

    api_server: KeyPair
    """The API server's serving certificate."""
    front_proxy: KeyPair
    """The API server's certificate towards extension API servers."""
    etcd_client: KeyPair
    """The API server's certificate towards etcd; its CN is the etcd user."""
    controllers: KeyPair
    """Client certificate of the controllers; its CN is their user."""
    etcd_server: KeyPair | None = None
    """Serving and peer certificate of a dedicated control plane's own etcd."""
    egress_proxy: KeyPair | None = None
    """Serving certificate of the proxy to what the class allows, of the CA of `front_proxy`, its client."""
    kubelet_client: KeyPair | None = None
    """The API server's certificate towards kubelets, while a proxy leads to them. The serving CA issues it: nodes that
    join are told that CA, and take client certificates of it.
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
    ) -> Self:
        """Return `previous` where nothing is due; else a copy with new certificates in the place of those that are.

        A certificate is due when two thirds of its life have gone, when its issuer is another one now, when a serving
        certificate lacks one of `hosts`, or when one is not for `etcd_user` or `controllers_user`. `etcd_authority`
        signs the clients of the etcd in use, the shared or the own one. `etcd_hosts` is empty where the control plane
        has no etcd of its own, and `egress_hosts` where it has no proxy.
        """
        renewed = cls(
            api_server=kept(previous.api_server if previous else None, authorities.serving, now=now, hosts=hosts)
            or issue_serving(authorities.serving, common_name="kube-apiserver", hosts=hosts),
            front_proxy=kept(previous.front_proxy if previous else None, authorities.front_proxy, now=now)
            or issue_client(authorities.front_proxy, user=FRONT_PROXY_USER),
            etcd_client=kept(previous.etcd_client if previous else None, etcd_authority, now=now, user=etcd_user)
            or issue_client(etcd_authority, user=etcd_user),
            controllers=kept(
                previous.controllers if previous else None, authorities.client, now=now, user=controllers_user
            )
            or issue_client(authorities.client, user=controllers_user),
            etcd_server=(
                kept(previous.etcd_server if previous else None, authorities.etcd, now=now, hosts=etcd_hosts)
                or issue_serving(authorities.etcd, common_name=ETCD_SERVER_USER, hosts=etcd_hosts, client=True)
            )
            if etcd_hosts
            else None,
            egress_proxy=(
                kept(previous.egress_proxy if previous else None, authorities.front_proxy, now=now, hosts=egress_hosts)
                or issue_serving(authorities.front_proxy, common_name="egress-proxy", hosts=egress_hosts)
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
                or issue_client(authorities.serving, user=KUBELET_CLIENT_USER)
            )
            if egress_hosts
            else None,
        )
        return previous if previous == renewed else renewed

    @classmethod
    def from_secret(cls, data: Mapping[str, bytes]) -> Self:
        """Read what `to_secret` wrote. Raises CredentialsInvalid with the entry that is missing or damaged."""
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
        """Return the data of a Secret that only the operator may read."""
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
    # Always in the same order: who issues changes during an exchange, and nothing restarts for a mere order.
    return b"".join(sorted({certificate for certificate in certificates if certificate}))


def _common_name(name: str, role: str) -> str:
    # RFC 5280, 4.1.2.4 and appendix A: another CA has another name, of 64 characters at most.
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
