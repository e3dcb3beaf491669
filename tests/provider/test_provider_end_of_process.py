"""The last resort ends a process in any state of its standard error."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

SECONDS = 60.0
END = "from kplane.provider.coordination.election import end_process; end_process()"


def run(program: str, *, stderr: int) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[2], stderr=stderr, timeout=SECONDS, check=False
    )


def test_last_resort_logs_reason_to_stderr() -> None:
    ended = run(END, stderr=subprocess.PIPE)
    assert ended.returncode == 1
    assert b'"level": "critical"' in ended.stderr


def test_last_resort_exits_when_stderr_pipe_is_full() -> None:
    reads, writes = os.pipe()
    try:
        os.set_blocking(writes, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writes, b"x" * 4096)
        os.set_blocking(writes, True)
        assert run(END, stderr=writes).returncode == 1
    finally:
        os.close(reads)
        os.close(writes)


def test_last_resort_exits_when_stderr_write_fails() -> None:
    with Path("/dev/full").open("wb") as full:
        # If the last resort did not exit, the next line would run.
        program = f"import os\ntry:\n    {END}\nfinally:\n    os._exit(0)\n"
        assert run(program, stderr=full.fileno()).returncode == 1
