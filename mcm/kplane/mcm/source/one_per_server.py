"""Limit of one instance for each API server, if several objects of a source stand for the same API server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from kplane.api.addresses import normalized_address
from kplane.provider import Cluster, Fleet, Provider
from kplane.provider.aio.backoff import Backoff
from kplane.provider.providers.kplane import EndpointProvider, address_of

__all__ = ["Age", "OnePerServerProvider", "noting_elsewhere"]

logger = logging.getLogger(__name__)

Age = tuple[str, str]
"""metadata.creationTimestamp and metadata.uid of an object; the smallest age is the oldest.

Creation times are whole seconds. Of two objects of the same second, the object with an instance keeps it. If another
mcm has one of the two, the smaller uid comes first, because that mcm must come to the same result.
"""


class OnePerServerProvider:
    """Provider that passes on the clusters of another provider, but for each API server only the oldest cluster.

    The normalized address identifies an API server. The next cluster follows after the former cluster was removed. A
    cluster counts only if the other provider passes it on, which requires credentials. Clusters of another mcm count by
    their objects (`note_elsewhere`), because only that mcm reads their credentials.
    """

    def __init__(
        self, provider: Provider, *, age: Callable[[str], Age], refused: Callable[[Cluster, str], None]
    ) -> None:
        """`age` returns the age of a cluster's object. `refused` gets the reason if an older cluster has the server."""
        self._provider = provider
        self._age = age
        self._refused = refused
        self._elsewhere: dict[str, _Claim] = {}
        self._changed: Callable[[str], None] = lambda _server: None

    @property
    def name(self) -> str:
        """Name of the wrapped provider, for logs and metrics."""
        return self._provider.name

    def note_elsewhere(self, name: str, address: str | None) -> None:
        """Note the address of a cluster of another mcm; None: the cluster is gone, or belongs to this mcm."""
        claim = _Claim(_normalized(address), self._age(name)) if address is not None else None
        former = self._elsewhere.pop(name, None)
        if claim is not None:
            self._elsewhere[name] = claim
        if claim != former:
            for server in {entry.server for entry in (former, claim) if entry is not None}:
                self._changed(server)

    async def run(self, fleet: Fleet) -> None:
        """See `Provider.run`."""
        async with asyncio.TaskGroup() as tasks:
            present = _OnePerServerFleet(
                fleet, tasks=tasks, age=self._age, refused=self._refused, elsewhere=self._elsewhere
            )
            self._changed = present.look
            try:
                await self._provider.run(present)
            finally:
                self._changed = lambda _server: None


def noting_elsewhere(
    provider: OnePerServerProvider, *, endpoints: EndpointProvider, mine: Callable[[str], bool]
) -> Callable[[], None]:
    """Return a function that notes all endpoints of other mcm in `provider`; call it each time that `mine` changes.

    `mine` returns whether this mcm owns an endpoint. Changes of endpoints are noted without a call.
    """

    def note(name: str) -> None:
        endpoint = endpoints.endpoint(name)
        provider.note_elsewhere(name, address_of(endpoint) if endpoint is not None and not mine(name) else None)

    def note_all() -> None:
        for name in endpoints.names():
            note(name)

    endpoints.listen(note)
    return note_all


class _Claim(NamedTuple):
    server: str
    age: Age


class _Wish(NamedTuple):
    cluster: Cluster
    server: str
    age: Age


