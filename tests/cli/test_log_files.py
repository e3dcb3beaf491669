"""Logs in files: last lines, appended lines and rotation."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from kplane.cli.programs.files import FileLog


@pytest.fixture
def log(tmp_path: Path) -> FileLog:
    return FileLog("apiserver-acme", tmp_path / "log")


async def lines(log: FileLog, *, last: int | None) -> list[str]:
    return [line async for line in log.lines(last=last, follow=False)]


async def test_last_lines_continue_in_rotated_file(log: FileLog) -> None:
    log.path.with_name("log.1").write_text("one\ntwo\n")
    log.path.write_text("three\nfour\n")
    assert await lines(log, last=3) == ["two", "three", "four"]
    assert await lines(log, last=None) == ["one", "two", "three", "four"]
    assert await lines(log, last=0) == []


async def test_missing_log_is_empty(log: FileLog) -> None:
    assert await lines(log, last=None) == []


async def test_following_survives_truncation_and_waits_for_whole_lines(
    log: FileLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kplane.cli.programs.files._POLL_SECONDS", 0.001)
    log.path.write_text("old\nlast\nhalf")
    async with asyncio.timeout(10), contextlib.aclosing(log.lines(last=1, follow=True)) as following:
        assert await anext(following) == "last"
        with log.path.open("a") as file:
            file.write(" a line\nnext\n")
        assert [await anext(following), await anext(following)] == ["half a line", "next"]
        log.path.write_text("new\n")
        assert await anext(following) == "new"
