"""Background checks of the shared etcd, so that /readyz can answer without a request to etcd."""

from __future__ import annotations

import asyncio
from typing import Final, NoReturn

from kplane.controlplane_operator.shared_etcd.access import SharedEtcd
from kplane.controlplane_operator.watch.backoff import jittered

__all__ = ["EtcdHealth"]

_PERIOD_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 1.0
_DEADLINE_SECONDS: Final = 3.0


class EtcdHealth:
    """Checks the shared etcd periodically, and keeps the last result."""

    def __init__(self, etcd: SharedEtcd) -> None:
        """Check this etcd."""
        self._etcd = etcd
        self.problem: str | None = "the shared etcd was not checked yet"
        """Problem that the last check found; None if the etcd is healthy."""

    async def run(self) -> NoReturn:
        """Check until cancelled, every second while there is a problem, and otherwise every five seconds."""
        while True:
            self.problem = await self._check()
            await asyncio.sleep(jittered(_PERIOD_SECONDS if self.problem is None else _RETRY_SECONDS))

    async def _check(self) -> str | None:
        try:
            async with asyncio.timeout(_DEADLINE_SECONDS):
                return await self._etcd.problem()
        except TimeoutError:
            return f"the shared etcd at {self._etcd.endpoint} did not answer within {_DEADLINE_SECONDS:g} s"
        except Exception as error:  # noqa: BLE001 - whatever the check meets, the answer is "not ready"
            return f"failed to check the shared etcd at {self._etcd.endpoint}: {type(error).__name__}: {error}"
