"""Log lines of instances are written once each, with the name of their cluster."""

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
    """Fake instances with their log files."""

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


async def test_each_line_is_written_whole_and_once(tmp_path: Path, eventually: Eventually) -> None:
    directory = Directory(tmp_path)
    async with directory.logs.running():
        first_log, second_log = directory.start("one"), directory.start("two")
        directory.write(first_log, "first\nsecond ")
        directory.write(second_log, "other\n")
        await eventually(lambda: sorted(directory.lines) == ["[one] first", "[two] other"])
        directory.write(first_log, "half\n")
        await eventually(lambda: "[one] second half" in directory.lines)
    assert len(directory.lines) == 3


async def test_last_line_of_a_deleted_log_is_written(tmp_path: Path, eventually: Eventually) -> None:
    directory = Directory(tmp_path)
    async with directory.logs.running():
        path = directory.start("one")
        directory.write(path, "first\n")
        await eventually(lambda: directory.lines == ["[one] first"])
        with path.open("a") as file:
            file.write("last, without an end")
        path.unlink()
        directory.present.clear()
        directory.logs.look()
        await eventually(lambda: directory.lines[-1] == "[one] last, without an end")
        # The next instance of the cluster has a new file.
        directory.write(directory.start("one"), "anew\n")
        await eventually(lambda: directory.lines[-1] == "[one] anew")


async def test_truncated_log_is_read_from_its_start(tmp_path: Path, eventually: Eventually) -> None:
    directory = Directory(tmp_path)
    async with directory.logs.running():
        path = directory.start("one")
        directory.write(path, "a long line from before\n")
        await eventually(lambda: len(directory.lines) == 1)
        path.write_text("after\n")
        directory.logs.look()
        await eventually(lambda: directory.lines[-1] == "[one] after")
    [notice] = [line for line in directory.lines if "was rotated" in line]
    assert f"{path}.1" in notice


@pytest.mark.parametrize("length", [20, 1000], ids=["short lines", "long lines"])
async def test_truncation_is_noticed_though_the_log_has_grown_again(
    tmp_path: Path, eventually: Eventually, length: int
) -> None:
    def lines(first: int, count: int) -> list[str]:
        """Return lines of equal length, as of a message that is repeated."""
        return [f"I1122 00:00:{number:09.6f} {'x' * length}" for number in range(first, first + count)]

    directory = Directory(tmp_path)
    async with directory.logs.running():
        path = directory.start("one")
        directory.write(path, "\n".join([*lines(0, 50), "half a li"]))
        await eventually(lambda: len(directory.lines) == 50)
        path.write_text("".join(f"{line}\n" for line in lines(1000, 100)))
        directory.logs.look()
        await eventually(lambda: directory.lines[-1] == f"[one] {lines(1099, 1)[0]}")
    assert directory.lines[:50] == [f"[one] {line}" for line in lines(0, 50)]
    assert directory.lines[51:] == [f"[one] {line}" for line in lines(1000, 100)]
    assert "was rotated" in directory.lines[50]


async def test_flood_of_lines_is_cut_with_a_notice(tmp_path: Path, eventually: Eventually) -> None:
    directory = Directory(tmp_path)
    path = tmp_path / "one"
    path.write_text("".join(f"line {number}\n" for number in range(200_000)))
    directory.present["one"] = InstanceLog(object(), "one", path)
    async with directory.logs.running():
        await eventually(lambda: directory.lines and directory.lines[-1] == "[one] line 199999")
    assert "bytes are skipped here" in directory.lines[0]
    assert len(directory.stream.getvalue()) < 1 << 20


async def test_closed_stream_raises_no_error(tmp_path: Path, eventually: Eventually) -> None:
    directory = Directory(tmp_path)
    async with directory.logs.running():
        path = directory.start("one")
        directory.write(path, "told\n")
        await eventually(lambda: directory.lines == ["[one] told"])
        directory.stream.close()
        directory.write(path, "not told\n")


async def test_blocked_stream_does_not_delay_the_end(
    tmp_path: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kplane.mcm.instance.logs._LAST_SECONDS", 0.2)
    path = tmp_path / "one"
    path.write_text("a line of an instance\n" * 10_000)
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as reader, os.fdopen(writing, "w") as stream:
        logs = InstanceLogs(lambda: [InstanceLog(1, "one", path)], form=LogForm.PREFIXED, stream=stream)
        async with asyncio.timeout(5.0), logs.running():
            await eventually(lambda: select.select([], [stream], [], 0)[1] == [])  # the pipe is full
        threads = [thread for thread in threading.enumerate() if thread.name == "logs of instances"]
        assert all(thread.daemon for thread in threads)
        reader.close()
        for thread in threads:
            await asyncio.to_thread(thread.join, 5.0)
        with contextlib.suppress(BrokenPipeError):
            stream.close()


async def test_json_line_has_its_level_and_its_cluster(tmp_path: Path, eventually: Eventually) -> None:
    directory = Directory(tmp_path, form=LogForm.JSON)
    async with directory.logs.running():
        path = directory.start("one")
        directory.write(path, 'E1121 23:09:29.727426   10724 options.go:205] "bad"\npanic: \x1b[0m\n')
        await eventually(lambda: len(directory.lines) == 2)
    first, second = map(json.loads, directory.lines)
    assert (first["level"], first["cluster"], first["logger"]) == ("error", "one", "kube-controller-manager")
    assert first["message"].endswith('options.go:205] "bad"')
    assert second["level"] == "info"


async def test_control_characters_are_removed_from_prefixed_lines(tmp_path: Path, eventually: Eventually) -> None:
    directory = Directory(tmp_path)
    async with directory.logs.running():
        directory.write(directory.start("one"), "a\x1b[2Jb\r[two] forged\n")
        await eventually(lambda: directory.lines == ["[one] a [2Jb [two] forged"])
