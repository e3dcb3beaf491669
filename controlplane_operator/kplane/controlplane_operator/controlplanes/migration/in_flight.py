"""Messages about the writes in flight that delay a hold, as the gateway lists them in its Leases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from kplane.controlplane_operator.controlplanes.gateway_replicas import Replica

__all__ = ["describe_waits"]

_MAX_REPLICAS: Final = 3
_MAX_CHANGES: Final = 3
_MAX_LENGTH: Final = 130
"""Maximum number of characters of a method, path or address. The gateway cuts these values too; a tenant chooses
them."""


def describe_waits(replicas: Iterable[Replica], *, uid: str, now: datetime) -> str:
    """Return a sentence about the control plane's writes in flight at these replicas, with a remedy."""
    replicas = list(replicas)
    reporting = [replica for replica in replicas if replica.in_flight.get(uid)]
    if not reporting:
        names = ", ".join(replica.name for replica in replicas)
        place = f"at replicas {names} of the gateway" if names else "at the gateway"
        return (
            f"{place}, changes are still in flight, or the gateway does not answer; find long changes in the access log"
            " of Envoy there (method, path, client, milliseconds)"
        )
    parts = [f"at replica {replica.name}, {_changes(replica.in_flight[uid], now=now)}" for replica in reporting]
    more = [f"{len(parts) - _MAX_REPLICAS} more replicas have some"] if len(parts) > _MAX_REPLICAS else []
    return f"{'; '.join([*parts[:_MAX_REPLICAS], *more])}; end these clients, or move when their requests have ended"


def _changes(in_flight: Mapping[str, Any], *, now: datetime) -> str:
    count, oldest = int(in_flight.get("count", 0)), list(in_flight.get("oldest") or ())[:_MAX_CHANGES]
    many = f"{count} change{'s are' if count != 1 else ' is'} in flight"
    if not oldest:
        return f"{many}, which began less than some seconds ago"
    more = f", and {count - len(oldest)} more" if count > len(oldest) else ""
    return f"{many}: {', '.join(_change(change, now=now) for change in oldest)}{more}"


def _change(change: Mapping[str, Any], *, now: datetime) -> str:
    method, path, client = (_shown(change.get(field)) for field in ("method", "path", "client"))
    seconds = max(0.0, (now - datetime.fromisoformat(str(change["began"]))).total_seconds())
    return f"{method} {path} of client {client} for {seconds:.0f} s"


def _shown(value: object) -> str:
    return "".join(character if character.isprintable() else "?" for character in str(value)[:_MAX_LENGTH])
