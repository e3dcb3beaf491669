"""Impersonated requests, and requests through a proxy."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses

import pytest

from kplane.provider import Client, ClusterConfig, Unreachable
from kplane.provider.access.impersonation import Impersonation
from kplane.provider.client.resources import NAMESPACES

OBJECT = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}}


def test_impersonation_of_kubeconfig_sets_headers():
    user = {
        "as": "jane",
        "as-uid": "7",
        "as-groups": ["dev", "ops"],
        "as-user-extra": {"Acme.com/Project Ä": ["one", "two"]},
    }
    found = Impersonation.from_kubeconfig(user)
    assert found == Impersonation("jane", "7", ("dev", "ops"), {"Acme.com/Project Ä": ("one", "two")})
    assert found.to_kubeconfig() == user
    assert found.headers() == [
        ("Impersonate-User", "jane"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "dev"),
        ("Impersonate-Group", "ops"),
        ("Impersonate-Extra-acme.com%2Fproject%20%C3%A4", "one"),
        ("Impersonate-Extra-acme.com%2Fproject%20%C3%A4", "two"),
    ]
    assert Impersonation.from_kubeconfig({}) is None
    asked = ClusterConfig("https://10.0.0.1", impersonation=found)
    assert ClusterConfig.from_kubeconfig(asked.to_kubeconfig()) == asked
    assert not asked.continues(dataclasses.replace(asked, impersonation=None))


@pytest.mark.integration
async def test_api_server_sees_impersonated_user(client):
    someone = Impersonation("jane", None, ("dev", "ops"), {"acme.com/project": ("one",)})
    async with Client(dataclasses.replace(client.config, impersonation=someone)) as jane:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        review = await jane.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body=body)
    found = review["status"]["userInfo"]
    assert found["username"] == "jane"
    assert {"dev", "ops"} <= set(found["groups"])
    assert found["extra"]["acme.com/project"] == ["one"]


@pytest.fixture
async def proxy():
    """An HTTP proxy that supports CONNECT, with its requests in `asked`."""
    asked, tasks = [], set()

    async def copy(reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        asked.append(head)
        host, _, port = head.split(" ")[1].partition(":")
        if "refuse" in head.lower():
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            writer.close()
            return
        there = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await asyncio.gather(copy(reader, there[1]), copy(there[0], writer))

    def connected(reader, writer):
        task = asyncio.get_running_loop().create_task(serve(reader, writer))
        tasks.add(task)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
    server.close()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_proxy_gets_connect_and_no_request(fault_server, tools, proxy):
    async def answer(_, writer):
        writer.write(tools.http(OBJECT))

    server = await fault_server(answer)
    address, asked = proxy
    config = dataclasses.replace(server.config, token="secret", proxy=f"http://me:word@{address}")
    assert "word" not in repr(config)
    async with Client(config) as client:
        await client.get(NAMESPACES, "a")
        await client.get(NAMESPACES, "a")
    [head] = asked
    assert head.startswith("CONNECT 127.0.0.1:")
    assert f"Basic {base64.b64encode(b'me:word').decode()}" in head
    assert "secret" not in head
    assert server.asked[0].headers["authorization"] == "Bearer secret"
    assert "proxy-authorization" not in server.asked[0].headers


async def test_server_behind_proxy_is_verified(fault_server, tools, proxy):
    async def answer(_, writer):
        writer.write(tools.http(OBJECT))

    server = await fault_server(answer)
    config = dataclasses.replace(server.config, proxy=f"http://{proxy[0]}", ca_data=tools.Authority("other").pem)
    async with Client(config) as client:
        with pytest.raises(Unreachable, match="not signed by the CA") as caught:
            await client.get(NAMESPACES, "a")
    assert caught.value.reason == "CertificateInvalid"
    assert server.asked == []


async def test_proxy_refusal_raises_unreachable_with_status(proxy):
    address, _ = proxy
    async with Client(ClusterConfig("https://refuse.test", proxy=f"http://me:word@{address}")) as client:
        with pytest.raises(Unreachable, match="407") as caught:
            await client.get(NAMESPACES, "a")
    assert "word" not in str(caught.value)
