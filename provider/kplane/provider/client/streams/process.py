"""Connection to a command that runs in a container."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Self, cast

from kplane.provider.client.streams.channels import Channels
from kplane.provider.client.wire import status_error
from kplane.provider.errors import ProviderError, Unreachable

__all__ = ["PROTOCOLS", "ExecResult", "Output", "Process"]

_CLOSES_STDIN: Final = "v5.channel.k8s.io"
PROTOCOLS: Final = (_CLOSES_STDIN, "v4.channel.k8s.io")
"""Protocols that send the exit code. Only v5, of Kubernetes 1.30 and later, can close stdin."""

_STDIN: Final = 0
_STREAMS: Final[dict[int, Literal["stdout", "stderr"]]] = {1: "stdout", 2: "stderr"}
_STATUS: Final = 3
_CLOSE: Final = 255
_CHUNK_BYTES: Final = 32 * 1024


class Output(NamedTuple):
    """A chunk of the output of a command."""

    stream: Literal["stdout", "stderr"]
    data: bytes


@dataclass(frozen=True, slots=True)
class ExecResult:
    """Output and exit code of a command."""

    exit_code: int
    stdout: bytes
    stderr: bytes


class Process:
    """A running command: `async for output in process` yields its output until the command ends.

    Read the output while you write to stdin: a command blocks while its output is not read. Leaving the context closes
    the connection. Kubernetes then closes stdin and output of the command, and does not kill the command.
    """

    def __init__(self, channels: Channels, *, asked: str) -> None:
        self._channels = channels
        self._title = asked
        self._status = b""
        self.exit_code: int | None = None
        """Exit code of the command; None while the command runs."""

    async def write(self, data: bytes) -> None:
        """Send data to stdin, and wait until the data is sent. Raises Unreachable if the connection fails."""
        for start in range(0, len(data), _CHUNK_BYTES):
            await self._channels.send(_STDIN, data[start : start + _CHUNK_BYTES])

    async def close_stdin(self) -> None:
        """Send the end of stdin. Raises ProviderError if the API server is older than Kubernetes 1.30."""
        self.require_closing()
        await self._channels.send(_CLOSE, bytes((_STDIN,)))

    def require_closing(self) -> None:
        """Raise ProviderError if the API server cannot close stdin."""
        if self._channels.protocol != _CLOSES_STDIN:
            raise ProviderError(
                f"failed to close stdin of {self._title}: the API server speaks {self._channels.protocol}, which has no"
                " message for it; update it to Kubernetes 1.30, or let the command end by itself"
            )

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Output:
        while self.exit_code is None:
            message = await self._receive()
            if message is None:
                self.exit_code = self._read_status()
                break
            channel, data = message
            if channel == _STATUS:
                self._status += data
            elif channel in _STREAMS and data:
                return Output(_STREAMS[channel], data)
        raise StopAsyncIteration

    async def _receive(self) -> tuple[int, bytes] | None:
        """Return the next message, or None at the end of the stream.

        The status does not end the stream, because the API server may send output after the status.
        """
        try:
            return await self._channels.receive()
        except Unreachable:
            if self._status:
                return None
            raise

    def _read_status(self) -> int:
        if not self._status:
            raise Unreachable(f"{self._title}: the stream ended without an exit code", kind="connect")
        return _exit_code(self._status, asked=self._title)

    async def wait(self) -> int:
        """Wait until the command ends, drop its further output, and return the exit code.

        Raises ApiError if the command cannot be run, and Unreachable if the connection fails.
        """
        async for _ in self:
            pass
        return cast("int", self.exit_code)


def _exit_code(data: bytes, *, asked: str) -> int:
    """Return the exit code in the final Status of a command. Raises ApiError if the command did not run."""
    try:
        status: Any = json.loads(data)
    except ValueError:
        status = None
    if not isinstance(status, dict):
        raise Unreachable(f"{asked}: the stream ended with something that is no Status", kind="protocol")
    if status.get("status") == "Success":
        return 0
    if status.get("reason") == "NonZeroExitCode":
        details = status.get("details")
        causes = details.get("causes") if isinstance(details, dict) else None
        for cause in causes if isinstance(causes, list) else ():
            if isinstance(cause, dict) and cause.get("reason") == "ExitCode" and str(cause.get("message")).isdecimal():
                return int(cause["message"])
    raise status_error(status, asked=asked)
