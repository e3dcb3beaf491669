"""What a control plane's kube-apiserver may connect to: nothing but its etcd, or what a proxy lets through."""

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
"""A socket that no user can make, because /dev/null is no directory. Users read its name in the API server's error."""
_ADDRESS_TYPES: Final = "--kubelet-preferred-address-types"
"""By default kube-apiserver takes a node's name first, which the proxy may not know."""
_SELECTIONS: Final = ("controlplane", "cluster")
"""All connections but those to etcd. Webhooks by URL are of the first; Services, Pods and Nodes are of the second."""


@dataclass(frozen=True, slots=True)
class ProxyAccess:
    """How an API server uses its proxy."""

    component: str
    host: str
    port: int
    client: KeyPair
    """The certificate that the API server shows."""
    ca: bytes
    """CA of the proxy's certificate, PEM."""
    kubelet_client: KeyPair
    """The certificate that the API server shows to the kubelets behind the proxy."""


@dataclass(frozen=True, slots=True)
class Egress:
    """What an API server connects to besides its etcd."""

    proxy: ProxyAccess | None = None
    """None: nothing."""

    def files(self) -> Mapping[str, File]:
        """Return the files that tell the API server. It reads them once."""
        files = {CONFIGURATION: File(self._configuration(), names_files=True)}
        if self.proxy is not None:
            files |= {
                "egress-ca.crt": File(self.proxy.ca),
                "egress-client.crt": File(self.proxy.client.certificate),
                "egress-client.key": File(self.proxy.client.key),
                # These it reads again.
                "kubelet-client.crt": File(self.proxy.kubelet_client.certificate, reloaded=True),
                "kubelet-client.key": File(self.proxy.kubelet_client.key, reloaded=True),
            }
        return files

    def arguments(self, extra: Sequence[str]) -> Sequence[str]:
        """Return the flags that tell the API server. `extra` are those of its class."""
        arguments = [f"--egress-selector-config-file={FILES}/{CONFIGURATION}"]
        if self.proxy is not None:
            arguments.append(f"--kubelet-client-certificate={FILES}/kubelet-client.crt")
            arguments.append(f"--kubelet-client-key={FILES}/kubelet-client.key")
            if not any(argument.partition("=")[0] == _ADDRESS_TYPES for argument in extra):
                arguments.append(f"{_ADDRESS_TYPES}=InternalIP,ExternalIP,Hostname")
        return arguments

    def reaches(self) -> tuple[Reach, ...]:
        """Return what a NetworkPolicy has to allow."""
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
