"""Check whether a StatefulSet starts a pod again after its end."""

from __future__ import annotations

from kplane.provider import Client, NotFound
from kplane.provider.client.resources import STATEFUL_SETS
from kplane.provider.errors import Forbidden

__all__ = ["is_restarted"]


async def is_restarted(client: Client, *, namespace: str, pod: str) -> bool:
    """Return whether the replicas of a StatefulSet include this pod: true after an update, false after a scale-down.

    The function needs the right to `get` the StatefulSet. It returns False for a process that is no such pod, or that
    may not read the StatefulSet.
    """
    name, _, number = pod.rpartition("-")
    if not name or not (number.isascii() and number.isdecimal()):
        return False
    try:
        stateful_set = await client.get(STATEFUL_SETS, name, namespace=namespace)
    except (NotFound, Forbidden):
        return False
    spec = stateful_set["spec"]
    first = (spec.get("ordinals") or {}).get("start", 0)
    if stateful_set["metadata"].get("deletionTimestamp"):
        return False
    return bool(first <= int(number) < first + spec.get("replicas", 1))
