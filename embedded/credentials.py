"""Everything secret of a management cluster, kept in one directory."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import yaml

from controlplane_operator.credentials.pki import KeyPair, issue_client, issue_serving
from embedded.keeping import keep_authority, keep_signing_key, write_private
from provider import ClusterConfig

__all__ = ["MCM_USER", "OPERATOR_USER", "Credentials"]

NAMESPACE: Final = "kplane-system"
OPERATOR_USER: Final = f"system:serviceaccount:{NAMESPACE}:controlplane-operator"
MCM_USER: Final = f"system:serviceaccount:{NAMESPACE}:mcm"
_SERVICE_ACCOUNT_GROUPS: Final = ("system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}")
_HOSTS: Final = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "10.96.0.1")


class Credentials:
    """Authorities that stay for the life of the directory, and certificates that are issued anew at each start."""

    def __init__(self, directory: Path, *, host: str) -> None:
        """Read what is in the directory and make what is missing. Raises OSError and ValueError where that fails."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.directory = directory
        self.tenants_etcd = directory / "tenants-etcd"
        self._host = host
        self._ca = keep_authority(directory / "cluster", name="kplane-management")
        self._front_proxy_ca = keep_authority(directory / "front-proxy", name="kplane-management-front-proxy")
        self._etcd_ca = keep_authority(directory / "etcd", name="kplane-management-etcd")
        self._tenants_etcd_ca = keep_authority(self.tenants_etcd, name="kplane-tenants-etcd")
        self.service_account_key = keep_signing_key(directory / "sa.key")
        root = issue_client(self._tenants_etcd_ca, user="root")
        write_private(self.tenants_etcd / "client.crt", content=root.certificate)
        write_private(self.tenants_etcd / "client.key", content=root.key)

    @property
    def ca(self) -> bytes:
        """CA of the API server and of its clients."""
        return self._ca.certificate

    @property
    def front_proxy_ca(self) -> bytes:
        """CA of what may tell the API server who a user is."""
        return self._front_proxy_ca.certificate

    @property
    def etcd_ca(self) -> bytes:
        """CA of the management etcd and of its clients."""
        return self._etcd_ca.certificate

    @property
    def tenants_etcd_ca(self) -> bytes:
        """CA of the tenants' etcd and of its clients."""
        return self._tenants_etcd_ca.certificate

    def api_server(self) -> KeyPair:
        """Serving certificate of the API server."""
        return issue_serving(self._ca, common_name="kube-apiserver", hosts=(self._host, *_HOSTS))

    def controller_manager(self) -> KeyPair:
        """Serving certificate of kube-controller-manager."""
        return issue_serving(self._ca, common_name="kube-controller-manager", hosts=(self._host,))

    def front_proxy(self) -> KeyPair:
        """The API server's own certificate towards extension API servers."""
        return issue_client(self._front_proxy_ca, user="front-proxy-client")

    def etcd_client(self) -> KeyPair:
        """The API server's certificate towards etcd."""
        return issue_client(self._etcd_ca, user="kube-apiserver")

    def etcd_server(self) -> KeyPair:
        """Serving certificate of the management etcd."""
        return issue_serving(self._etcd_ca, common_name="etcd", hosts=(self._host,), client=True)

    def tenants_etcd_server(self) -> KeyPair:
        """Serving certificate of the tenants' etcd."""
        return issue_serving(self._tenants_etcd_ca, common_name="etcd", hosts=(self._host,), client=True)

    def administrator(self, server: str) -> ClusterConfig:
        """Access as cluster administrator."""
        return self._config(server, user="kubernetes-admin", groups=("system:masters",))

    def controllers(self, server: str) -> ClusterConfig:
        """Access of kube-controller-manager."""
        return self._config(server, user="system:kube-controller-manager")

    def service_account(self, server: str, *, user: str) -> ClusterConfig:
        """Access as one of the ServiceAccounts in our namespace, by the user's full name."""
        return self._config(server, user=user, groups=_SERVICE_ACCOUNT_GROUPS)

    def write_kubeconfig(self, name: str, *, config: ClusterConfig) -> Path:
        """Write a kubeconfig into the directory."""
        file = self.directory / name
        write_private(file, content=kubeconfig(config))
        return file

    def _config(self, server: str, *, user: str, groups: tuple[str, ...] = ()) -> ClusterConfig:
        pair = issue_client(self._ca, user=user, groups=groups)
        return ClusterConfig(server=server, ca_data=self.ca, client_certificate=pair.certificate, client_key=pair.key)


def kubeconfig(config: ClusterConfig) -> bytes:
    """Render a kubeconfig as text."""
    return yaml.safe_dump(config.to_kubeconfig(), sort_keys=False).encode()
