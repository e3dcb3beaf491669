"""Several mcm that share a fleet: each control plane has its instances in one of them at a time."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, Self

from prometheus_client.core import Metric

from kplane.mcm.errors import ConfigurationError
from kplane.provider import Client, ClusterConfig, Sharded
from kplane.provider.contracts import Coordinator
from kplane.provider.coordination.basic import Basic
from kplane.provider.coordination.shards import ShardTimings, object_name, require_prefix
from kplane.provider.serving.metrics import sharding_metrics

__all__ = ["SHARDS", "Sharding", "add_sharding_flags", "coordinating", "shard_metrics"]

SHARDS: Final = 16
"""As many Leases, each of which is written every half of its time; and no more mcm than that have something to do."""
_ON: Final = "--cluster-sharding"
_ID: Final = "--cluster-shard-id"
_NAMESPACE: Final = "--cluster-lease-namespace"
_PREFIX: Final = "--cluster-lease-prefix"
_SECONDS: Final = "--cluster-lease-seconds"
_LEAST_SECONDS: Final = 10
_MOST_SECONDS: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """How this mcm takes part."""

    namespace: str
    """Of the Leases, in the management cluster."""
    identity: str | None = None
    """Of this mcm alone; None: the name of its host, which is that of its pod."""
    prefix: str = "mcm"
    """Of the Leases: those who share a fleet have the same, and nobody else in the namespace has it."""
    lease_seconds: int = 20

    @classmethod
    def parse(cls, given: argparse.Namespace) -> Self | None:
        """Make it of the flags of `add_sharding_flags`; None: this mcm is alone.

        Raises ConfigurationError where they do not go together, or cannot be.
        """
        values = {
            "namespace": given.lease_namespace,
            "identity": given.shard_id,
            "prefix": given.lease_prefix,
            "lease_seconds": given.lease_seconds,
        }
        values = {name: value for name, value in values.items() if value is not None}
        if not given.sharding:
            if values:
                raise ConfigurationError(
                    f"{_ID}, {_NAMESPACE}, {_PREFIX} and {_SECONDS} say how a fleet is shared: give {_ON} too, or leave"
                    " them out"
                )
            return None
        if given.registration is not None:
            raise ConfigurationError(f"--registration names what this mcm alone serves: leave out {_ON}")
        if "namespace" not in values:
            raise ConfigurationError(f"{_ON} needs {_NAMESPACE}, the namespace of the Leases that share the fleet out")
        sharding = cls(**values)
        sharding._check()
        return sharding

    @property
    def timings(self) -> ShardTimings:
        """In the proportions that a coordinator has by default."""
        seconds = self.lease_seconds
        return ShardTimings(
            duration_seconds=seconds,
            renew_seconds=seconds / 2,
            retry_seconds=seconds * 0.0375,
            drain_seconds=seconds / 4,
            peer_seconds=seconds + seconds // 2,
            peer_renew_seconds=seconds / 2,
            probe_seconds=seconds / 4,
        )

    def coordinator(self, client: Client) -> Sharded:
        """Make what takes part. `client` is one of the management cluster, and belongs to the caller."""
        return Sharded(
            client,
            namespace=self.namespace,
            identity=self.identity,
            shards=SHARDS,
            peer_prefix=f"{self.prefix}-peer",
            fence_prefix=f"{self.prefix}-shard",
            timings=self.timings,
        )

    def _check(self) -> None:
        if self.identity is not None and object_name(self.identity) != self.identity:
            raise ConfigurationError(
                f"{_ID} {self.identity!r} becomes part of the name of a Lease: a-z, 0-9, - and . are possible, with a"
                " letter or digit at both ends, 180 at most"
            )
        if not _LEAST_SECONDS <= self.lease_seconds <= _MOST_SECONDS:
            raise ConfigurationError(
                f"{_SECONDS} {self.lease_seconds} has to be from {_LEAST_SECONDS} to {_MOST_SECONDS}"
            )
        try:
            require_prefix(f"{self.prefix}-shard")
        except ValueError as error:
            raise ConfigurationError(f"{_PREFIX}: {error}") from error


@contextlib.asynccontextmanager
async def coordinating(sharding: Sharding | None, *, config: ClusterConfig) -> AsyncIterator[Coordinator]:
    """Give the coordinator of this mcm: alone it works on all clusters."""
    if sharding is None:
        yield Basic()
        return
    # Of its own: a renewal must not wait until registrations are told something.
    async with Client(config, timeout_seconds=sharding.timings.call_seconds) as client:
        yield sharding.coordinator(client)


def shard_metrics(coordinator: Coordinator) -> list[Metric]:
    """Tell what a coordinator does, in the words of Prometheus; one that is alone has nothing to tell."""
    return [*sharding_metrics(coordinator.stats)] if isinstance(coordinator, Sharded) else []


def add_sharding_flags(parser: argparse.ArgumentParser) -> None:
    """Let a parser know the flags that `Sharding.parse` reads."""
    group = parser.add_argument_group("several mcm that share a fleet")
    group.add_argument(
        _ON,
        action="store_true",
        dest="sharding",
        help="share the control planes with the other mcm that have the same Leases; an instance runs only while its"
        " mcm holds the Lease that it is behind (default: this mcm is the only one)",
    )
    group.add_argument(
        _NAMESPACE, dest="lease_namespace", metavar="NAMESPACE", help=f"of the Leases; needed with {_ON}"
    )
    group.add_argument(
        _ID,
        dest="shard_id",
        metavar="ID",
        help="name of this mcm among the others, which no other has (default: the name of the host, which is that of"
        " the pod)",
    )
    group.add_argument(
        _PREFIX,
        dest="lease_prefix",
        metavar="PREFIX",
        help="beginning of the names of the Leases: mcm that share no fleet have different ones (default: mcm)",
    )
    group.add_argument(
        _SECONDS,
        type=_whole,
        dest="lease_seconds",
        metavar="SECONDS",
        help="so long after the sudden death of an mcm others take over its control planes (default: 20)",
    )


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} has to be a whole number of seconds")
    return int(text)
