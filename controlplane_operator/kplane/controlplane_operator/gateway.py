"""Addresses and CAs of the gateway, and the address style of control planes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from cryptography import x509

from kplane.api import ControlPlane, ControlPlaneClass, ControlPlaneMode, EndpointPolicy, EndpointStyle

__all__ = ["Gateway", "asked_policy", "endpoint_style", "host_name", "read_authorities", "wants_host_name"]

_LOCAL_DOMAIN: Final = "localhost"
"""Domain whose names resolve to the machine itself (RFC 6761, section 6.3), but many resolvers do not know them."""


@dataclass(slots=True)
class Gateway:
    """Gateway with a single address for all control planes that it serves."""

    url: str
    """URL without a path and without a trailing slash."""
    ca: bytes
    """Present CAs of its serving certificate; empty until the operator has issued them."""
    namespace: str
    """Namespace of the Secrets with which the gateway reaches control planes."""
    domain: str | None = None
    """Domain of the host names of control planes; None if they have none."""

    def address(self, cluster_path: str) -> str:
        """Return the URL of a control plane with this clusterPath."""
        return f"{self.url}/clusters/{cluster_path}/control-plane"

    def host_address(self, host: str) -> str:
        """Return the URL of a control plane with this host name, with the port of the gateway."""
        port = urlsplit(self.url).port
        return f"https://{host}:{port}" if port is not None else f"https://{host}"

    def connection(self, url: str) -> tuple[str, str | None]:
        """Return the server of a kubeconfig for a published address, and its TLS server name.

        The TLS server name is None if it equals the host of the server. A host name below `localhost` may not resolve,
        so clients connect to the gateway's own address, and send the host name in TLS.
        """
        host = urlsplit(url).hostname or ""
        is_local = self.domain is not None and f".{self.domain}".endswith(f".{_LOCAL_DOMAIN}")
        if is_local and host.endswith(f".{self.domain}") and url == self.host_address(host):
            return self.url, host
        return url, None

    def serves(self, url: str) -> bool:
        """Return whether the gateway terminates TLS for this URL."""
        return url.startswith(f"{self.url}/clusters/")


def endpoint_style(control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> EndpointStyle:
    """Return the style of the address at the gateway, by the spec, or else by the class."""
    style = control_plane.spec.endpoint_style or (chosen.spec.endpoint_style if chosen is not None else None)
    return style or EndpointStyle.PATH


def asked_policy(control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> EndpointPolicy | None:
    """Return the requested addresses, by the spec, or else by the class; None if both request none.

    A control plane of mode Dedicated is at the gateway in three cases only. Its policy requests that, its spec has a
    style, or it was of mode Virtual.
    """
    spec = control_plane.spec
    if spec.endpoint_ref is not None:
        return EndpointPolicy.OWN
    policy = spec.endpoint_policy or (chosen.spec.endpoint_policy if chosen is not None else None)
    if policy is None and control_plane.home.mode is not ControlPlaneMode.VIRTUAL:
        if control_plane.status.cluster_path is not None:
            return None  # it was of mode Virtual, and keeps the address that it had
        return EndpointPolicy.GATEWAY if spec.endpoint_style is not None else EndpointPolicy.OWN
    return policy


def wants_host_name(control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> bool:
    """Return whether a control plane is to be published under a host name."""
    style = endpoint_style(control_plane, chosen=chosen)
    return style is EndpointStyle.HOST_NAME and asked_policy(control_plane, chosen=chosen) is not EndpointPolicy.OWN


def host_name(gateway: Gateway | None, control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> str | None:
    """Return the host name under which a control plane is published; None if it has none.

    The first label is the clusterPath, or the name of a control plane of mode Dedicated.
    """
    if gateway is None or gateway.domain is None or not wants_host_name(control_plane, chosen=chosen):
        return None
    return f"{control_plane.cluster_path}.{gateway.domain}"


def read_authorities(file: Path) -> bytes:
    """Read the CAs of a gateway. Raises OSError, or ValueError if the file has no certificate."""
    content = file.read_bytes()
    try:
        x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise ValueError(f"{file} has no certificate in PEM: {error}") from error
    return content
