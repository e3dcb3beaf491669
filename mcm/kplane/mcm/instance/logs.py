"""Forwarding of the logs of instances, with the name of their cluster."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import enum
import json
import logging
import os
import re
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TextIO

from kplane.mcm.describe.controllers import PROGRAM
from kplane.mcm.instance.lifecycle import Instance
from kplane.provider.aio.running import kept_running
from kplane.workloads import ProcessRuntime

__all__ = ["InstanceLog", "InstanceLogs", "LogForm", "forwarding"]

logger = logging.getLogger(__name__)

_POLL_SECONDS: Final = 1.0
_LAST_SECONDS: Final = 3.0
"""Time for the last lines at the end."""
_BYTES_AT_ONCE: Final = 256 << 10
"""Bytes of an instance in each round. Further bytes are skipped, and a line reports that; the file still has them."""
_LINE_LENGTH: Final = 16 << 10
_START_BYTES: Final = 64
"""First bytes of a file, which identify it: its first line begins with a time in microseconds."""
_LEVELS: Final = {"I": "info", "W": "warning", "E": "error", "F": "error"}
_KLOG: Final = re.compile(r"[IWEF][0-9]{4} [0-9:.]{15} ")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")


class LogForm(enum.StrEnum):
    """Destination of the logs of instances."""

    FILES = "files"
    """Only the state directory."""
    PREFIXED = "prefixed"
    """The standard output too, each line after the name of the cluster in brackets."""
    JSON = "json"
    """The standard output too, each line as a JSON object of the same form as mcm's own log."""


class InstanceLog(NamedTuple):
    """Log of an instance. A different `key` (by `==`) means a different instance, also of the same cluster."""

    key: object
    cluster: str
    path: Path


class InstanceLogs:
    """Follows the log files of instances, from the creation of a file to its last line, and writes to a stream.

    Instances write to files, so a slow reader of the stream delays no instance. mcm opens a file before the end of an
    instance removes it, and reads an open file to its end. Lines just before a rotation may be lost; a line reports
    the rotation.
    """

    def __init__(self, logs: Callable[[], list[InstanceLog]], *, form: LogForm, stream: TextIO) -> None:
        """`logs` returns the logs of the present instances."""
        self._logs = logs
        self._form = form
        self._stream = stream
        self._files: dict[object, _OpenFile] = {}
        self._wake = asyncio.Event()
        self._writing: asyncio.Future[None] | None = None

    def look(self, _: str = "") -> None:
        """Look for new instances at once."""
        self._wake.set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Forward logs inside the block. At its end, the reader of the stream has 3 seconds for the last lines."""
        try:
            async with kept_running("logs of instances", self._run):
                yield
        finally:
            try:
                async with asyncio.timeout(_LAST_SECONDS):
                    await self._pass_on({})
            except TimeoutError:
                logger.warning("failed to write the last log lines of instances: the standard output is not read")

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            await self._pass_on({log.key: log for log in self._logs()})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_POLL_SECONDS):
                    await self._wake.wait()

    async def _pass_on(self, logs: Mapping[object, InstanceLog]) -> None:
        if self._writing is not None:  # a round that was cancelled
            await asyncio.wait([self._writing])
        for key, log in logs.items():
            if key not in self._files and (descriptor := _open(log.path)) is not None:
                self._files[key] = _OpenFile(log.cluster, descriptor, path=log.path)
        ended = [self._files.pop(key) for key in self._files.keys() - logs.keys()]
        self._writing = _in_thread(partial(self._write, [*self._files.values()], ended))
        await asyncio.shield(self._writing)

    def _write(self, present: list[_OpenFile], ended: list[_OpenFile]) -> None:
        try:
            for file in [*present, *ended]:
                lines = file.read(last=file in ended)
                self._stream.writelines(f"{self._format(file.cluster, line)}\n" for line in lines)
            self._stream.flush()
        except (OSError, ValueError) as error:  # the reader of the stream may have closed it
            logger.warning("failed to write the logs of instances: %s", error)
        finally:
            for file in ended:
                file.close()

    def _format(self, cluster: str, line: str) -> str:
        if self._form is LogForm.PREFIXED:
            return f"[{cluster}] {_CONTROL.sub(' ', line)}"
        level = _LEVELS[line[0]] if _KLOG.match(line) else "info"
        now = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
        return json.dumps({"time": now, "level": level, "logger": PROGRAM, "message": line, "cluster": cluster})


class _OpenFile:
    """An open file and the offset of the last read. All methods but the constructor run in a thread."""

    def __init__(self, cluster: str, descriptor: int, *, path: Path) -> None:
        self.cluster = cluster
        self._descriptor = descriptor
        self._path = path
        self._offset = 0
        self._start = b""
        self._rest = b""

    def read(self, *, last: bool) -> list[str]:
        """Return the new complete lines; with `last` also an incomplete last line."""
        lines: list[str] = []
        if self._was_cut():
            self._offset, self._rest = 0, b""
            lines.append(f"the log was rotated here; earlier lines are in {self._path}.1 for a while")
        size = os.fstat(self._descriptor).st_size
        skipped = max(0, size - self._offset - _BYTES_AT_ONCE)
        content = os.pread(self._descriptor, _BYTES_AT_ONCE, self._offset + skipped)
        if content:
            self._offset += skipped + len(content)
            if skipped:
                lines.append(f"{skipped} bytes are skipped here; they are in {self._path} for a while")
                content, self._rest = content.partition(b"\n")[2], b""
        *whole, self._rest = (self._rest + content).split(b"\n")
        if last or len(self._rest) > _LINE_LENGTH:
            whole.append(self._rest)
            self._rest = b""
        return lines + [line[:_LINE_LENGTH].decode(errors="replace") for line in whole if line]

    def _was_cut(self) -> bool:
        """Compare the first bytes, because a truncated file may already be longer than before."""
        before, self._start = self._start, os.pread(self._descriptor, _START_BYTES, 0)
        return not self._start.startswith(before)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


@contextlib.asynccontextmanager
async def forwarding(
    instances: Callable[[], Iterable[Instance]], *, runtime: ProcessRuntime, form: LogForm
) -> AsyncIterator[None]:
    """Forward the logs of instances to the standard output inside the block."""

    def logs() -> list[InstanceLog]:
        return [
            InstanceLog(instance, instance.cluster.name, runtime.log_path(instance.component))
            for instance in instances()
        ]

    # A separate stream: Python flushes `sys.stdout` at exit, and would wait for a slow reader.
    stream = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    forwarder = InstanceLogs(logs, form=form, stream=stream)
    unsubscribe = runtime.subscribe(forwarder.look)
    try:
        async with forwarder.running():
            yield
    finally:
        unsubscribe()


def _in_thread(work: Callable[[], None]) -> asyncio.Future[None]:
    """Run `work` in a daemon thread. The reader of the stream may be slow, and the process ends without waiting."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def run() -> None:
        try:
            work()
        finally:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(done.set_result, None)

    threading.Thread(target=run, name="logs of instances", daemon=True).start()
    return done


def _open(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None  # the instance was not started yet
