"""Programs that run once, to completion."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from kplane.workloads import ProgramFailed, ProgramTimedOut, run_program
from kplane.workloads.processes import program as program_module

SHELL = Path("/bin/sh")


async def shell(script: str, *, timeout_seconds: float = 20.0, **options) -> bytes:
    return await run_program(SHELL, ["-c", script], timeout_seconds=timeout_seconds, **options)


async def test_run_program_passes_stdin_and_returns_stdout() -> None:
    assert await shell("echo out; echo err >&2") == b"out\n"
    assert await shell("cat") == b"", "without input there is an empty one"
    content = bytes(range(256)) * 20_000
    assert await shell("cat", stdin=content) == content


async def test_program_gets_only_the_given_environment(monkeypatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "secret")
    assert await shell("echo $SOME_TOKEN/$A", env={"A": "b"}) == b"/b\n"


async def test_failure_has_exit_code_and_stderr() -> None:
    with pytest.raises(ProgramFailed, match=r"sh ended with exit code 3\. It wrote: no such thing") as error_info:
        await shell("echo no such thing >&2; exit 3")
    assert (error_info.value.exit_code, error_info.value.stderr) == (3, b"no such thing\n")
    with pytest.raises(ProgramFailed, match="sh was ended by signal 9") as error_info:
        await shell("kill -9 $$")
    assert error_info.value.exit_code == -signal.SIGKILL


async def test_missing_program_raises_without_exit_code() -> None:
    with pytest.raises(ProgramFailed, match="nope cannot be started") as error_info:
        await run_program(Path("/nope"), [], timeout_seconds=1.0)
    assert error_info.value.exit_code is None


async def test_timeout_kills_the_process_group(tmp_path, eventually, is_running, monkeypatch) -> None:
    scopes, timeout = [], asyncio.timeout

    def note(seconds: float) -> asyncio.Timeout:
        scopes.append((seconds, timeout(seconds)))
        return scopes[-1][1]

    monkeypatch.setattr(asyncio, "timeout", note)
    script = f"trap '' TERM; sleep 1000 & echo hello >&2; echo $! > {tmp_path}/child; wait"
    task = asyncio.create_task(shell(script, timeout_seconds=600.0))
    child = int(await eventually((tmp_path / "child").read_text))
    [(seconds, scope)] = scopes
    assert seconds == 600
    scope.reschedule(0.0)  # the timeout expires
    with pytest.raises(ProgramTimedOut, match=r"sh had not ended after 600 s, and was killed\. It wrote: hello"):
        await task
    assert not is_running(child)


async def test_cancellation_kills_the_process_group(tmp_path, eventually, is_running) -> None:
    child = tmp_path / "child"
    task = asyncio.create_task(shell(f"sleep 1000 & echo $! > {child}; wait"))
    pid = int(await eventually(child.read_text))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not is_running(pid)


async def test_grandchild_with_open_output_does_not_delay_result(tmp_path, is_running) -> None:
    assert await shell(f"sleep 1000 & echo $! > {tmp_path}/child; echo done") == b"done\n"
    assert not is_running(int((tmp_path / "child").read_text()))


@pytest.mark.parametrize("stream", [1, 2])
async def test_output_above_the_limit_raises(monkeypatch, stream) -> None:
    monkeypatch.setattr(program_module, "_LIMIT_BYTES", 1 << 20)
    fits = f"head -c {1 << 20} /dev/zero >&{stream}"
    assert len(await shell(fits)) == (1 << 20 if stream == 1 else 0)
    with pytest.raises(ProgramFailed, match="sh wrote more than 1 MiB"):
        await shell(f"head -c {1 << 26} /dev/zero >&{stream} 2>/dev/null; exit 0")


async def test_concurrent_programs_return_their_own_output() -> None:
    outputs = await asyncio.gather(*(shell(f"echo {i}") for i in range(30)))
    assert outputs == [f"{i}\n".encode() for i in range(30)]
