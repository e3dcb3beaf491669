"""Leader election of the operator: a single operator works on a management cluster at a time."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import secrets
import socket
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn, Self

from kplane.api.names import OPERATOR_LEASE, OPERATOR_LEASE_NAMESPACE
from kplane.controlplane_operator.config import ElectionSettings
from kplane.controlplane_operator.errors import OperatorError
from kplane.provider import Client, ClusterConfig, Election, Lease
from kplane.provider.aio.cancellation import end_tasks
from kplane.provider.contracts import EngagementTarget
from kplane.provider.errors import LeaseLost

__all__ = ["AnotherOperator", "Leadership", "Work"]

Work = Callable[[EngagementTarget], Coroutine[Any, Any, None]]
"""Work of the leader, which runs until cancelled."""

_LABELS: Final = {"app.kubernetes.io/managed-by": "kplane", "app.kubernetes.io/part-of": "kplane"}
_LOCK_FILE: Final = ".operator-lock"
_LOCK_SECONDS: Final = 20.0
"""Maximum wait for the end of a former operator that has released the Lease already."""
_LOCK_RETRY_SECONDS: Final = 0.1
_MARK_LENGTH: Final = 12
_CANCEL_SECONDS: Final = 1.0
"""Time before the expiry of the Lease at which reconciles are cancelled."""
_MARKS: Final = 3
"""Number of parts after the readable part of an identity: installation, directory and process, after underscores."""


class AnotherOperator(OperatorError):
    """An operator of another installation works on the management cluster; the message names that operator."""


class Leadership:
    """Coordinator of the operator's manager: lets it work while it holds the Lease of the management cluster.

    An async context manager. `work` runs while this operator holds the Lease, and allows the manager to reconcile.

    Replicas of one installation wait for each other: pods of one namespace, or processes with one state directory. An
    operator of another installation would maintain the same control planes differently, so `run` refuses to wait for
    that operator. A lock of the state directory shows that its former operator has ended. The next operator then takes
    over the Lease at once.
    """

    def __init__(self, settings: ElectionSettings, *, config: ClusterConfig, state_dir: Path, work: Work) -> None:
        """Open the state directory. Raises OSError if it cannot be used."""
        self._leader_work = work
        self._standing: asyncio.Task[None] | None = None
        self._failed: asyncio.Future[NoReturn] = asyncio.get_running_loop().create_future()
        timings = settings.timings
        self._state_dir = state_dir
        self._lock = _DirectoryLock(state_dir)
        self._stack = AsyncExitStack()
        self._stack.callback(self._lock.close)
        host, pods = socket.gethostname(), settings.pods
        self._installation = self._lock.mark if pods is None else _digest("pods", pods)
        readable = f"{host}:{state_dir}" if pods is None else f"{settings.namespace}/{host}"
        # A separate client with short timeouts, so that renewals do not wait for other requests.
        self._client = Client(
            config,
            timeout_seconds=timings.renew_deadline_seconds / 2,
            connect_timeout_seconds=timings.renew_deadline_seconds / 2,
            field_manager="kplane",
        )
        self._lease = Lease(
            self._client,
            namespace=OPERATOR_LEASE_NAMESPACE,
            name=OPERATOR_LEASE,
            identity="_".join((readable, self._installation, self._lock.mark, secrets.token_hex(8))),
            timings=timings,
            labels=_LABELS,
            strict=True,
            patience=self._patience,
        )
        self._election = Election(self._lease, watching=self._client, on_wait=self._refuse_others)

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._client)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._failed.cancel():
            _ = self._failed.exception()  # so that asyncio does not log it as never retrieved
        await self._stack.aclose()

    @property
    def leading(self) -> bool:
        """Whether this operator holds the Lease."""
        return self._lease.held

    def role(self) -> str:
        """Return the role of this operator, for /readyz."""
        if self.leading:
            return "leader"
        return f"standby, the leader is {self._lease.holder or 'not known yet'}"

    def require_write(self, cluster: str) -> float:
        """Return the seconds that a write may take. Raises LeaseLost if this operator may not write."""
        del cluster
        if not self.leading:
            raise LeaseLost("the operator writes nothing without the Lease")
        return self._lease.seconds_left

    def may_work(self, cluster: str) -> bool:
        """Return whether this operator holds the Lease."""
        del cluster
        return self.leading

    def grace_seconds(self, cluster: str) -> float:
        """Return the remaining seconds of the Lease, less the time to cancel reconciles."""
        del cluster
        return max(0.0, self._lease.seconds_left - _CANCEL_SECONDS)

    def require_read(self, cluster: str) -> None:
        """Permit reads in every operator."""

    async def run(self, target: EngagementTarget) -> None:
        """Wait for the Lease, and do the work, until cancelled. `wait_failed` raises a failure of either."""
        self._standing = asyncio.create_task(self._election.run(lambda: self._work(target)), name="election")
        try:
            await asyncio.wait((self._standing,))
            if not self._standing.cancelled() and (error := self._standing.exception()) is not None:
                self._failed.set_exception(error)
            # The manager would start an ended coordinator again.
            await asyncio.get_running_loop().create_future()
        finally:
            await self.stop()

    async def stop(self) -> None:
        """End the work of the leader, or the wait for the Lease, and release the Lease."""
        if self._standing is not None:
            await end_tasks([self._standing])

    async def wait_failed(self) -> NoReturn:
        """Wait until the work must end.

        Raises LeaseLost, AnotherOperator if an operator of another installation is alive, and the errors of the work.
        """
        await asyncio.shield(self._failed)
        raise AssertionError

    async def _work(self, target: EngagementTarget) -> None:
        await self._wait_for_lock()
        await self._leader_work(target)

    async def _wait_for_lock(self) -> None:
        """Wait until the former operator of the state directory has ended. Raises AnotherOperator after 20 s."""
        try:
            async with asyncio.timeout(_LOCK_SECONDS):
                while True:
                    if self._lock.try_acquire():
                        return
                    await asyncio.sleep(_LOCK_RETRY_SECONDS)  # flock has no event to wait for
        except TimeoutError:
            raise AnotherOperator(
                f"failed to lock {self._state_dir}: another operator uses this state directory; stop that operator, or"
                " start this one with another --state-dir"
            ) from None

    def _patience(self, holder: str, duration_seconds: int) -> float:
        """Return the time in seconds without a renewal after which the Lease of another holder is free.

        The time is 0 if the holder has used this state directory, and has ended.
        """
        if f"_{self._lock.mark}_" in holder and self._lock.try_acquire():
            return 0.0
        return max(duration_seconds, self._lease.timings.duration_seconds)

    def _refuse_others(self) -> None:
        """Raise AnotherOperator if an operator of another installation is alive."""
        holder = self._lease.renewed_by
        if holder is None or f"_{self._installation}_" in holder:
            return
        name = "_".join(holder.split("_")[:-_MARKS]) or holder
        raise AnotherOperator(
            f"failed to start: operator {name} of another installation has worked on this management cluster since"
            f" {self._lease.held_since}, by {self._lease}; stop that operator, or do not start this one"
        )


class _DirectoryLock:
    """Lock of a state directory. The kernel releases the lock at the end of its process, even after a crash."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = os.open(directory / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        status = os.fstat(self._file)
        # A copy of the file has another inode. The inode of a deleted file may be reused, but with other content.
        self.mark: Final = _digest(socket.gethostname(), status.st_dev, status.st_ino, self._content())
        self.try_acquire()

    def try_acquire(self) -> bool:
        """Take the lock if no other process has it; return whether this process holds it."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Release the lock."""
        os.close(self._file)

    def _content(self) -> bytes:
        while not (content := os.pread(self._file, 64, 0)):
            if self.try_acquire():  # else its holder writes the content now
                os.pwrite(self._file, secrets.token_hex(8).encode(), 0)
        return content


def _digest(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(repr, parts)).encode()).hexdigest()[:_MARK_LENGTH]
