"""Host names whose name servers are silent delay no other lookup."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kplane.provider import Client, ClusterConfig, Unreachable
from kplane.provider.client import lookup as module
from kplane.provider.client.lookup import Resolver


class NameServers:
    """Name servers that are silent for names with the suffix `.dead` until `answer` is set; others are real."""

    def __init__(self) -> None:
        self.answer = threading.Event()
        self.asked = Counter[str]()
        self._real = socket.getaddrinfo

    def getaddrinfo(self, host: str, *args: Any) -> Any:
        self.asked[host] += 1
        if host.endswith(".dead"):
            self.answer.wait(30)
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return self._real(host, *args)


@pytest.fixture
def name_servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServers]:
    servers = NameServers()
    monkeypatch.setattr(socket, "getaddrinfo", servers.getaddrinfo)
    yield servers
    servers.answer.set()


async def test_resolver_answers_while_other_name_servers_are_silent(name_servers: NameServers) -> None:
    resolver = Resolver()
    dead = [asyncio.create_task(resolver.resolve(f"host-{number}.dead")) for number in range(100)]
    found = await asyncio.wait_for(resolver.resolve("localhost", 6443), 60)
    assert (found[0]["host"], found[0]["port"], found[0]["hostname"]) == ("127.0.0.1", 6443, "localhost")
    assert not any(task.done() for task in dead)
    name_servers.answer.set()
    for failure in await asyncio.gather(*dead, return_exceptions=True):
        assert isinstance(failure, socket.gaierror)


async def test_resolver_shares_a_pending_lookup_after_cancellation(
    name_servers: NameServers, eventually: Callable[..., Any]
) -> None:
    resolver = Resolver()
    for _ in range(5):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(resolver.resolve("one.dead"), 0.01)
    await eventually(lambda: name_servers.asked, lambda asked: asked == {"one.dead": 1})
    name_servers.answer.set()
    await eventually(lambda: [name for name, _ in module._pending], lambda names: "one.dead" not in names)
    with pytest.raises(socket.gaierror):
        await resolver.resolve("one.dead")
    assert name_servers.asked == {"one.dead": 2}


async def test_resolver_refuses_lookups_above_its_limit(
    name_servers: NameServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_LOOKUPS", 2)
    resolver = Resolver()
    waiting = [asyncio.create_task(resolver.resolve(f"full-{number}.dead")) for number in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(OSError, match="2 other host names are being looked up"):
        await resolver.resolve("third.dead")
    name_servers.answer.set()
    await asyncio.wait(waiting)
    assert await resolver.resolve("localhost")


async def test_resolver_keeps_the_scope_of_ipv6_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fe80::1", 0, 0, 2))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found)
    [result] = await Resolver().resolve("link.local", 1, socket.AF_INET6)
    assert result["host"] == "fe80::1%2"


async def test_client_times_out_when_name_servers_are_silent(name_servers: NameServers) -> None:
    async with Client(ClusterConfig(server="https://api.dead"), timeout_seconds=1.0) as client:
        with pytest.raises(Unreachable) as failed:
            await client.probe()
    assert failed.value.timed_out
    assert name_servers.asked == {"api.dead": 1}
