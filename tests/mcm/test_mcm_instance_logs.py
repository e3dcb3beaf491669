"""Lines that instances write come out with the name of their cluster, each once."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import select
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kplane.mcm.instance.logs import InstanceLog, InstanceLogs, LogForm

Eventually = Callable[..., Any]


class Directory:
    """Stands for instances and their files."""

    def __init__(self, path: Path, *, form: LogForm = LogForm.PREFIXED) -> None:
        self.path = path
        self.present: dict[str, InstanceLog] = {}
        self.stream = io.StringIO()
        self.logs = InstanceLogs(lambda: list(self.present.values()), form=form, stream=self.stream)

    def start(self, name: str) -> Path:
        path = self.path / name
        path.touch()
        self.present[name] = InstanceLog(object(), name, path)
        self.logs.look()
        return path

    def write(self, path: Path, text: str) -> None:
        with path.open("a") as file:
            file.write(text)
        self.logs.look()

    @property
    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()


async def test_lines_of_each_instance_come_whole_and_once(tmp_path: Path, eventually: Eventually) -> None:
    found = Directory(tmp_path)
    async with found.logs.running():
        one, two = found.start("one"), found.start("two")
        found.write(one, "first\nsecond ")
        found.write(two, "other\n")
        await eventually(lambda: sorted(found.lines) == ["[one] first", "[two] other"])
        found.write(one, "half\n")
        await eventually(lambda: "[one] second half" in found.lines)
    assert len(found.lines) == 3


async def test_the_last_words_of_an_instance_whose_files_are_gone_are_told(
    tmp_path: Path, eventually: Eventually
) -> None:
    found = Directory(tmp_path)
    async with found.logs.running():
        path = found.start("one")
        found.write(path, "first\n")
        await eventually(lambda: found.lines == ["[one] first"])
        with path.open("a") as file:
            file.write("last, without an end")
        path.unlink()
        found.present.clear()
        found.logs.look()
        await eventually(lambda: found.lines[-1] == "[one] last, without an end")
        # The next instance of the cluster has a file of its own.
        found.write(found.start("one"), "anew\n")
        await eventually(lambda: found.lines[-1] == "[one] anew")


async def test_a_file_that_was_cut_short_is_read_from_its_start(tmp_path: Path, eventually: Eventually) -> None:
    found = Directory(tmp_path)
    async with found.logs.running():
        path = found.start("one")
        found.write(path, "a long line from before\n")
        await eventually(lambda: len(found.lines) == 1)
        path.write_text("after\n")
        found.logs.look()
        await eventually(lambda: found.lines[-1] == "[one] after")
    [told] = [line for line in found.lines if "was rotated" in line]
    assert f"{path}.1" in told


@pytest.mark.parametrize("length", [20, 1000], ids=["short lines", "long lines"])
async def test_a_cut_is_seen_also_where_the_file_is_as_long_again(
    tmp_path: Path, eventually: Eventually, length: int
) -> None:
    def lines(first: int, count: int) -> list[str]:
        """All of one length, as those of one message that comes again and again are."""
        return [f"I1122 00:00:{number:09.6f} {'x' * length}" for number in range(first, first + count)]

    found = Directory(tmp_path)
    async with found.logs.running():
        path = found.start("one")
        found.write(path, "\n".join([*lines(0, 50), "half a li"]))
        await eventually(lambda: len(found.lines) == 50)
        path.write_text("".join(f"{line}\n" for line in lines(1000, 100)))
        found.logs.look()
        await eventually(lambda: found.lines[-1] == f"[one] {lines(1099, 1)[0]}")
    assert found.lines[:50] == [f"[one] {line}" for line in lines(0, 50)]
    assert found.lines[51:] == [f"[one] {line}" for line in lines(1000, 100)]
    assert "was rotated" in found.lines[50]


async def test_a_flood_is_cut_and_that_is_told(tmp_path: Path, eventually: Eventually) -> None:
    found = Directory(tmp_path)
    path = tmp_path / "one"
    path.write_text("".join(f"line {number}\n" for number in range(200_000)))
    found.present["one"] = InstanceLog(object(), "one", path)
    async with found.logs.running():
        await eventually(lambda: found.lines and found.lines[-1] == "[one] line 199999")
    assert "bytes are skipped here" in found.lines[0]
    assert len(found.stream.getvalue()) < 1 << 20


async def test_a_stream_that_was_closed_ends_nothing(tmp_path: Path, eventually: Eventually) -> None:
    found = Directory(tmp_path)
    async with found.logs.running():
        path = found.start("one")
        found.write(path, "told\n")
        await eventually(lambda: found.lines == ["[one] told"])
        found.stream.close()
        found.write(path, "not told\n")


async def test_a_stream_that_nobody_reads_keeps_nothing_from_its_end(
    tmp_path: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kplane.mcm.instance.logs._LAST_SECONDS", 0.2)
    path = tmp_path / "one"
    path.write_text("a line of an instance\n" * 10_000)
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as reader, os.fdopen(writing, "w") as stream:
        logs = InstanceLogs(lambda: [InstanceLog(1, "one", path)], form=LogForm.PREFIXED, stream=stream)
        async with asyncio.timeout(5.0), logs.running():
            await eventually(lambda: select.select([], [stream], [], 0)[1] == [])  # it is full
        blocked = [thread for thread in threading.enumerate() if thread.name == "logs of instances"]
        assert all(thread.daemon for thread in blocked)
        reader.close()
        for thread in blocked:
            await asyncio.to_thread(thread.join, 5.0)
        with contextlib.suppress(BrokenPipeError):
            stream.close()


async def test_as_json_each_line_has_its_level_and_its_cluster(tmp_path: Path, eventually: Eventually) -> None:
    found = Directory(tmp_path, form=LogForm.JSON)
    async with found.logs.running():
        path = found.start("one")
        found.write(path, 'E1121 23:09:29.727426   10724 options.go:205] "bad"\npanic: \x1b[0m\n')
        await eventually(lambda: len(found.lines) == 2)
    first, second = map(json.loads, found.lines)
    assert (first["level"], first["cluster"], first["logger"]) == ("error", "one", "kube-controller-manager")
    assert first["message"].endswith('options.go:205] "bad"')
    assert second["level"] == "info"


async def test_what_a_terminal_would_act_on_is_taken_out_of_prefixed_lines(
    tmp_path: Path, eventually: Eventually
) -> None:
    found = Directory(tmp_path)
    async with found.logs.running():
        found.write(found.start("one"), "a\x1b[2Jb\r[two] forged\n")
        await eventually(lambda: found.lines == ["[one] a [2Jb [two] forged"])
