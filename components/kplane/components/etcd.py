"""The etcd of a dedicated control plane, and the access of API servers to any etcd."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kplane.api import Home, quantity
from kplane.components.empty_etcd import empty_snapshot
from kplane.pki.authorities import ETCD_SERVER_USER
from kplane.pki.primitives import KeyPair
from kplane.workloads import (
    DATA,
    FILES,
    Address,
    Component,
    File,
    Port,
    Preparation,
    Probe,
    Reach,
    Resources,
    Scheduling,
    Storage,
)

__all__ = [
    "DEFAULT_QUOTA_BYTES",
    "ETCD_PORTS",
    "EtcdAccess",
    "Membership",
    "client_url",
    "etcd_component",
    "peer_url",
    "quota_of",
    "quota_on",
]

CLIENT_PORT: Final = "client"
_PEER_PORT: Final = "peer"
_METRICS_PORT: Final = "metrics"
_EMPTY: Final = "empty.db"
ETCD_PORTS: Final = (CLIENT_PORT, _PEER_PORT, _METRICS_PORT)
"""Ports to reserve with `Runtime.reserve`."""

_RESOURCES: Final = Resources(cpu_request="100m", memory_request="128Mi", memory_limit="2Gi")
DEFAULT_QUOTA_BYTES: Final = 8 << 30
"""Maximum size that etcd recommends, in bytes."""
_COMPACTION_RETENTION: Final = "5m"


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """Access of a client to an etcd."""

    endpoints: tuple[str, ...]
    ca: bytes
    """CA of the serving certificate, PEM."""
    client: KeyPair
    """Client certificate; if etcd has access control on, its CN is the user."""
    components: tuple[str, ...] = ()
    """Names of the etcd's members, if the members are components beside the client."""
    namespace: str | None = None
    """Namespace of the etcd's pods, if the etcd is in the same cluster."""


@dataclass(frozen=True, slots=True)
class Membership:
    """Membership of an etcd member. All fields but the number matter only at the member's first start."""

    number: int
    peers: Mapping[int, str]
    """Peer URL of each initial member, this member included."""
    joins: bool
    """Whether the member joins an existing etcd. Otherwise it is the first member of a new etcd."""

    def arguments(self) -> Sequence[str]:
        """Return the flags of etcd for this membership."""
        cluster = ",".join(f"{_member_name(number)}={url}" for number, url in sorted(self.peers.items()))
        return (
            f"--name={_member_name(self.number)}",
            f"--initial-cluster={cluster}",
            *(("--initial-cluster-state=existing",) if self.joins else ()),
            # Clients have certificates of the same CA, so peers need etcd's own CN. Members connect from addresses that
            # are not in their certificates.
            f"--peer-cert-allowed-cn={ETCD_SERVER_USER}",
            "--peer-skip-client-san-verification=true",
        )