class _OnePerServerFleet:
    """Fleet of the wrapped provider: has all clusters, also refused clusters."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        tasks: asyncio.TaskGroup,
        age: Callable[[str], Age],
        refused: Callable[[Cluster, str], None],
        elsewhere: Mapping[str, _Claim],
    ) -> None:
        self._fleet = fleet
        self._tasks = tasks
        self._elsewhere = elsewhere
        self._waiting: set[str] = set()
        self._age = age
        self._refused = refused
        self._wishes: dict[str, _Wish] = {}
        self._passed_on: Final[dict[str, str]] = {}
        """Servers of the clusters that the fleet has, or may have."""
        self._told: dict[str, str] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def add_or_replace(self, cluster: Cluster) -> None:
        """See `Fleet.add_or_replace`. Passes the cluster on if no older cluster has the server, else reports that."""
        wish = _Wish(cluster, _server(cluster), self._age(cluster.name))
        self._wishes[cluster.name] = wish
        former = self._passed_on.get(cluster.name)
        if former is not None and former != wish.server:
            await self._settle(former)
        await self._settle(wish.server)

    async def remove(self, name: str) -> None:
        """See `Fleet.remove`. The next cluster of the same server follows."""
        wish, server = self._wishes.pop(name, None), self._passed_on.get(name)
        self._told.pop(name, None)
        if server is not None:
            await self._settle(server)
        elif wish is None:
            await self._fleet.remove(name)

    def get(self, name: str) -> Cluster:
        """See `Fleet.get`."""
        wish = self._wishes.get(name)
        return self._fleet.get(name) if wish is None or name in self._passed_on else wish.cluster

    def names(self) -> list[str]:
        """See `Fleet.names`."""
        return sorted({*self._fleet.names(), *self._wishes})

    def look(self, server: str) -> None:
        """Settle a server again after a change of another mcm's clusters; failures are retried."""
        if server not in self._waiting and any(wish.server == server for wish in self._wishes.values()):
            self._waiting.add(server)
            self._tasks.create_task(self._look(server), name=f"one instance for {server}")

    async def _look(self, server: str) -> None:
        self._waiting.discard(server)
        backoff = Backoff(initial_seconds=0.5, maximum_seconds=30.0)
        while True:
            try:
                await self._settle(server)
            except Exception:
                delay = backoff.next_delay()
                logger.exception("failed to change the instances for %s; retrying in %.1f s", server, delay)
                await asyncio.sleep(delay)
            else:
                return

    async def _settle(self, server: str) -> None:
        """Make the oldest cluster of a server its only cluster in the fleet. May be repeated at any time."""
        async with self._locks.setdefault(server, asyncio.Lock()):
            while leaving := [name for name in self._present(server) if name != self._holder(server)]:
                await self._fleet.remove(leaving[0])
                del self._passed_on[leaving[0]]
            holder = self._holder(server)
            if holder is not None:
                self._passed_on[holder] = server
                self._told.pop(holder, None)
                await self._fleet.add_or_replace(self._wishes[holder].cluster)
        self._tell(server)

    def _present(self, server: str) -> list[str]:
        return [name for name, address in self._passed_on.items() if address == server]

    def _holder(self, server: str) -> str | None:
        """Return the cluster of a server that the fleet has to have; None if another mcm has it or there is none."""
        oldest = self._oldest(server)
        return oldest if oldest in self._wishes and oldest not in self._elsewhere else None

    def _oldest(self, server: str) -> str | None:
        elsewhere = {name: claim.age for name, claim in self._elsewhere.items() if claim.server == server}
        here = {name: wish.age for name, wish in self._wishes.items() if wish.server == server}
        # Another mcm does not know which cluster has an instance here. Two mcm must agree, so the uid decides then.
        served = frozenset(self._present(server) if not elsewhere else ())

        def precedence(candidate: tuple[str, Age]) -> tuple[str, bool, str]:
            name, (created, uid) = candidate
            return created, name not in served, uid

        candidates = (elsewhere | here).items()
        return min(candidates, key=precedence)[0] if candidates else None

    def _tell(self, server: str) -> None:
        holder = self._oldest(server)
        for name, wish in self._wishes.items():
            if holder is None or wish.server != server or name == holder or self._told.get(name) == holder:
                continue
            if name in self._elsewhere:
                continue  # the other mcm reports it
            self._told[name] = holder
            why = (
                f"{holder}, which {_priority_over(wish.age, self._age(holder))}, has the API server at {server}; delete"
                " one of the two or correct its URL"
            )
            logger.warning("cluster %s has no instance: %s", name, why)
            self._refused(wish.cluster, why)


def _priority_over(other: Age, holder: Age) -> str:
    """Return why the holder takes precedence over another object, as the end of "X, which ..."."""
    return "is older" if holder[0] < other[0] else "was created in the same second and comes first"


def _server(cluster: Cluster) -> str:
    return _normalized(cluster.config.server)


def _normalized(address: str) -> str:
    try:
        return normalized_address(address)
    except ValueError:
        return address
