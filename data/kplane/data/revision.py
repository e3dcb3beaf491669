"""Raise the revision of an etcd above that of another one, so that revisions of its keys only grow."""

from __future__ import annotations

from typing import Final

from kplane.data.client import Client, Delete
from kplane.data.errors import RevisionTooFar
from kplane.data.tasks import task_group

__all__ = ["MOST_RAISED", "raise_revision"]

MOST_RAISED: Final = 300_000
"""Revisions that one call raises: a minute's writes, at 5,000 a second as measured."""

_KEY: Final = b"/kplane.dev/revision"
"""It lies outside of every prefix of a control plane, owner or template."""
_AT_ONCE: Final = 64


async def raise_revision(client: Client, *, above: int) -> int:
    """Have the revision of an etcd exceed a number by writes of one small key, and return the revision.

    A call that was cut off is repeated: what it raised stays. Raises RevisionTooFar, before anything is written, if
    more than `MOST_RAISED` revisions are lacking, and DataError.
    """
    revision = await client.revision()
    if (lacking := above + 1 - revision) <= 0:
        return revision
    if lacking > MOST_RAISED:
        raise RevisionTooFar(client.endpoint, revision=revision, above=above, most=MOST_RAISED)

    async def write() -> None:
        nonlocal revision
        while revision <= above:
            revision = max(revision, await client.put(_KEY, b""))

    async with task_group() as tasks:
        for _ in range(min(_AT_ONCE, lacking)):
            tasks.create_task(write(), name="raise the revision of an etcd")
    await client.apply([Delete(_KEY)])
    return revision
