"""The revision of an etcd is raised above another one's."""

from __future__ import annotations

import pytest

from kplane.data import MOST_RAISED, Client, RevisionTooFar, raise_revision

pytestmark = pytest.mark.integration


async def test_it_exceeds_a_number_and_no_key_is_left(client: Client) -> None:
    before = await client.revision()
    raised = await raise_revision(client, above=before + 300)
    assert before + 300 < raised <= await client.revision()
    assert await client.get(b"/kplane.dev/revision") is None
    # It is above already: nothing is written.
    revision = await client.revision()
    assert await raise_revision(client, above=raised - 1) == revision == await client.revision()


async def test_what_would_take_too_long_is_refused_with_the_number_before_anything_is_written(client: Client) -> None:
    before = await client.revision()
    with pytest.raises(RevisionTooFar, match=f"at revision {before}, and has to be above") as refused:
        await raise_revision(client, above=before + MOST_RAISED)
    assert refused.value.lacking == MOST_RAISED + 1
    assert await client.revision() == before
