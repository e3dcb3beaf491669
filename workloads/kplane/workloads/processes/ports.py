"""Ports for components, unique among all runtimes of this user on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import secrets
import socket
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from kplane.workloads.errors import RuntimeFailure
from kplane.workloads.processes.directory import ComponentDirectory

__all__ = ["PortRegistry"]

_RANGE = range(16384, 30000)
"""Below Kubernetes' NodePorts (30000..) and Linux' usual ephemeral ports (32768..), which outgoing connections use."""
_LOCK_TRIES = 1000
_LOCK_RETRY_SECONDS = 0.01


class PortRegistry:
    """A directory with one file for each claimed port, which contains the owner's directory.

    A claim is valid only while its owner's address contains the port. So an interrupted call cannot lose a port. The
    registry is in the temporary directory; claims that are deleted there are restored when the owner's runtime starts.
    """

    def __init__(self, *, host: str, directory: Path | None = None) -> None:
        self._host = host
        self._directory = directory or Path(tempfile.gettempdir()) / f"kplane-ports-{os.geteuid()}"

    async def claim(self, owner: ComponentDirectory, *, ports: Sequence[str]) -> dict[str, int]:
        """Assign a number to each name; existing assignments stay. Returns all of the owner's ports.

        Raises RuntimeFailure if no port is free or the registry cannot be used.
        """
        held = owner.read_ports()
        missing = [name for name in ports if name not in held]
        if not missing and owner.exists:
            return held
        async with self._locked():
            try:
                for name in missing:
                    held[name] = self._take(owner, besides=set(held.values()))
                owner.write_ports(held)
            except OSError as error:
                raise RuntimeFailure(f"No port can be reserved for {owner.path}: {error}.") from error
        return held

    async def restore(self, owner: ComponentDirectory) -> None:
        """Restore the claims of the owner's ports, except ports that another owner has claimed.

        Raises RuntimeFailure.
        """
        if numbers := owner.read_ports().values():
            async with self._locked():
                for number in numbers:
                    if self._owner(number) is None:
                        self._claim_file(number).write_text(str(owner.path))

    async def sweep(self) -> None:
        """Remove the claims of deleted owners, which would otherwise stay until their port is needed."""
        async with self._locked():
            await asyncio.to_thread(self._remove_lapsed)

    async def release(self, owner: ComponentDirectory) -> None:
        """Release the owner's ports, before its directory is removed. Raises RuntimeFailure."""
        try:
            numbers = owner.read_ports().values()
        except RuntimeFailure:
            return  # the owner's ports are unknown; their claims lapse with the directory
        if numbers:
            async with self._locked():
                for number in numbers:
                    if self._owner(number) == owner.path:
                        self._claim_file(number).unlink(missing_ok=True)

    @contextlib.asynccontextmanager
    async def _locked(self) -> AsyncIterator[None]:
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._directory.lstat().st_uid != os.geteuid():
                raise RuntimeFailure(f"{self._directory} belongs to another user: remove it, or set TMPDIR.")
            descriptor = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise RuntimeFailure(f"The registry of ports {self._directory} cannot be used: {error}.") from error
        try:
            await self._lock(descriptor)
            yield
        finally:
            os.close(descriptor)

    async def _lock(self, descriptor: int) -> None:
        for _ in range(_LOCK_TRIES):
            if _try_lock(descriptor):
                return
            await asyncio.sleep(_LOCK_RETRY_SECONDS)  # held for milliseconds; flock has no event to wait for
        raise RuntimeFailure(f"The registry of ports {self._directory} stays locked by another process.")

    def _remove_lapsed(self) -> None:
        for file in self._directory.iterdir():
            if file.name.isdecimal() and self._owner(int(file.name)) is None:
                file.unlink(missing_ok=True)

    def _claim_file(self, number: int) -> Path:
        return self._directory / str(number)

    def _owner(self, number: int) -> Path | None:
        try:
            owner = Path(self._claim_file(number).read_text())
        except FileNotFoundError:
            return None
        try:
            return owner if number in ComponentDirectory(owner).read_ports().values() else None
        except FileNotFoundError:
            return None
        except RuntimeFailure:
            return owner  # the owner's record is damaged, so it keeps the port

    def _take(self, owner: ComponentDirectory, *, besides: set[int]) -> int:
        first = secrets.randbelow(len(_RANGE))
        for step in range(len(_RANGE)):
            number = _RANGE[(first + step) % len(_RANGE)]
            if number not in besides and self._owner(number) is None and self._free(number):
                # The owner's address does not contain the port yet: until then, only the lock excludes other owners.
                self._claim_file(number).write_text(str(owner.path))
                return number
        raise RuntimeFailure(
            f"No port from {_RANGE.start} to {_RANGE.stop - 1} is free on {self._host}; {owner.path} needs one."
        )

    def _free(self, number: int) -> bool:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        with socket.socket(family) as probe:
            try:
                probe.bind((self._host, number))
            except OSError as error:
                if error.errno in {errno.EADDRINUSE, errno.EACCES}:
                    return False
                raise
        return True


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
