"""Connections that clients share: fewer handshakes, and nobody gets what is another's."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from provider import NAMESPACES, Client, Connections, ProviderError, Unreachable

OBJECT = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}}


def always(content):
    async def answer(_, writer):
        writer.write(content)

    return answer


async def read(config, connections):
    async with Client(config, timeout_seconds=5.0, connections=connections) as client:
        await client.get(NAMESPACES, "a")


@pytest.fixture
async def connections():
    made = Connections()
    yield made
    await made.aclose()


async def test_clients_of_one_address_share_a_connection_and_each_says_who_it_is(fault_server, tools, connections):
    server = await fault_server(always(tools.http(OBJECT)))
    for token in ("one", "two", "three"):
        await read(dataclasses.replace(server.config, token=token), connections)
    assert [asked.headers["authorization"] for asked in server.asked] == ["Bearer one", "Bearer two", "Bearer three"]
    assert server.connections == 1


async def test_who_is_known_by_a_certificate_shares_nothing(fault_server, tools, connections, eventually):
    issued = tools.Authority().issue("client-a")
    server = await fault_server(always(tools.http(OBJECT)))
    config = dataclasses.replace(server.config, client_certificate=issued.certificate, client_key=issued.key)
    await read(config, connections)
    await eventually(lambda: server.connections, lambda left: left == 0)


async def test_a_server_is_trusted_only_by_whom_its_ca_is_named(fault_server, tools, connections):
    server = await fault_server(always(tools.http(OBJECT)))
    await read(server.config, connections)
    other = dataclasses.replace(server.config, ca_data=tools.Authority("other").pem)
    with pytest.raises(Unreachable, match="certificate"):
        await read(other, connections)


async def test_connections_are_made_anew_after_their_time(fault_server, tools, eventually):
    answering = asyncio.Event()

    async def answer(asked, writer):
        if asked.headers["authorization"] == "Bearer slow":
            await answering.wait()
        writer.write(tools.http(OBJECT))

    server = await fault_server(answer)
    connections = Connections(lifetime_seconds=0.3)
    slow = asyncio.create_task(read(dataclasses.replace(server.config, token="slow"), connections))
    await eventually(lambda: server.connections, lambda made: made == 1)
    first = await connections.acquire(server.config)
    connections.release(first)
    await eventually(lambda: first.retired)
    await read(dataclasses.replace(server.config, token="quick"), connections)
    assert server.connections == 2, "one whose time is over is not used again, and not taken from whoever uses it"
    answering.set()
    await slow
    await eventually(lambda: server.connections, lambda left: left == 0)
    await connections.aclose()


async def test_closed_connections_are_lent_to_nobody(fault_server, tools, eventually):
    server = await fault_server(always(tools.http(OBJECT)))
    connections = Connections()
    await read(server.config, connections)
    await connections.aclose()
    await eventually(lambda: server.connections, lambda left: left == 0)
    with pytest.raises(ProviderError, match="closed"):
        await read(server.config, connections)
