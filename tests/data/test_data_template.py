"""Reset of the keys of a prefix to a template, and digests of prefixes."""

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
    items = [item async for page in client.pages(prefix) for item in page.items]
    return {item.key.decode().removeprefix(prefix): item.value for item in items}


async def test_reset_restores_keys_of_prefix_only(client: Client, prefix: str, new_prefix: Callable[[], str]) -> None:
    original_values = {"namespaces/default": b"1", "clusterroles/admin": b"2", "configmaps/events/leases": b"3"}
    await _write(client, prefix, original_values)
    neighbours = {f"{prefix[:-1]}0": b"beside", f"{prefix[:-1]}": b"beside", f"{new_prefix()}key": b"another"}
    await _write(client, "", neighbours)
    template = await Template.read(client, prefix)
    assert {key.decode(): value for key, value in template.values.items()} == original_values
    before = await digest(client, "/tests/")

    leftovers = {
        "namespaces/events": b"left",
        "configmaps/events/left": b"left",
        "leases/shop/lock": b"left",
        "leases/kube-system/lock": b"left",
        "events/shop/one": b"left",
    }
    await _write(client, prefix, leftovers | {"namespaces/default": b"changed"} | {"namespaces/default/": b""})
    await client.delete_prefix(f"{prefix}configmaps/events/")
    await _write(client, prefix, leftovers)
    result = await reset(client, prefix, template)

    assert await _values(client, prefix) == original_values
    assert await digest(client, "/tests/") == before
    assert {key.decode() for key in result.deleted} == {*leftovers, "namespaces/default/"}
    assert set(result.put) == {b"namespaces/default", b"configmaps/events/leases"}
    second_result = await reset(client, prefix, template)
    assert (second_result.deleted, second_result.put) == ((), ())


async def test_reset_and_template_ignore_records_of_api_server(client: Client, prefix: str) -> None:
    await _write(client, prefix, dict.fromkeys([*OWN, "events/a", "leases/b", "namespaces/default"], b"before"))
    template = await Template.read(client, prefix)
    assert set(template.values) == {b"namespaces/default"}
    await _write(client, prefix, dict.fromkeys(OWN, b"renewed"))
    await reset(client, prefix, template)
    assert await _values(client, prefix) == {**dict.fromkeys(OWN, b"renewed"), "namespaces/default": b"before"}


async def test_reset_restores_many_and_large_keys(client: Client, prefix: str) -> None:
    operations = [Put(f"{prefix}large/{number}".encode(), bytes([number]) * 400_000) for number in range(7)]
    for operation in operations:
        await client.put(operation.key, operation.value)
    template = await Template.read(client, prefix)
    original_digest = await digest(client, prefix)
    await client.delete_prefix(prefix)
    for number in range(300):
        await client.put(f"{prefix}left/{number}".encode(), b"")
    result = await reset(client, prefix, template)
    assert (len(result.deleted), len(result.put)) == (300, 7)
    assert await digest(client, prefix) == original_digest


async def test_reset_applies_template_to_another_prefix(
    client: Client, prefix: str, new_prefix: Callable[[], str]
) -> None:
    await _write(client, prefix, {"a": b"1", "b": b"2"})
    other_prefix = new_prefix()
    await reset(client, other_prefix, await Template.read(client, prefix))
    assert await _values(client, other_prefix) == {"a": b"1", "b": b"2"}
    assert await digest(client, other_prefix) == await digest(client, prefix)


@pytest.mark.parametrize("bad", ["", "/", "/tests", "tests/"])
async def test_reset_refuses_invalid_prefix(client: Client, bad: str) -> None:
    with pytest.raises(InvalidPrefix):
        await reset(client, bad, Template(1, {}))


async def test_digest_distinguishes_keys_from_values(client: Client, new_prefix: Callable[[], str]) -> None:
    digests = set()
    for values in ({"ab": b"c"}, {"a": b"bc"}, {"abc": b""}, {"a": b"b", "c": b""}, {}):
        prefix = new_prefix()
        await _write(client, prefix, values)
        prefix_digest = await digest(client, prefix)
        assert prefix_digest.count == len(values)
        digests.add(prefix_digest)
    assert len(digests) == 5
    assert Digest(0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855") in digests
