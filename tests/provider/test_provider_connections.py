"""Connections that clients share, without mixing identities."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket
from types import SimpleNamespace

import pytest

from kplane.provider import Client, ProviderError, Unreachable
from kplane.provider.client.connections import Connections
from kplane.provider.client.resources import NAMESPACES

OBJECT = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}}


def always(content):
    async def answer(_, writer):
        writer.write(content)

    return answer


def sockets():
    return {name for name in os.listdir("/proc/self/fd") if _link(name).startswith("socket:")}


def _link(name):
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except FileNotFoundError:
        return ""


async def read(config, connections, *, timeout_seconds=60.0, **options):
    async with Client(config, timeout_seconds=timeout_seconds, connections=connections, **options) as client:
        await client.get(NAMESPACES, "a")


@pytest.fixture
async def connections():
    made = Connections()
    yield made
    await made.aclose()


async def test_clients_of_one_address_share_connection_with_own_tokens(fault_server, tools, connections):
    server = await fault_server(always(tools.http(OBJECT)))
    for token in ("one", "two", "three"):
        await read(dataclasses.replace(server.config, token=token), connections)
    assert [asked.headers["authorization"] for asked in server.asked] == ["Bearer one", "Bearer two", "Bearer three"]
    assert server.connections == 1


async def test_connection_has_keepalive_that_detects_a_lost_peer(fault_server, tools, connections):
    server = await fault_server(always(tools.http(OBJECT)))
    await read(server.config, connections)
    peer = connections.join(server.config)
    (connected,) = (connection.transport.get_extra_info("socket") for connection in peer.open)
    connections.leave(peer)
    assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30


async def test_connection_is_not_shared_across_client_certificates(fault_server, tools, connections):
    server = await fault_server(always(tools.http(OBJECT)))
    one, other = (tools.Authority().issue(name) for name in ("one", "other"))
    for issued in (one, other, one, None):
        shown = {} if issued is None else {"client_certificate": issued.certificate, "client_key": issued.key}
        await read(dataclasses.replace(server.config, **shown), connections)
    assert server.connections == 3, "one for each identity, and one for whoever has none"


async def test_connection_is_not_shared_across_server_names(fault_server, tools, connections):
    server = await fault_server(always(tools.http(OBJECT)))
    await read(dataclasses.replace(server.config, tls_server_name="served.test"), connections)
    with pytest.raises(Unreachable, match="not valid for this host name"):
        await read(dataclasses.replace(server.config, tls_server_name="other.test"), connections)


async def test_connection_is_not_shared_across_cas(fault_server, tools, connections):
    server = await fault_server(always(tools.http(OBJECT)))
    await read(server.config, connections)
    other = dataclasses.replace(server.config, ca_data=tools.Authority("other").pem)
    with pytest.raises(Unreachable, match="certificate"):
        await read(other, connections)


async def test_connection_is_renewed_after_its_lifetime(fault_server, tools, eventually, monkeypatch):
    answering, made, now = asyncio.Event(), set(), 1000.0
    monkeypatch.setattr("kplane.provider.client.connections.time", SimpleNamespace(monotonic=lambda: now))

    async def answer(asked, writer):
        made.add(writer)
        if asked.headers["authorization"] == "Bearer slow":
            await answering.wait()
        writer.write(tools.http(OBJECT))

    server = await fault_server(answer)
    connections = Connections(lifetime_seconds=60.0)
    slow = asyncio.create_task(read(dataclasses.replace(server.config, token="slow"), connections))
    await eventually(lambda: made)
    quick = dataclasses.replace(server.config, token="quick")
    await read(quick, connections)
    await read(quick, connections)
    now += 59.0
    await read(quick, connections)
    assert len(made) == 2
    now += 2.0
    await read(quick, connections)
    assert len(made) == 3
    answering.set()
    await slow
    await connections.aclose()
    await eventually(lambda: server.connections, lambda left: left == 0)


async def test_connection_without_linger_closes_with_last_client(fault_server, tools):
    server = await fault_server(always(tools.http(OBJECT)))
    connections = Connections(linger_seconds=0)
    try:
        async with Client(server.config, connections=connections) as one:
            await one.get(NAMESPACES, "a")
            held = sockets()
            await read(server.config, connections)
            assert sockets() == held, "another client still uses them"
        assert len(sockets()) < len(held)
    finally:
        await connections.aclose()


async def test_idle_connection_of_a_client_closes_after_the_lingering_time(fault_server, tools, eventually):
    server = await fault_server(always(tools.http(OBJECT)))
    connections = Connections(linger_seconds=0.1)
    try:
        async with Client(server.config, connections=connections) as client:
            await client.get(NAMESPACES, "a")
            held = sockets()
            await eventually(lambda: sockets() < held, timeout=5)
    finally:
        await connections.aclose()


async def test_closed_client_fails_its_calls_and_keeps_other_clients(fault_server, tools, eventually):
    answering = asyncio.Event()

    async def answer(_, writer):
        await answering.wait()
        writer.write(tools.http(OBJECT))

    server = await fault_server(answer)
    connections = Connections()
    ending, staying = (Client(server.config, connections=connections) for _ in range(2))
    waiting = [asyncio.create_task(client.get(NAMESPACES, "a")) for client in (ending, staying)]
    await eventually(lambda: len(server.asked), lambda asked: asked == 2)
    await ending.aclose()
    with pytest.raises(Unreachable, match="was closed meanwhile"):
        await waiting[0]
    answering.set()
    assert (await waiting[1])["metadata"]["name"] == "a"
    await staying.aclose()
    await connections.aclose()


async def test_healthy_cluster_is_reached_while_many_others_hang(fault_server, tools):
    """Criterion 63: 100 servers that accept connections and never answer do not delay a healthy server."""
    server = await fault_server(always(tools.http(OBJECT)))
    silent = [socket.create_server(("127.0.0.1", 0)) for _ in range(100)]
    connections = Connections()
    configs = [
        dataclasses.replace(server.config, server=f"https://127.0.0.1:{each.getsockname()[1]}") for each in silent
    ]
    patient = {"timeout_seconds": 600.0, "connect_timeout_seconds": 600.0}
    hanging = [asyncio.create_task(read(config, connections, **patient)) for config in [*configs, *[configs[0]] * 50]]
    try:
        await asyncio.sleep(0)
        async with asyncio.timeout(30):
            await read(server.config, connections)
        assert not any(each.done() for each in hanging), "they would hang for minutes"
    finally:
        for each in hanging:
            each.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)
        await connections.aclose()
        for each in silent:
            each.close()


async def test_connection_attempts_to_a_server_are_limited(fault_server, tools):
    most = 0

    async def answer(_, writer):
        nonlocal most
        most = max(most, server.connections)
        writer.write(tools.http(OBJECT, headers="Connection: close\r\n"))

    server = await fault_server(answer)
    connections = Connections(attempts=2)
    clients = [Client(server.config, connections=connections) for _ in range(20)]
    await asyncio.gather(*(client.get(NAMESPACES, "a") for client in clients))
    assert most <= 4, "a herd comes one after the other"
    for client in clients:
        await client.aclose()
    await connections.aclose()


async def test_closed_connection_is_not_reused(fault_server, tools, eventually):
    server = await fault_server(always(tools.http(OBJECT)))
    connections = Connections()
    await read(server.config, connections)
    await connections.aclose()
    await eventually(lambda: server.connections, lambda left: left == 0)
    with pytest.raises(ProviderError, match="closed"):
        await read(server.config, connections)
