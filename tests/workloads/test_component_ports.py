"""Ports that a runtime reserves for its components."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from pathlib import Path

import pytest

from kplane.workloads import RuntimeFailure
from kplane.workloads.processes import ports as ports_module
from kplane.workloads.processes.directory import ComponentDirectory
from kplane.workloads.processes.ports import PortRegistry


async def test_ports_stay_until_the_component_is_deleted(sandbox) -> None:
    async with sandbox.runtime() as runtime:
        first = await runtime.reserve("a", ports=["http", "peer"])
        assert first.host == "127.0.0.1"
        assert len(set(first.ports.values())) == 2
        assert await runtime.reserve("a", ports=["peer"]) == first
        more = await runtime.reserve("a", ports=["metrics"])
        assert {**first.ports, "metrics": more.ports["metrics"]} == more.ports
        assert runtime.names() == ["a"]
    async with sandbox.runtime() as runtime:
        assert await runtime.reserve("a", ports=["http", "peer", "metrics"]) == more
        await runtime.delete("a")
        assert (await runtime.reserve("a", ports=["http"])).ports != first.ports


async def test_ports_of_several_runtimes_differ_before_they_listen(sandbox, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(ports_module, "_RANGE", range(16384, 16484))
    registry = PortRegistry(host="127.0.0.1", directory=tmp_path / "registry")
    others = PortRegistry(host="127.0.0.1", directory=tmp_path / "registry")
    owners = [ComponentDirectory(tmp_path / f"runtime{i % 2}" / f"c{i}") for i in range(20)]
    claims = await asyncio.gather(
        *((registry, others)[i % 2].claim(owner, ports=["a", "b"]) for i, owner in enumerate(owners))
    )
    numbers = [number for claim in claims for number in claim.values()]
    assert len(set(numbers)) == 40


async def test_ports_of_removed_owners_are_reused_and_exhaustion_raises(tmp_path, monkeypatch) -> None:
    registry = PortRegistry(host="127.0.0.1", directory=tmp_path / "registry")
    monkeypatch.setattr(ports_module, "_RANGE", await free_range(3))
    first, second = ComponentDirectory(tmp_path / "one"), ComponentDirectory(tmp_path / "two")
    claim = await registry.claim(first, ports=["a", "b", "c"])
    with pytest.raises(RuntimeFailure, match=r"No port from \d+ to \d+ is free on 127.0.0.1; .*/two needs one"):
        await registry.claim(second, ports=["a"])
    first.remove()
    assert set((await registry.claim(second, ports=["a", "b", "c"])).values()) == set(claim.values())


async def test_sweep_removes_only_claims_of_removed_owners(tmp_path) -> None:
    registry = PortRegistry(host="127.0.0.1", directory=tmp_path / "registry")
    dead, living = ComponentDirectory(tmp_path / "dead"), ComponentDirectory(tmp_path / "living")
    await registry.claim(dead, ports=["a", "b"])
    claim = await registry.claim(living, ports=["a"])
    dead.remove()
    await registry.sweep()
    assert [file.name for file in (tmp_path / "registry").iterdir() if file.name != "lock"] == [str(claim["a"])]


async def free_range(length: int) -> range:
    # The start is random, because other processes of the test run search at the same time.
    starts = range(20000, 29000, 50)
    for start in random.sample(starts, len(starts)):
        sockets = [socket.socket() for _ in range(length)]
        try:
            for number, probe in enumerate(sockets, start):
                probe.bind(("127.0.0.1", number))
        except OSError:
            continue
        finally:
            for probe in sockets:
                probe.close()
        return range(start, start + length)
    raise AssertionError("no free range")


async def test_port_in_use_is_not_claimed(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(ports_module, "_RANGE", ports := await free_range(2))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", ports[0]))
        listener.listen()
        registry = PortRegistry(host="127.0.0.1", directory=tmp_path / "registry")
        assert await registry.claim(ComponentDirectory(tmp_path / "c"), ports=["a"]) == {"a": ports[1]}


async def test_restore_recreates_deleted_claims(tmp_path) -> None:
    owner = ComponentDirectory(tmp_path / "c")
    registry = PortRegistry(host="127.0.0.1", directory=tmp_path / "registry")
    number = (await registry.claim(owner, ports=["a"]))["a"]
    (tmp_path / f"registry/{number}").unlink()
    await registry.restore(owner)
    assert Path((tmp_path / f"registry/{number}").read_text()) == owner.path


@pytest.mark.parametrize("content", ["", "[]", '{"ports": 1}', '{"ports": {"a": "x"}}'])
async def test_damaged_record_is_reported_and_can_be_deleted(runtime, sandbox, content) -> None:
    await runtime.reserve("a", ports=["http"])
    record = sandbox.directory / "a/address.json"
    address = json.loads(record.read_text())
    record.write_text(content)
    with pytest.raises(RuntimeFailure, match=r"a/address.json cannot be read .* Repair it, or delete the component"):
        await runtime.reserve("a", ports=["http"])
    record.write_text(json.dumps(address))
    assert (await runtime.reserve("a", ports=["http"])).ports == address["ports"]
    record.write_text(content)
    await runtime.delete("a")
    assert runtime.names() == []
