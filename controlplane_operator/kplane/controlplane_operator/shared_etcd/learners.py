"""Promotes members that join the chart's etcd, once they have the data."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NoReturn

from kplane.controlplane_operator.errors import KeyspaceError
from kplane.controlplane_operator.shared_etcd.access import SharedEtcd
from kplane.controlplane_operator.watch.backoff import jittered

__all__ = ["LearnerPromoter"]

_log = logging.getLogger(__name__)

_PERIOD_SECONDS: Final = 5.0


class LearnerPromoter:
    """Checks for learners periodically. Pods add themselves as learners, and etcd accepts one learner at a time."""

    def __init__(self, etcd: SharedEtcd) -> None:
        """Promote the learners of this etcd."""
        self._etcd = etcd

    async def run(self) -> NoReturn:
        """Promote learners until cancelled."""
        while True:
            try:
                for name in await self._etcd.keyspace.promote_learners():
                    _log.info("%s has a vote in the shared etcd", name)
            except KeyspaceError as error:
                # `EtcdHealth` reports problems of the etcd.
                _log.debug("failed to promote learners of the shared etcd: %s", error)
            await asyncio.sleep(jittered(_PERIOD_SECONDS))
