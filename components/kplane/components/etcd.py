"""The etcd of a dedicated control plane, and how API servers reach any etcd."""

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
    components: tuple[str, ...] = ()
    """Names of the members of the etcd where they are components beside the client."""
    namespace: str | None = None
    """Where its pods are, if it is in the same cluster."""


@dataclass(frozen=True, slots=True)
class Membership:
    """Which member of an etcd it is. Of this all but the number counts at its first start only."""

    number: int
    peers: Mapping[int, str]
    """URL of each member that it begins with, itself included."""
    joins: bool
    """Whether it joins an etcd that is there. Otherwise it is the first member of a new one."""

    def arguments(self) -> Sequence[str]:
        """Return the flags of etcd that say so."""
        cluster = ",".join(f"{_member_name(number)}={url}" for number, url in sorted(self.peers.items()))
        return (
            f"--name={_member_name(self.number)}",
            f"--initial-cluster={cluster}",
            *(("--initial-cluster-state=existing",) if self.joins else ()),
            # Clients have certificates of the same CA. Members connect from addresses that theirs does not name.
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
    """Describe a member of etcd, the only one without `membership`, for who has a certificate of `ca` only.

    Without data it begins at revision `begins_at`, where that is given, so that no revision is used again of an etcd
    that it takes the place of; older ones are compacted.

    `server` is its serving certificate, for `address.host`; at `quota_bytes` it refuses writes; `reached_by` names the
    components that use it, `peers` those of the other members. Health and metrics are plain HTTP on a port of their
    own: they tell no data. `storage` is the volume for the data, None for that of the runtime's settings.
    """
    # Here, because it loads grpc, which a cluster for tests without control planes does not need.
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
            # The CA signs clients too, and access control holds for no peer. Alone it has none.
            *_tls_arguments("peer-", ca="ca.crt" if membership is not None else "server.crt"),
            # It speaks to etcd with the server's certificate, and clients of etcd's API have no use for it.
            "--enable-grpc-gateway=false",
            f"--quota-backend-bytes={quota_bytes}",
            # More than an API server writes, so that a copy has room for its conditions.
            f"--max-request-bytes={MAX_REQUEST_BYTES}",
            "--auto-compaction-mode=periodic",
            f"--auto-compaction-retention={_COMPACTION_RETENTION}",
            "--log-level=warn",
        ),
        files={
            "ca.crt": File(ca),
            # etcd reads these at every handshake, so that a renewal ends no connection.
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
        reaches=tuple(Reach(port=address.ports[_PEER_PORT], component=each) for each in peers),
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
    """Return the size at which an etcd refuses writes, well before its volume is full."""
    return min(DEFAULT_QUOTA_BYTES, volume_bytes * 3 // 4)


def quota_of(home: Home, *, usual: int) -> int:
    """Return the quota of the etcd of a home of mode Dedicated, in bytes; `usual` counts without a size in the home."""
    size = home.volume.size if home.volume is not None else None
    return quota_on(int(quantity(size))) if size is not None else usual


def client_url(address: Address) -> str:
    """URL under which API servers reach an etcd."""
    return f"https://{address.host}:{address.ports[CLIENT_PORT]}"


def peer_url(address: Address) -> str:
    """URL under which other members reach a member."""
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
