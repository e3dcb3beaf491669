"""Sharding: several mcm share a fleet, and each control plane has its instances in one of them at a time."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final, Self

from prometheus_client.core import Metric

from kplane.mcm.errors import ConfigurationError
from kplane.mcm.placement.stateful_set import is_restarted
from kplane.provider import Client, ClusterConfig, Sharded
from kplane.provider.contracts import Coordinator
from kplane.provider.coordination.basic import Basic
from kplane.provider.coordination.shards import ShardTimings, object_name, require_prefix
from kplane.provider.serving.metrics import sharding_metrics

__all__ = ["SHARDS", "Sharding", "coordinating", "on_handover", "shard_metrics"]

SHARDS: Final = 16
"""Number of shard Leases, and so the largest number of mcm with work."""
Unused = Callable[[Callable[[str], bool]], bool]
"""Returns whether no cluster has an instance, among the clusters that the argument selects by name."""
_ON: Final = "--cluster-sharding"
_ID: Final = "--cluster-shard-id"
_NAMESPACE: Final = "--cluster-lease-namespace"
_PREFIX: Final = "--cluster-lease-prefix"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """Configuration of the sharing of a fleet with other mcm."""

    namespace: str
    """Namespace of the Leases, in the management cluster."""
    identity: str | None = None
    """Unique name of this mcm in the fleet; None: the host name, which is the name of its pod."""
    prefix: str = "mcm"
    """Prefix of the names of the Leases. All mcm of a fleet share it, and other fleets of the namespace differ."""
    lease_seconds: int = 90
    """Duration of a Lease. The default outlasts an outage of the management API of 60 s, with a renewal before and a
    request after it.
    """

    @classmethod
    def of(cls, *, namespace: str | None, identity: str | None, prefix: str, lease_seconds: int) -> Self:
        """Create the configuration from the flags. Raises ConfigurationError if a value is invalid."""
        if namespace is None:
            raise ConfigurationError(f"{_ON} needs {_NAMESPACE}, the namespace of the Leases that share the fleet out")
        if identity is not None and object_name(identity) != identity:
            raise ConfigurationError(
                f"{_ID} {identity!r} becomes part of the name of a Lease: use a-z, 0-9, - and ., at most 180 of them,"
                " with a letter or digit at both ends"
            )
        try:
            require_prefix(f"{prefix}-shard")
        except ValueError as error:
            raise ConfigurationError(f"{_PREFIX}: {error}") from error
        return cls(namespace=namespace, identity=identity, prefix=prefix, lease_seconds=lease_seconds)

    @property
    def timings(self) -> ShardTimings:
        """Times of renewals and handovers; they shrink in proportion if Leases are shorter than the default."""
        seconds, usual = self.lease_seconds, ShardTimings()
        share = min(1.0, seconds / usual.duration_seconds)
        return ShardTimings(
            duration_seconds=seconds,
            renew_seconds=usual.renew_seconds * share,
            retry_seconds=usual.retry_seconds * share,
            drain_seconds=usual.drain_seconds * share,
            peer_seconds=max(seconds, round(usual.peer_seconds * share)),
            peer_renew_seconds=usual.peer_renew_seconds * share,
            probe_seconds=usual.probe_seconds * share,
        )

    def coordinator(self, client: Client, *, unused: Unused = lambda _among: False) -> Sharded:
        """Create the coordinator. `client` is a client of the management cluster, and belongs to the caller."""
        coordinator = Sharded(
            client,
            namespace=self.namespace,
            identity=self.identity,
            shards=SHARDS,
            peer_prefix=f"{self.prefix}-peer",
            fence_prefix=f"{self.prefix}-shard",
            timings=self.timings,
            returns=lambda: is_restarted(client, namespace=self.namespace, pod=coordinator.identity),
            unused=lambda key: unused(lambda name: coordinator.layout.key_of(name) == key),
        )
        return coordinator


@contextlib.asynccontextmanager
async def coordinating(
    sharding: Sharding | None, *, config: ClusterConfig, unused: Unused = lambda _among: False
) -> AsyncIterator[Coordinator]:
    """Yield the coordinator of this mcm; without sharding, this mcm works on all clusters."""
    if sharding is None:
        yield Basic()
        return
    # A separate client, because a renewal must not wait for writes to registrations.
    async with Client(config, timeout_seconds=sharding.timings.call_seconds, field_manager="kplane") as client:
        yield sharding.coordinator(client, unused=unused)


def on_handover(coordinator: Coordinator, listener: Callable[[], None]) -> None:
    """Call the listener each time that this mcm has acquired or lost control planes."""
    if isinstance(coordinator, Sharded):
        coordinator.listen(listener)
        coordinator.listen_lost(listener)


def shard_metrics(coordinator: Coordinator) -> list[Metric]:
    """Return the Prometheus metrics of the coordinator; none without sharding."""
    return [*sharding_metrics(coordinator.stats)] if isinstance(coordinator, Sharded) else []
