"""Disarms the NOSPACE alarm of a shared etcd once it has free space, for example after the clean-up of a copy."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NoReturn

from kplane.controlplane_operator.errors import KeyspaceError
from kplane.controlplane_operator.shared_etcd.access import SharedEtcd
from kplane.controlplane_operator.watch.backoff import jittered

__all__ = ["SpaceAlarms"]

_log: Final = logging.getLogger(__name__)

_PERIOD_SECONDS: Final = 30.0
_AGAIN_SECONDS: Final = 600.0
"""Pause in seconds after a disarmed alarm.

Defragmentation stops each member for some time, so an etcd that fills up again is left to its administrator.
"""


class SpaceAlarms:
    """Checks the alarm periodically. While the alarm is raised, etcd refuses the writes of all tenants."""

    def __init__(self, etcd: SharedEtcd) -> None:
        """Watch this etcd."""
        self._etcd = etcd

    async def run(self) -> NoReturn:
        """Disarm the alarm if the etcd has free space, until cancelled."""
        while True:
            pause = _PERIOD_SECONDS
            try:
                if await self._etcd.keyspace.disarm():
                    _log.warning("the shared etcd at %s was full, and takes writes again", self._etcd.endpoint)
                    pause = _AGAIN_SECONDS
            except KeyspaceError as error:
                # `EtcdHealth` reports problems of the etcd.
                _log.debug("failed to disarm the shared etcd: %s", error)
            await asyncio.sleep(jittered(pause))
