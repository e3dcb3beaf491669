"""Putting keys back to a template, and comparing them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kplane.data import Client, Digest, InvalidPrefix, Put, Template, digest, reset

pytestmark = pytest.mark.integration

OWN = ["masterleases/10.0.0.1", "peerserverleases/x", "leases/kube-system/apiserver-abc"]


async def _write(client: Client, prefix: str, values: dict[str, bytes]) -> None:
    for key, value in values.items():
        await client.put(f"{prefix}{key}".encode(), value)


async def _values(client: Client, prefix: str) -> dict[str, bytes]:
    found = [item async for page in client.pages(prefix) for item in page.items]
    return {item.key.decode().removeprefix(prefix): item.value for item in found}


async def test_keys_are_put_back_and_nothing_else_is_touched(
    client: Client, prefix: str, new_prefix: Callable[[], str]
) -> None:
    kept = {"namespaces/default": b"1", "clusterroles/admin": b"2", "configmaps/events/leases": b"3"}
    await _write(client, prefix, kept)
    beside = {f"{prefix[:-1]}0": b"beside", f"{prefix[:-1]}": b"beside", f"{new_prefix()}key": b"another"}
    await _write(client, "", beside)
    template = await Template.read(client, prefix)
    assert {key.decode(): value for key, value in template.values.items()} == kept
    before = await digest(client, "/tests/")

    left = {
        "namespaces/events": b"left",
        "configmaps/events/left": b"left",
        "leases/shop/lock": b"left",
        "leases/kube-system/lock": b"left",
        "events/shop/one": b"left",
    }
    await _write(client, prefix, left | {"namespaces/default": b"changed"} | {"namespaces/default/": b""})
    await client.delete_prefix(f"{prefix}configmaps/events/")
    await _write(client, prefix, left)
    changed = await reset(client, prefix, template)

    assert await _values(client, prefix) == kept
    assert await digest(client, "/tests/") == before
    assert {key.decode() for key in changed.deleted} == {*left, "namespaces/default/"}
    assert set(changed.put) == {b"namespaces/default", b"configmaps/events/leases"}
    again = await reset(client, prefix, template)
    assert (again.deleted, again.put) == ((), ())


async def test_a_running_api_servers_records_are_left_alone_and_in_no_template(client: Client, prefix: str) -> None:
    await _write(client, prefix, dict.fromkeys([*OWN, "events/a", "leases/b", "namespaces/default"], b"before"))
    template = await Template.read(client, prefix)
    assert set(template.values) == {b"namespaces/default"}
    await _write(client, prefix, dict.fromkeys(OWN, b"renewed"))
    await reset(client, prefix, template)
    assert await _values(client, prefix) == {**dict.fromkeys(OWN, b"renewed"), "namespaces/default": b"before"}


async def test_many_and_large_keys_go_in_several_transactions(client: Client, prefix: str) -> None:
    large = [Put(f"{prefix}large/{number}".encode(), bytes([number]) * 400_000) for number in range(7)]
    for each in large:
        await client.put(each.key, each.value)
    template = await Template.read(client, prefix)
    whole = await digest(client, prefix)
    await client.delete_prefix(prefix)
    for number in range(300):
        await client.put(f"{prefix}left/{number}".encode(), b"")
    changed = await reset(client, prefix, template)
    assert (len(changed.deleted), len(changed.put)) == (300, 7)
    assert await digest(client, prefix) == whole


async def test_a_template_fits_any_prefix(client: Client, prefix: str, new_prefix: Callable[[], str]) -> None:
    await _write(client, prefix, {"a": b"1", "b": b"2"})
    other = new_prefix()
    await reset(client, other, await Template.read(client, prefix))
    assert await _values(client, other) == {"a": b"1", "b": b"2"}
    assert await digest(client, other) == await digest(client, prefix)


@pytest.mark.parametrize("bad", ["", "/", "/tests", "tests/"])
async def test_no_reset_without_a_prefix(client: Client, bad: str) -> None:
    with pytest.raises(InvalidPrefix):
        await reset(client, bad, Template(1, {}))


async def test_a_digest_tells_keys_from_values(client: Client, new_prefix: Callable[[], str]) -> None:
    digests = set()
    for values in ({"ab": b"c"}, {"a": b"bc"}, {"abc": b""}, {"a": b"b", "c": b""}, {}):
        prefix = new_prefix()
        await _write(client, prefix, values)
        found = await digest(client, prefix)
        assert found.count == len(values)
        digests.add(found)
    assert len(digests) == 5
    assert Digest(0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855") in digests
