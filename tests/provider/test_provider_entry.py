"""Objects as bytes: entries keep all fields but managedFields, and invalid input raises a known error."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kplane.provider import ApiError, Unreachable
from kplane.provider.cache.entry import EntryReader
from kplane.provider.client.resources import CONFIG_MAPS
from kplane.provider.errors import Expired

FULL = EntryReader(CONFIG_MAPS, server="https://s")
METADATA = EntryReader(CONFIG_MAPS, server="https://s", metadata_only=True)

words = st.text(max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)
metadata = st.fixed_dictionaries(
    {},
    optional={
        "name": words,
        "namespace": words,
        "uid": words,
        "resourceVersion": words,
        "generation": st.integers(0, 2**40),
        "labels": st.dictionaries(words | st.just("managedFields"), words, max_size=3),
        "annotations": st.dictionaries(words | st.just("managedFields"), words | st.just(',"managedFields":[]')),
        "managedFields": st.lists(values, max_size=3),
    },
)
objects = st.builds(
    lambda found, more, order: dict(sorted({**more, "metadata": found}.items(), reverse=order)),
    metadata,
    st.dictionaries(words | st.just("managedFields"), values, max_size=3),
    st.booleans(),
)


def line(kind, found, *, spaces=False):
    return json.dumps({"type": kind, "object": found}, separators=None if spaces else (",", ":")).encode()


@given(objects, st.booleans(), st.booleans())
def test_entry_keeps_everything_but_managed_fields(found, spaces, raw_text):
    text = line("MODIFIED", found, spaces=spaces) if raw_text else orjson.dumps({"type": "MODIFIED", "object": found})
    kept = {key: value for key, value in found["metadata"].items() if key != "managedFields"}
    whole = {"apiVersion": "v1", "kind": "ConfigMap", **found, "metadata": kept}
    change = FULL.change(text)
    assert FULL.decode(change.entry) == whole
    assert FULL.decode_metadata(change.entry) == kept
    partial = METADATA.change(text).entry
    assert METADATA.decode(partial) == {"apiVersion": "v1", "kind": "ConfigMap", "metadata": kept}
    assert METADATA.decode_metadata(partial) == kept
    for entry in (change.entry, partial):
        assert entry.key == (kept.get("namespace", ""), kept.get("name", ""))
        assert entry.generation == kept.get("generation", 0)
        assert entry.labels == kept.get("labels", {})
        assert not entry.deleting


@pytest.mark.parametrize("before", [True, False])
def test_entry_drops_managed_fields_of_metadata_only(before):
    managed = [{"manager": "m"}]
    other = {"spec": {"a": 1, "managedFields": managed}}
    own = {"metadata": {"name": "a", "managedFields": managed}}
    entry = FULL.change(line("ADDED", {**other, **own} if before else {**own, **other})).entry
    assert FULL.decode(entry) == {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, **other}


@given(objects, st.data())
def test_corrupt_event_yields_entry_or_provider_error(found, data):
    text = bytearray(line("ADDED", found))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        if not text:
            return
    for reader in (FULL, METADATA):
        try:
            change = reader.change(bytes(text))
            assert change.type in {"ADDED", "MODIFIED", "DELETED", "BOOKMARK"}
            assert isinstance(reader.decode(change.entry)["metadata"], dict)
            reader.decode_metadata(change.entry)
        except (Unreachable, ApiError):
            pass


@pytest.mark.parametrize(
    "found",
    [
        b'{"name":1}',
        b'{"namespace":null}',
        b'{"uid":[]}',
        b'{"resourceVersion":5}',
        b'{"labels":{"a":1}}',
        b'{"labels":[]}',
        b'{"generation":"x"}',
        b'{"generation":1e400}',
        b'{"deletionTimestamp":5}',
        b"[]",
        b"null",
        b"[" * 100_000,
    ],
)
def test_invalid_metadata_is_refused(found):
    for reader in (FULL, METADATA):
        with pytest.raises(Unreachable) as caught:
            reader.change(b'{"type":"ADDED","object":{"metadata":%s}}' % found)
        assert caught.value.kind == "protocol"


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"[]",
        b'{"items":[]}',
        b'{"metadata":{},"items":{}}',
        b'{"metadata":{},"items":[1]}',
        b'{"metadata":5}',
    ],
)
def test_invalid_page_is_refused(body):
    for reader in (FULL, METADATA):
        with pytest.raises(Unreachable):
            reader.page(body)


def test_page_with_null_items_is_empty():
    assert FULL.page(b'{"metadata":{"resourceVersion":"5","continue":""},"items":null}') == ([], "5", None)


def test_invalid_utf8_is_refused_on_decode():
    entry = FULL.change(b'{"type":"ADDED","object":{"metadata":{"name":"a"},"data":{"a":"\xff"}}}').entry
    with pytest.raises(Unreachable):
        FULL.decode(entry)
    assert FULL.decode_metadata(entry) == {"name": "a"}


def test_error_event_raises_and_initial_end_bookmark_is_marked():
    with pytest.raises(Expired):
        FULL.change(line("ERROR", {"kind": "Status", "code": 410}))
    for notes, ends in (({"k8s.io/initial-events-end": "true"}, True), ({"a": "b"}, False), (None, False)):
        bookmark = {"metadata": {"resourceVersion": "7", "annotations": notes}}
        for reader in (FULL, METADATA):
            change = reader.change(line("BOOKMARK", bookmark))
            assert (change.type, change.entry.resource_version, change.initial_end) == ("BOOKMARK", "7", ends)
            assert not reader.change(line("ADDED", bookmark)).initial_end


def test_repeated_texts_are_interned_up_to_a_limit():
    one, other = (
        FULL.change(line("ADDED", {"metadata": {"namespace": "some-ns", "labels": {"a": "value"}}})).entry,
    ) * 2
    assert one.namespace is other.namespace
    assert one.labels["a"] is other.labels["a"]
    for number in range(10_000):
        FULL.change(line("ADDED", {"metadata": {"namespace": f"n{number}"}}))
    assert len(FULL._texts) <= 2048


def test_labels_of_entry_are_read_only():
    entry = FULL.change(line("ADDED", {"metadata": {"labels": {"a": "b"}}})).entry
    with pytest.raises(TypeError):
        entry.labels["a"] = "c"
