"""The etcd of a dedicated control plane, and how API servers reach any etcd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from controlplane_operator.credentials import KeyPair
from workloads import DATA, FILES, Address, Component, File, Port, Probe

__all__ = ["ETCD_PORTS", "EtcdAccess", "client_url", "etcd_component"]

CLIENT_PORT: Final = "client"
_PEER_PORT: Final = "peer"
_METRICS_PORT: Final = "metrics"
ETCD_PORTS: Final = (CLIENT_PORT, _PEER_PORT, _METRICS_PORT)
"""What `Runtime.reserve` is asked for."""

_QUOTA_BYTES: Final = 8 << 30
_COMPACTION_RETENTION: Final = "5m"


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """How one client reaches an etcd."""

    endpoints: tuple[str, ...]
    ca: bytes
    """CA of the serving certificate, PEM."""
    client: KeyPair
    """Client certificate; where etcd has access control on, its CN is the user."""


def etcd_component(name: str, *, address: Address, ca: bytes, server: KeyPair) -> Component:
    """Describe an etcd of one member, for clients and peers with a certificate of `ca` only.

    `server` is its serving certificate, for `address.host`. Health and metrics are plain HTTP on a port of their own:
    they tell no data.
    """
    client, peer, metrics = (f"{address.host}:{address.ports[port]}" for port in ETCD_PORTS)
    return Component(
        name=name,
        program="etcd",
        args=(
            "--name=member",
            f"--data-dir={DATA}",
            f"--listen-client-urls=https://{client}",
            f"--advertise-client-urls=https://{client}",
            f"--listen-peer-urls=https://{peer}",
            f"--initial-advertise-peer-urls=https://{peer}",
            f"--initial-cluster=member=https://{peer}",
            f"--listen-metrics-urls=http://{metrics}",
            *_tls_arguments(""),
            *_tls_arguments("peer-"),
            f"--quota-backend-bytes={_QUOTA_BYTES}",
            "--auto-compaction-mode=periodic",
            f"--auto-compaction-retention={_COMPACTION_RETENTION}",
            "--log-level=warn",
        ),
        files={
            "ca.crt": File(ca),
            # etcd reads these at every handshake, so that a renewal interrupts nobody.
            "server.crt": File(server.certificate, reloaded=True),
            "server.key": File(server.key, reloaded=True),
        },
        ports=tuple(Port(number=address.ports[port], name=port) for port in ETCD_PORTS),
        data=True,
        readiness=Probe(port=_METRICS_PORT, path="/readyz"),
        grace_seconds=10.0,
    )


def client_url(address: Address) -> str:
    """URL under which API servers reach an etcd."""
    return f"https://{address.host}:{address.ports[CLIENT_PORT]}"


def _tls_arguments(prefix: str) -> Sequence[str]:
    return (
        f"--{prefix}cert-file={FILES}/server.crt",
        f"--{prefix}key-file={FILES}/server.key",
        f"--{prefix}trusted-ca-file={FILES}/ca.crt",
        f"--{prefix}client-cert-auth=true",
    )
