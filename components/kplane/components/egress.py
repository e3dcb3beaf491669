"""Egress of a control plane's kube-apiserver: only its etcd, or also destinations that a proxy allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from kplane.pki.primitives import KeyPair
from kplane.workloads import FILES, File, Reach

__all__ = ["CONFIGURATION", "Egress", "ProxyAccess"]

CONFIGURATION: Final = "egress.yaml"
"""Name of the file for --egress-selector-config-file."""

_NOWHERE: Final = "/dev/null/allowedDestinations-of-the-class-of-this-control-plane-are-empty"
"""Socket path that cannot exist, because /dev/null is no directory. Users see the path in the API server's error."""
_ADDRESS_TYPES: Final = "--kubelet-preferred-address-types"
"""Flag for the order of addresses. By default kube-apiserver uses a node's name, which the proxy may not resolve."""
_SELECTIONS: Final = ("controlplane", "cluster")
"""All connections except to etcd. Webhooks by URL use `controlplane`; Services, Pods and Nodes use `cluster`."""


@dataclass(frozen=True, slots=True)
class ProxyAccess:
    """Access of an API server to its proxy."""

    component: str
    host: str
    port: int
    client: KeyPair
    """Client certificate of the API server at the proxy."""
    ca: bytes
    """CA of the proxy's certificate, PEM."""
    kubelet_client: KeyPair
    """Client certificate of the API server at the kubelets behind the proxy."""


@dataclass(frozen=True, slots=True)
class Egress:
    """Destinations of an API server besides its etcd."""

    proxy: ProxyAccess | None = None
    """None: the API server has no destination besides etcd."""

    def files(self) -> Mapping[str, File]:
        """Return the configuration files for the API server, which reads them only at its start, with an exception.

        The API server re-reads its client certificate for kubelets.
        """
        files = {CONFIGURATION: File(self._configuration(), names_files=True)}
        if self.proxy is not None:
            files |= {
                "egress-ca.crt": File(self.proxy.ca),
                "egress-client.crt": File(self.proxy.client.certificate),
                "egress-client.key": File(self.proxy.client.key),
                # kube-apiserver re-reads these two files.
                "kubelet-client.crt": File(self.proxy.kubelet_client.certificate, reloaded=True),
                "kubelet-client.key": File(self.proxy.kubelet_client.key, reloaded=True),
            }
        return files

    def arguments(self, extra: Sequence[str]) -> Sequence[str]:
        """Return the flags for the API server. `extra` are the flags of its class."""
        arguments = [f"--egress-selector-config-file={FILES}/{CONFIGURATION}"]
        if self.proxy is not None:
            arguments.append(f"--kubelet-client-certificate={FILES}/kubelet-client.crt")
            arguments.append(f"--kubelet-client-key={FILES}/kubelet-client.key")
            if not any(argument.partition("=")[0] == _ADDRESS_TYPES for argument in extra):
                arguments.append(f"{_ADDRESS_TYPES}=InternalIP,ExternalIP,Hostname")
        return arguments

    def reaches(self) -> tuple[Reach, ...]:
        """Return the connections that a NetworkPolicy has to allow."""
        return () if self.proxy is None else (Reach(port=self.proxy.port, component=self.proxy.component),)

    def _configuration(self) -> bytes:
        configuration = {
            "apiVersion": "apiserver.k8s.io/v1beta1",
            "kind": "EgressSelectorConfiguration",
            "egressSelections": [
                {"name": name, "connection": {"proxyProtocol": "HTTPConnect", "transport": self._transport()}}
                for name in _SELECTIONS
            ],
        }
        return yaml.safe_dump(configuration, sort_keys=False).encode()

    def _transport(self) -> dict[str, Any]:
        if self.proxy is None:
            return {"uds": {"udsName": _NOWHERE}}
        host = f"[{self.proxy.host}]" if ":" in self.proxy.host else self.proxy.host
        tls = {
            "caBundle": f"{FILES}/egress-ca.crt",
            "clientCert": f"{FILES}/egress-client.crt",
            "clientKey": f"{FILES}/egress-client.key",
        }
        return {"tcp": {"url": f"https://{host}:{self.proxy.port}", "tlsConfig": tls}}
