"""Raising the revision of an etcd above the revision of another etcd."""

from __future__ import annotations

import pytest

from kplane.data import MOST_RAISED, Client, RevisionTooFar, raise_revision

pytestmark = pytest.mark.integration


async def test_raise_revision_exceeds_number_and_leaves_no_key(client: Client) -> None:
    before = await client.revision()
    new_revision = await raise_revision(client, above=before + 300)
    assert before + 300 < new_revision <= await client.revision()
    assert await client.get(b"/kplane.dev/revision") is None
    # The revision is high enough already, so no key is written.
    revision = await client.revision()
    assert await raise_revision(client, above=new_revision - 1) == revision == await client.revision()


async def test_raise_revision_refuses_large_gap_before_writing(client: Client) -> None:
    before = await client.revision()
    with pytest.raises(RevisionTooFar, match=f"at revision {before}, and has to be above") as caught:
        await raise_revision(client, above=before + MOST_RAISED)
    assert caught.value.lacking == MOST_RAISED + 1
    assert await client.revision() == before
