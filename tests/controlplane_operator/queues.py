"""Takes keys from a work queue as a worker does."""

from __future__ import annotations

import asyncio

from kplane.controlplane_operator.watch.cache import Key
from kplane.provider.controllers.queue import FairQueue


async def taken(queue: FairQueue[Key]) -> Key:
    """Wait for the next key. The caller must call `queue.done(key)` afterwards."""
    ready = asyncio.Event()
    queue.on_ready(ready.set)
    try:
        while (key := queue.take()) is None:
            await ready.wait()
            ready.clear()
        return key
    finally:
        queue.on_ready(None)
