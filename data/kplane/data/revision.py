"""Raises the revision of an etcd above the revision of another etcd, so that revisions of moved keys only grow."""

from __future__ import annotations

from typing import Final

from kplane.data.client import Client, Delete
from kplane.data.errors import RevisionTooFar
from kplane.data.room import check_room
from kplane.data.tasks import task_group

__all__ = ["MOST_RAISED", "raise_revision", "raised_bytes"]

MOST_RAISED: Final = 300_000
"""Maximum number of revisions that a call raises: about a minute of writes, at a measured 5,000 a second."""

_KEY: Final = b"/kplane.dev/revision"
"""Key of the writes. The key lies outside of the prefixes of control planes, owners and templates."""
_AT_ONCE: Final = 64
_BYTES: Final = 60
"""Size of a revision, in bytes as `Room.has` counts them: about 75 bytes of the database, measured with etcd 3.6."""


def raised_bytes(*, revision: int, above: int) -> int:
    """Return the size of the writes that raise an etcd from a revision above a number, for `Room.has`, in bytes.

    The size counts until a compaction of these revisions.
    """
    return max(0, above + 1 - revision) * _BYTES


async def raise_revision(client: Client, *, above: int) -> int:
    """Raise the revision of an etcd above a number by writes of a small key, and return the revision.

    An interrupted call can be repeated: the revisions that it raised stay. Raises RevisionTooFar before the first write
    if more than `MOST_RAISED` revisions are lacking, and NoRoom if the writes would fill the etcd. Raises DataError.
    """
    revision = await client.revision()
    if (lacking := above + 1 - revision) <= 0:
        return revision
    if lacking > MOST_RAISED:
        raise RevisionTooFar(client.endpoint, revision=revision, above=above, most=MOST_RAISED)
    await check_room(client, size=raised_bytes(revision=revision, above=above))

    async def write() -> None:
        nonlocal revision
        while revision <= above:
            revision = max(revision, await client.put(_KEY, b""))

    async with task_group() as tasks:
        for _ in range(min(_AT_ONCE, lacking)):
            tasks.create_task(write(), name="raise the revision of an etcd")
    await client.apply([Delete(_KEY)])
    return revision
