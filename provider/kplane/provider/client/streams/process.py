"""A command that runs in a container."""

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
"""Both send the exit code; only v5, of Kubernetes 1.30 and later, can close stdin."""

_STDIN: Final = 0
_STREAMS: Final[dict[int, Literal["stdout", "stderr"]]] = {1: "stdout", 2: "stderr"}
_STATUS: Final = 3
_CLOSE: Final = 255
_PIECE_BYTES: Final = 32 * 1024


class Output(NamedTuple):
    """A part of what a command wrote."""

    stream: Literal["stdout", "stderr"]
    data: bytes


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What a command wrote, and its exit code."""

    exit_code: int
    stdout: bytes
    stderr: bytes


class Process:
    """A running command: `async for output in process` yields what it writes, until it ends.

    Read while you write: a command whose output is not read waits. Leaving the context closes the connection.
    Kubernetes then closes stdin and the output of the command, and does not kill it.
    """

    def __init__(self, channels: Channels, *, asked: str) -> None:
        self._channels = channels
        self._asked = asked
        self._status = b""
        self.exit_code: int | None = None
        """The exit code; None while the command runs."""

    async def write(self, data: bytes) -> None:
        """Send data to stdin, and wait while the command takes no more. Raises Unreachable if the connection fails."""
        for start in range(0, len(data), _PIECE_BYTES):
            await self._channels.send(_STDIN, data[start : start + _PIECE_BYTES])

    async def close_stdin(self) -> None:
        """Send the end of stdin. Raises ProviderError if the API server is older than Kubernetes 1.30."""
        self.require_closing()
        await self._channels.send(_CLOSE, bytes((_STDIN,)))

    def require_closing(self) -> None:
        """Raise ProviderError if `close_stdin` would."""
        if self._channels.protocol != _CLOSES_STDIN:
            raise ProviderError(
                f"failed to close stdin of {self._asked}: the API server speaks {self._channels.protocol}, which has no"
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
        """Receive until the server closes: the API server may send the status before the last output."""
        try:
            return await self._channels.receive()
        except Unreachable:
            if self._status:
                return None
            raise

    def _read_status(self) -> int:
        if not self._status:
            raise Unreachable(f"{self._asked}: the stream ended without an exit code", kind="connect")
        return _exit_code(self._status, asked=self._asked)

    async def wait(self) -> int:
        """Return the exit code when the command has ended; what it writes until then is dropped.

        Raises ApiError if the command cannot be run, and Unreachable if the connection fails.
        """
        async for _ in self:
            pass
        return cast("int", self.exit_code)


def _exit_code(data: bytes, *, asked: str) -> int:
    """Read the Status at the end of a command. Raises ApiError if the command did not run."""
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
