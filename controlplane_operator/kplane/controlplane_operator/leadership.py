"""Whether this operator is the one that works."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Final, Self

from kplane.controlplane_operator.config import ElectionSettings
from kplane.provider import Client, ClusterConfig, Election, Lease
from kplane.provider.errors import LeaseLost

__all__ = ["Leadership"]

_LABELS: Final = {"app.kubernetes.io/managed-by": "kplane", "app.kubernetes.io/part-of": "kplane"}


class Leadership:
    """Has work done while the Lease is held, or at all times where none is asked for; an async context manager."""

    def __init__(self, settings: ElectionSettings | None, *, config: ClusterConfig) -> None:
        self._stack = AsyncExitStack()
        self._election: Election | None = None
        if settings is None:
            return
        # Connections of its own, and short deadlines: a renewal waits for nothing else.
        self._client = Client(
            config,
            timeout_seconds=settings.timings.renew_deadline_seconds / 2,
            connect_timeout_seconds=settings.timings.renew_deadline_seconds / 2,
        )
        lease = Lease(
            self._client,
            namespace=settings.namespace,
            name=settings.name,
            # The name of the pod tells which one it is; the rest, that it is not the container before this one.
            identity=f"{socket.gethostname()}_{secrets.token_hex(8)}",
            timings=settings.timings,
            labels=_LABELS,
        )
        self._election = Election(lease, watching=self._client)

    async def __aenter__(self) -> Self:
        if self._election is not None:
            await self._stack.enter_async_context(self._client)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    @property
    def leading(self) -> bool:
        """Whether this one may work now."""
        return self._election is None or self._election.lease.held

    def role(self) -> str:
        """Say, for /readyz, what this one does."""
        if self._election is None:
            return "off"
        if self.leading:
            return "leader"
        return f"standby, the leader is {self._election.lease.holder or 'not known yet'}"

    def check(self) -> None:
        """Raise LeaseLost where this one may not write."""
        if not self.leading:
            raise LeaseLost("nothing is written without the Lease")

    async def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Wait until this one may work, and do; see `Election.run`. Raises LeaseLost."""
        if self._election is None:
            await work()
        else:
            await self._election.run(work)
