"""Keeps the secrets of a management cluster in a directory."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Final

from kplane.pki.authorities import CONTROLLERS_USER, TenantAuthorities, TenantCertificates
from kplane.pki.kubeconfig import render_kubeconfig
from kplane.pki.primitives import LONG_CLOCK_SKEW, KeyPair, create_authority, issue_client, issue_serving

__all__ = [
    "ADMINISTRATOR_GROUPS",
    "GATEWAY_USER",
    "MCM_USER",
    "OPERATOR_USER",
    "SERVICE_ACCOUNT_GROUPS",
    "Credentials",
    "write_private",
]

_NAMESPACE: Final = "kplane-system"
OPERATOR_USER: Final = f"system:serviceaccount:{_NAMESPACE}:controlplane-operator"
MCM_USER: Final = f"system:serviceaccount:{_NAMESPACE}:mcm"
GATEWAY_USER: Final = f"system:serviceaccount:{_NAMESPACE}:kplane-gateway"
SERVICE_ACCOUNT_GROUPS: Final = ("system:serviceaccounts", f"system:serviceaccounts:{_NAMESPACE}")
ADMINISTRATOR_GROUPS: Final = ("system:masters",)
_ETCD_USER: Final = "kube-apiserver"


def write_private(file: Path, *, content: bytes) -> None:
    """Write a file that only this user may read, atomically."""
    partial = file.with_name(f".{file.name}.partial")
    partial.unlink(missing_ok=True)
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    partial.replace(file)


class Credentials:
    """Keeps the CAs for the life of the directory, so that kubeconfigs stay valid. Issues new certificates.

    The certificates are issued at a start, and not renewed. So they stay valid if the clock is set back afterwards.
    """

    def __init__(self, directory: Path, *, host: str) -> None:
        """Read the files of the directory, and create the missing ones. `host` is the address of all servers.

        Raises OSError, and `kplane.pki.errors.CredentialsInvalid` for a damaged file.
        """
        self.directory = directory
        self.tenants_etcd_directory = directory / "tenants-etcd"
        self._host = host
        self.tenants_etcd_directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.authorities = self._keep_authorities()
        self.tenants_etcd_authority = self._keep_tenants_etcd_authority()
        root = issue_client(self.tenants_etcd_authority, user="root", clock_skew=LONG_CLOCK_SKEW)
        write_private(self.tenants_etcd_directory / "client.crt", content=root.certificate)
        write_private(self.tenants_etcd_directory / "client.key", content=root.key)

    def certificates(self, *, hosts: tuple[str, ...]) -> TenantCertificates:
        """Issue the certificates of the API server, for these hosts, and of its etcd."""
        return TenantCertificates.renewed(
            None,
            authorities=self.authorities,
            hosts=hosts,
            etcd_authority=self.authorities.etcd,
            etcd_user=_ETCD_USER,
            controllers_user=CONTROLLERS_USER,
            etcd_hosts=(self._host,),
            now=dt.datetime.now(dt.UTC),
            clock_skew=LONG_CLOCK_SKEW,
        )

    def controller_manager(self) -> KeyPair:
        """Issue kube-controller-manager's serving certificate."""
        return self._serving(self.authorities.serving, common_name="kube-controller-manager")

    def tenants_etcd(self) -> KeyPair:
        """Issue the serving certificate of the tenants' etcd."""
        return self._serving(self.tenants_etcd_authority, common_name="etcd", client=True)

    def gateway(self) -> Path:
        """Issue the gateway's serving certificate. Returns its directory with the CA, in cert-manager's layout."""
        directory = self.directory / "gateway"
        directory.mkdir(mode=0o700, exist_ok=True)
        authority = _keep_authority(directory, common_name="kplane-gateway")
        server = self._serving(authority, common_name="kplane-gateway", others=("localhost",))
        write_private(directory / "tls.key", content=server.key)
        write_private(directory / "tls.crt", content=server.certificate)
        return directory

    def kubeconfig(self, server: str, *, user: str, groups: tuple[str, ...] = ()) -> bytes:
        """Issue a client certificate for a user of the API server, and render a kubeconfig with it."""
        client = issue_client(self.authorities.client, user=user, groups=groups, clock_skew=LONG_CLOCK_SKEW)
        return render_kubeconfig(server=server, ca=self.authorities.serving.certificate, user=user, client=client)

    def _serving(
        self, authority: KeyPair, *, common_name: str, others: tuple[str, ...] = (), client: bool = False
    ) -> KeyPair:
        """Issue a serving certificate for the address of all servers, and for `others`."""
        hosts = (self._host, *others)
        return issue_serving(authority, common_name=common_name, hosts=hosts, client=client, clock_skew=LONG_CLOCK_SKEW)

    def _keep_authorities(self) -> TenantAuthorities:
        directory = self.directory / "authorities"
        complete = directory / "complete"
        if not complete.exists():
            # CAs of an interrupted attempt have issued no certificate yet, so replacing them is safe.
            directory.mkdir(mode=0o700, exist_ok=True)
            for name, content in TenantAuthorities.create("management").to_secret().items():
                write_private(directory / name, content=content)
            write_private(complete, content=b"")
        return TenantAuthorities.from_secret({file.name: file.read_bytes() for file in directory.iterdir()})

    def _keep_tenants_etcd_authority(self) -> KeyPair:
        return _keep_authority(self.tenants_etcd_directory, common_name="kplane-tenants-etcd")


def _keep_authority(directory: Path, *, common_name: str) -> KeyPair:
    certificate, key = directory / "ca.crt", directory / "ca.key"
    if not certificate.exists():
        # Write the certificate last: if it exists, its key exists.
        authority = create_authority(common_name)
        write_private(key, content=authority.key)
        write_private(certificate, content=authority.certificate)
    return KeyPair(certificate=certificate.read_bytes(), key=key.read_bytes())
