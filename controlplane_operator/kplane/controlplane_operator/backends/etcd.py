"""The etcd of a dedicated control plane, and how API servers reach any etcd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kplane.controlplane_operator.pki.primitives import KeyPair
from kplane.workloads import DATA, FILES, Address, Component, File, Port, Probe, Resources, Scheduling

__all__ = ["DEFAULT_QUOTA_BYTES", "ETCD_PORTS", "EtcdAccess", "client_url", "etcd_component"]

CLIENT_PORT: Final = "client"
_PEER_PORT: Final = "peer"
_METRICS_PORT: Final = "metrics"
ETCD_PORTS: Final = (CLIENT_PORT, _PEER_PORT, _METRICS_PORT)
"""What `Runtime.reserve` is asked for."""

_RESOURCES: Final = Resources(cpu_request="100m", memory_request="128Mi", memory_limit="2Gi")
DEFAULT_QUOTA_BYTES: Final = 8 << 30
"""The most that etcd recommends."""
_COMPACTION_RETENTION: Final = "5m"


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """How one client reaches an etcd."""

    endpoints: tuple[str, ...]
    ca: bytes
    """CA of the serving certificate, PEM."""
    client: KeyPair
    """Client certificate; where etcd has access control on, its CN is the user."""
    component: str | None = None
    """Name of the etcd where it is a component beside the client."""
    namespace: str | None = None
    """Where its pods are, if it is in the same cluster."""


def etcd_component(
    name: str,
    *,
    address: Address,
    ca: bytes,
    server: KeyPair,
    quota_bytes: int = DEFAULT_QUOTA_BYTES,
    reached_by: tuple[str, ...] | None = None,
    scheduling: Scheduling | None = None,
) -> Component:
    """Describe an etcd of one member, for clients with a certificate of `ca` only.

    `server` is its serving certificate, for `address.host`; at `quota_bytes` it refuses writes; `reached_by` names the
    components that use it. Health and metrics are plain HTTP on a port of their own: they tell no data.
    """
    listen = {port: f"{address.listen}:{address.ports[port]}" for port in ETCD_PORTS}
    client, peer = (f"https://{address.host}:{address.ports[port]}" for port in (CLIENT_PORT, _PEER_PORT))
    return Component(
        name=name,
        program="etcd",
        args=(
            "--name=member",
            f"--data-dir={DATA}",
            f"--listen-client-urls=https://{listen[CLIENT_PORT]}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls=https://{listen[_PEER_PORT]}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=member={peer}",
            f"--listen-metrics-urls=http://{listen[_METRICS_PORT]}",
            *_tls_arguments("", ca="ca.crt"),
            # It has no peers. The CA signs clients too, and access control holds for no peer.
            *_tls_arguments("peer-", ca="server.crt"),
            # It speaks to etcd with the server's certificate, and clients of etcd's API have no use for it.
            "--enable-grpc-gateway=false",
            f"--quota-backend-bytes={quota_bytes}",
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
        liveness_path="/livez",
        resources=_RESOURCES,
        scheduling=scheduling,
        reached_by=reached_by,
        grace_seconds=10.0,
    )


def client_url(address: Address) -> str:
    """URL under which API servers reach an etcd."""
    return f"https://{address.host}:{address.ports[CLIENT_PORT]}"


def _tls_arguments(prefix: str, *, ca: str) -> Sequence[str]:
    return (
        f"--{prefix}cert-file={FILES}/server.crt",
        f"--{prefix}key-file={FILES}/server.key",
        f"--{prefix}trusted-ca-file={FILES}/{ca}",
        f"--{prefix}client-cert-auth=true",
    )