def etcd_component(
    name: str,
    *,
    address: Address,
    ca: bytes,
    server: KeyPair,
    quota_bytes: int = DEFAULT_QUOTA_BYTES,
    reached_by: tuple[str, ...] | None = None,
    scheduling: Scheduling | None = None,
    scheduling_held: bool = False,
    membership: Membership | None = None,
    peers: Sequence[str] = (),
    begins_at: int | None = None,
    storage: Storage | None = None,
) -> Component:
    """Describe a member of etcd that accepts only clients with a certificate of `ca`.

    `server` is the serving certificate, for `address.host`. `quota_bytes` is the size at which etcd refuses writes.
    `reached_by` names the components that use the member, and `peers` the components of the other members. Without
    `membership`, the member is the only one. `storage` is the volume for the data; None means the runtime's default.

    If `begins_at` is given, a member without data begins at this revision, with older revisions compacted. No revision
    of a replaced etcd is then used again. Health and metrics use plain HTTP on a separate port: they reveal no data.
    """
    # The import is here because it loads grpc, which a test cluster without control planes does not need.
    from kplane.data import MAX_REQUEST_BYTES

    listen = {port: f"{address.listen}:{address.ports[port]}" for port in ETCD_PORTS}
    client, peer = client_url(address), peer_url(address)
    alone = ("--name=member", f"--initial-cluster=member={peer}")
    return Component(
        name=name,
        program="etcd",
        args=(
            *(membership.arguments() if membership is not None else alone),
            f"--data-dir={DATA}",
            f"--listen-client-urls=https://{listen[CLIENT_PORT]}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls=https://{listen[_PEER_PORT]}",
            f"--initial-advertise-peer-urls={peer}",
            f"--listen-metrics-urls=http://{listen[_METRICS_PORT]}",
            *_tls_arguments("", ca="ca.crt"),
            # The CA also signs clients, and access control does not apply to peers. A single member has no peers, and
            # trusts only its own certificate.
            *_tls_arguments("peer-", ca="ca.crt" if membership is not None else "server.crt"),
            # The gateway would call etcd with the server's certificate, and clients of etcd's API do not use it.
            "--enable-grpc-gateway=false",
            f"--quota-backend-bytes={quota_bytes}",
            # The limit is above an API server's writes, so that a copy has space for its conditions.
            f"--max-request-bytes={MAX_REQUEST_BYTES}",
            "--auto-compaction-mode=periodic",
            f"--auto-compaction-retention={_COMPACTION_RETENTION}",
            "--log-level=warn",
        ),
        files={
            "ca.crt": File(ca),
            # etcd reads the certificate and key at every handshake, so a renewal ends no connection.
            "server.crt": File(server.certificate, reloaded=True),
            "server.key": File(server.key, reloaded=True),
            **({_EMPTY: File(empty_snapshot())} if begins_at is not None else {}),
        },
        ports=tuple(Port(number=address.ports[port], name=port) for port in ETCD_PORTS),
        data=True,
        storage=storage or Storage(),
        prepare=_beginning(begins_at, membership=membership, peer=peer) if begins_at is not None else None,
        readiness=Probe(port=_METRICS_PORT, path="/readyz"),
        liveness_path="/livez",
        resources=_RESOURCES,
        scheduling=scheduling,
        scheduling_held=scheduling_held,
        reached_by=reached_by,
        operated=True,
        peer_port=_PEER_PORT,
        peers=tuple(peers),
        reaches=tuple(Reach(port=address.ports[_PEER_PORT], component=peer_name) for peer_name in peers),
        metrics_port=_METRICS_PORT,
        grace_seconds=10.0,
    )


def _beginning(revision: int, *, membership: Membership | None, peer: str) -> Preparation:
    name = _member_name(membership.number) if membership is not None else "member"
    return Preparation(
        program="etcdutl",
        args=(
            "snapshot",
            "restore",
            f"{FILES}/{_EMPTY}",
            f"--data-dir={DATA}",
            f"--name={name}",
            f"--initial-cluster={name}={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--bump-revision={revision}",
            "--mark-compacted",
        ),
        creates="member",
    )


def quota_on(volume_bytes: int) -> int:
    """Return the quota for an etcd on a volume, in bytes: etcd refuses writes well before the volume is full."""
    return min(DEFAULT_QUOTA_BYTES, volume_bytes * 3 // 4)


def quota_of(home: Home, *, usual: int) -> int:
    """Return the quota of the etcd of a home of mode Dedicated, in bytes; `usual` if the home sets no volume size."""
    size = home.volume.size if home.volume is not None else None
    return quota_on(int(quantity(size))) if size is not None else usual


def client_url(address: Address) -> str:
    """Return the URL under which API servers reach an etcd."""
    return f"https://{address.host}:{address.ports[CLIENT_PORT]}"


def peer_url(address: Address) -> str:
    """Return the URL under which other members reach a member."""
    return f"https://{address.host}:{address.ports[_PEER_PORT]}"


def _member_name(number: int) -> str:
    return f"member-{number}" if number else "member"


def _tls_arguments(prefix: str, *, ca: str) -> Sequence[str]:
    return (
        f"--{prefix}cert-file={FILES}/server.crt",
        f"--{prefix}key-file={FILES}/server.key",
        f"--{prefix}trusted-ca-file={FILES}/{ca}",
        f"--{prefix}client-cert-auth=true",
    )
