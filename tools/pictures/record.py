"""Records commands in a terminal of their own, with their input and output."""

from __future__ import annotations

import codecs
import contextlib
import os
import pty
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from fcntl import ioctl
from pathlib import Path
from typing import Final

from tools.pictures.cast import Cast, Output
from tools.pictures.terminal import Screen

__all__ = ["record"]

_ROWS: Final = 50
_TYPE: Final = Path(__file__).with_name("typing.sh").read_text()


def record(commands: Sequence[str], *, columns: int, title: str) -> Cast:
    """Run commands one after the other in a single bash, show their output, and return the recording.

    Raises RuntimeError if a command fails. An interruption also interrupts the commands, and waits for their end.
    """
    steps = [f"prompt; type_in {shlex.quote(command)}; eval {shlex.quote(command)} || exit" for command in commands]
    # With a trap, bash first waits for its command. Otherwise bash would end, and its terminal hang up on the command.
    script = "\n".join(["trap 'exit 143' TERM", _TYPE, *steps, "prompt"])
    begun = time.monotonic()
    descriptor, terminal = pty.openpty()
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, columns, 0, 0))
    process = subprocess.Popen(
        ["bash", "--norc", "-c", script], stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
    )
    os.close(terminal)
    outputs: list[Output] = []
    decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
    try:
        while data := _read(descriptor):
            text = decode(data)
            sys.stdout.write(text)
            sys.stdout.flush()
            if not (outputs and _is_redrawn(text, outputs[-1].data, columns=columns)):
                outputs.append(Output(time.monotonic() - begun, text))
    except BaseException:
        _interrupt(process, descriptor)
        raise
    finally:
        os.close(descriptor)
    if status := process.wait():
        raise RuntimeError(f"failed to record: a command ended with status {status}")
    return Cast(columns, title, outputs)


def _interrupt(process: subprocess.Popen[bytes], descriptor: int) -> None:
    """End the commands, whose session Ctrl-C does not reach. Wait until no process has the terminal open."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    while _read(descriptor):
        pass
    process.wait()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # Linux reports an error after the last program has closed the terminal.
        return b""


def _is_redrawn(text: str, before: str, *, columns: int) -> bool:
    """Return whether a text only redraws the same line, as a spinner does many times in a second."""
    if not text.startswith("\r"):
        return False
    screens = Screen(columns), Screen(columns)
    for screen, data in zip(screens, (text, before), strict=True):
        screen.write(data)
    return list(screens[0].rows) == list(screens[1].rows)
