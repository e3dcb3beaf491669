"""Programs of this machine: their paths and versions, and one-shot commands."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from kplane.workloads.errors import ProgramFailed, ProgramTimedOut, RuntimeFailure
from kplane.workloads.processes.process import Process

__all__ = ["ProgramVersions", "find_program", "run_program"]

_LIMIT_BYTES = 64 << 20
_SLACK_BYTES = 4 << 20
"""Distance between the limit and the file's end: the kernel refuses writes beyond the end in chunks of up to 2 MiB."""
_SHOWN_CHARACTERS = 2000
_VERSION_SECONDS: Final = 15.0
_VERSION: Final = re.compile(rb"(?<![0-9.])v?([0-9]+[.][0-9]+[.][0-9]+)(?![0-9])")


async def run_program(
    program: Path,
    args: Sequence[str],
    *,
    timeout_seconds: float,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
) -> bytes:
    """Run a command to its end and return its standard output.

    `args` are public, and must not contain secrets. `env` is the whole environment besides PATH and HOME. Without
    `stdin`, standard input is empty. On time-out and on cancellation, the command and its process group are killed, and
    their end is awaited.

    Raises ProgramFailed if the command does not start, ends with another code than 0, or writes more than 64 MiB to
    standard output or standard error. Raises ProgramTimedOut if the command has not ended after `timeout_seconds`.
    """
    environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": os.environ.get("HOME", "/"), **(env or {})}
    # Files in memory in place of pipes: they need no reader, and no grandchild can keep them open.
    with _memory_file("stdin") as source, _memory_file("stdout") as output, _memory_file("stderr") as errors:
        if stdin is not None:
            _fill(source, stdin)
        _bound(output)
        _bound(errors)
        try:
            process = Process.spawn(
                [str(program), *args],
                environment=environment,
                directory=Path("/"),
                stdin=subprocess.DEVNULL if stdin is None else source,
                stdout=output,
                stderr=errors,
            )
        except OSError as error:
            raise ProgramFailed(f"{program.name} cannot be started: {error}.") from error
        try:
            async with asyncio.timeout(timeout_seconds):
                await process.wait()
        except TimeoutError as error:
            raise ProgramTimedOut(
                f"{program.name} had not ended after {timeout_seconds:g} s, and was killed.{_shown(_read(errors))}"
            ) from error
        finally:
            await _kill(process)
        return _result(program, code=process.exit_code, output=_read(output), errors=_read(errors))


async def _kill(process: Process) -> None:
    """Kill the process and its group and wait for their end, even if the wait is cancelled again."""
    process.kill()
    cancelled: asyncio.CancelledError | None = None
    while not process.ended:
        try:
            await process.wait()
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


def _result(program: Path, *, code: int | None, output: bytes, errors: bytes) -> bytes:
    if max(len(output), len(errors)) > _LIMIT_BYTES:
        raise ProgramFailed(f"{program.name} wrote more than {_LIMIT_BYTES >> 20} MiB.", exit_code=code)
    if code != 0:
        how = f"was ended by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        raise ProgramFailed(f"{program.name} {how}.{_shown(errors)}", exit_code=code, stderr=errors)
    return output


def _shown(errors: bytes) -> str:
    text = errors[-_SHOWN_CHARACTERS:].decode(errors="replace").strip()
    return f" It wrote: {text}" if text else ""


@contextlib.contextmanager
def _memory_file(name: str) -> Iterator[int]:
    try:
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        raise ProgramFailed(f"There is no room for {name} of a program: {error}.") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _fill(descriptor: int, content: bytes) -> None:
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)


def _bound(descriptor: int) -> None:
    os.ftruncate(descriptor, _LIMIT_BYTES + _SLACK_BYTES)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)


def _read(descriptor: int) -> bytes:
    """Read the output of the program. Its length is the offset, which the program shares."""
    size = os.lseek(descriptor, 0, os.SEEK_CUR)
    return os.pread(descriptor, size, 0)


def find_program(program: str, *, programs: Sequence[Path], of: str) -> Path:
    """Find an executable by its name or absolute path.

    Raises RuntimeFailure, in which `of` names the program's user.
    """
    if program.startswith("/"):
        candidates = [Path(program)]
    elif "/" in program or program in {"", ".", ".."}:
        raise RuntimeFailure(f"{of}: program {program!r} has to be a plain name or an absolute path.")
    else:
        candidates = [directory.absolute() / program for directory in programs]
    for path in candidates:
        if path.is_file() and os.access(path, os.X_OK):
            return path
    places = ", ".join(str(path) for path in candidates) or "nowhere, as no directories of programs are given"
    raise RuntimeFailure(f"{of}: there is no executable program {program!r}; looked for: {places}.")


class ProgramVersions:
    """Asks programs for their version, and remembers each answer until the program's file changes."""

    def __init__(self, programs: Sequence[Path]) -> None:
        """`programs` are the directories searched, in this order."""
        self._programs = tuple(programs)
        self._asking = asyncio.Lock()
        self._known: dict[Path, tuple[tuple[int, int], str]] = {}

    async def of(self, program: str) -> str:
        """Return the version that `<program> --version` prints, such as "1.36.3".

        Raises RuntimeFailure if the program is missing, or prints no version within 15 s.
        """
        path = find_program(program, programs=self._programs, of=f"The version of {program}")
        async with self._asking:
            try:
                status = await asyncio.to_thread(path.stat)
                identity = status.st_mtime_ns, status.st_ino
                cached = self._known.get(path)
                if cached is None or cached[0] != identity:
                    answer = await run_program(path, ["--version"], timeout_seconds=_VERSION_SECONDS)
                    cached = self._known[path] = identity, _read_version(answer, path=path)
            except (OSError, ProgramFailed, ProgramTimedOut) as error:
                raise RuntimeFailure(f"The version of {path} cannot be found out: {error}") from error
            return cached[1]


def _read_version(answer: bytes, *, path: Path) -> str:
    match = _VERSION.search(answer)
    if match is None:
        shown = answer[:200].decode(errors="replace").strip()
        raise RuntimeFailure(f"The version of {path} cannot be found out: asked by --version it said {shown!r}.")
    return match[1].decode()
