"""Whether a pod of a StatefulSet that ends is started again."""

from __future__ import annotations

from kplane.provider import Client, NotFound
from kplane.provider.client.resources import STATEFUL_SETS
from kplane.provider.errors import Forbidden

__all__ = ["is_restarted"]


async def is_restarted(client: Client, *, namespace: str, pod: str) -> bool:
    """Tell whether a StatefulSet has room for a pod of this name: so after an update, but not after a scale-down.

    It needs `get` on the StatefulSet. A process that is no such pod, or may not read the StatefulSet, gets False.
    """
    name, _, number = pod.rpartition("-")
    if not name or not (number.isascii() and number.isdecimal()):
        return False
    try:
        found = await client.get(STATEFUL_SETS, name, namespace=namespace)
    except (NotFound, Forbidden):
        return False
    spec = found["spec"]
    first = (spec.get("ordinals") or {}).get("start", 0)
    if found["metadata"].get("deletionTimestamp"):
        return False
    return bool(first <= int(number) < first + spec.get("replicas", 1))
