"""Reserved ports."""

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


async def test_ports_differ_over_runtimes_although_nobody_listens_yet(sandbox, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(ports_module, "_RANGE", range(16384, 16484))
    registry = PortRegistry(host="127.0.0.1", directory=tmp_path / "registry")
    others = PortRegistry(host="127.0.0.1", directory=tmp_path / "registry")
    owners = [ComponentDirectory(tmp_path / f"runtime{i % 2}" / f"c{i}") for i in range(20)]
    claims = await asyncio.gather(
        *((registry, others)[i % 2].claim(owner, ports=["a", "b"]) for i, owner in enumerate(owners))
    )
    numbers = [number for claim in claims for number in claim.values()]
    assert len(set(numbers)) == 40


async def test_ports_of_the_dead_are_taken_again_and_none_free_is_said(tmp_path, monkeypatch) -> None:
    registry = PortRegistry(host="127.0.0.1", directory=tmp_path / "registry")
    monkeypatch.setattr(ports_module, "_RANGE", await free_range(3))
    one, two = ComponentDirectory(tmp_path / "one"), ComponentDirectory(tmp_path / "two")
    held = await registry.claim(one, ports=["a", "b", "c"])
    with pytest.raises(RuntimeFailure, match=r"No port from \d+ to \d+ is free on 127.0.0.1; .*/two needs one"):
        await registry.claim(two, ports=["a"])
    one.remove()
    assert set((await registry.claim(two, ports=["a", "b", "c"])).values()) == set(held.values())


async def test_claims_of_the_dead_are_swept_and_those_of_the_living_stay(tmp_path) -> None:
    registry = PortRegistry(host="127.0.0.1", directory=tmp_path / "registry")
    dead, living = ComponentDirectory(tmp_path / "dead"), ComponentDirectory(tmp_path / "living")
    await registry.claim(dead, ports=["a", "b"])
    kept = await registry.claim(living, ports=["a"])
    dead.remove()
    await registry.sweep()
    assert [file.name for file in (tmp_path / "registry").iterdir() if file.name != "lock"] == [str(kept["a"])]


async def free_range(length: int) -> range:
    # Anywhere: other processes of the same test run look for one at the same time.
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


async def test_a_port_in_use_is_not_given(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(ports_module, "_RANGE", taken := await free_range(2))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", taken[0]))
        listener.listen()
        registry = PortRegistry(host="127.0.0.1", directory=tmp_path / "registry")
        assert await registry.claim(ComponentDirectory(tmp_path / "c"), ports=["a"]) == {"a": taken[1]}


async def test_claims_that_were_wiped_are_made_again_on_entry(tmp_path) -> None:
    owner = ComponentDirectory(tmp_path / "c")
    registry = PortRegistry(host="127.0.0.1", directory=tmp_path / "registry")
    number = (await registry.claim(owner, ports=["a"]))["a"]
    (tmp_path / f"registry/{number}").unlink()
    await registry.restore(owner)
    assert Path((tmp_path / f"registry/{number}").read_text()) == owner.path


@pytest.mark.parametrize("content", ["", "[]", '{"ports": 1}', '{"ports": {"a": "x"}}'])
async def test_a_damaged_record_is_told_and_can_be_deleted(runtime, sandbox, content) -> None:
    await runtime.reserve("a", ports=["http"])
    record = sandbox.directory / "a/address.json"
    good = json.loads(record.read_text())
    record.write_text(content)
    with pytest.raises(RuntimeFailure, match=r"a/address.json cannot be read .* Repair it, or delete the component"):
        await runtime.reserve("a", ports=["http"])
    record.write_text(json.dumps(good))
    assert (await runtime.reserve("a", ports=["http"])).ports == good["ports"]
    record.write_text(content)
    await runtime.delete("a")
    assert runtime.names() == []
