"""The etcd of a dedicated control plane: one member, or three, two of which have to run.

An etcd of three begins with a single member. Each further member joins as a learner, and gets its vote when it has the
data. A member whose data are lost is removed and joins anew. Each call of `ensure` takes at most one such step, and
reads the results of earlier steps from etcd and from the runtime. So an interruption at any point does no harm.

The data of each member that ever had a vote carry a mark (`Runtime.mark_data`). A member with a vote and without a mark
has lost its data if it is not ready. Its program does not start on new data, because its configuration has it join a
cluster that consists of itself alone.

The only member gets a mark as soon as its etcd has begun, before an API server uses it. From then on, it does not start
on new data either. After an accepted loss, the member begins once more, and its new data get another mark.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kplane.api import ControlPlane
from kplane.api.reasons import Reason
from kplane.components.etcd import ETCD_PORTS, Membership, client_url, etcd_component, peer_url, quota_of
from kplane.components.names import MOST_ETCD_MEMBERS, apiserver_name, etcd_name
from kplane.controlplane_operator.backends.base import VersionLag, check_ready, is_crashing
from kplane.controlplane_operator.backends.trial import SchedulingTrial
from kplane.controlplane_operator.status.errors import ConditionError, start_reason
from kplane.data import Client, DataError, HeldCredentials, LearnerBehind, Member
from kplane.pki.primitives import KeyPair
from kplane.workloads import (
    Address,
    Component,
    ComponentState,
    Phase,
    Runtime,
    RuntimeFailure,
    Scheduling,
    Storage,
    WorkloadsError,
)

__all__ = ["DedicatedEtcd", "EtcdKeys", "EtcdMembers", "EtcdWithoutData", "Founding"]

_log = logging.getLogger(__name__)

_CALL_SECONDS: Final = 5.0
_SOON_SECONDS: Final = 0.5
_LOOK_AGAIN_SECONDS: Final = 5.0
"""Seconds until the next pass while a learner copies the data, because etcd sends no event at its end."""
_ATTEMPTS: Final = 5
"""Number of attempts of one call to promote a learner."""
_ASK_AGAIN_SECONDS: Final = 0.2
_ANYWHERE: Final = SchedulingTrial(None)
_ALONE: Final = "alone"
"""Mark of data of the only member."""
_VOTED: Final = "voted"
"""Mark of data whose member has a vote, or was about to get it."""
_COMPLETE: Final = "complete"
"""Mark of data whose etcd had all its members at least once."""
_NO_CLUSTER: Final = "cannot fetch cluster info from peer urls"
"""Last words of an etcd that may not begin a cluster, and has no data."""


class EtcdWithoutData(ConditionError):
    """The only member of an etcd has no data, and does not begin without them."""


@dataclass(frozen=True, slots=True)
class Founding:
    """Permission for an etcd of one member to begin without data."""

    begins_at: int | None = None
    """Revision at which the etcd begins, until its data are complete; None if any revision will do."""
    after: str | None = None
    """Name of the accepted loss of the former data; None if there were no data."""

    @property
    def mark(self) -> str:
        """Mark of the data after this permission is used."""
        return _ALONE if self.after is None else f"{_ALONE}-{self.after}"

    def is_over(self, mark: str | None) -> bool:
        """Return whether data with this mark, or lost data that had it, used up the permission."""
        return mark == self.mark or (self.after is None and mark is not None)


@dataclass(frozen=True, slots=True)
class EtcdKeys:
    """Certificates of members and clients."""

    ca: bytes
    server: KeyPair
    """Serving and peer certificate of each member."""
    client: KeyPair


@dataclass(frozen=True, slots=True)
class EtcdMembers:
    """Result of `ensure`."""

    voters: tuple[Address, ...]
    """Addresses of the members that API servers connect to."""
    settled: bool
    """Whether all members run as described last."""
    lag: VersionLag | None = None
    """Reason why the etcd differs from the request; None if it does not."""
    again_seconds: float | None = None
    """Seconds until the next call, because a change may come without an event; None if events suffice."""
    held: bool = False
    """Whether a member keeps a scheduling other than that of its class."""


@dataclass(slots=True)
class _Look:
    """Snapshot of an etcd of several members: the state of each in the runtime and in etcd."""

    control_plane: ControlPlane
    keys: EtcdKeys
    trial: SchedulingTrial
    names: list[str]
    addresses: list[Address]
    states: list[ComponentState]
    marks: list[str | None]
    entries: list[Member | None] = field(default_factory=list)

    @property
    def everyone(self) -> range:
        return range(len(self.names))

    def ready(self, number: int) -> bool:
        return self.states[number].phase is Phase.READY

    def voters(self) -> list[int]:
        return [number for number in self.everyone if (entry := self.entries[number]) is not None and not entry.learner]

    def others_ready(self, number: int) -> bool:
        """Return whether other voters exist and all are ready, so that etcd serves without this member."""
        others = [other for other in self.voters() if other != number]
        return bool(others) and all(self.ready(other) for other in others)

    def serves(self) -> bool:
        """Return whether an etcd that was complete has a majority, as far as the runtime knows."""
        complete = all(mark == _COMPLETE for mark in self.marks)
        return complete and sum(map(self.ready, self.everyone)) * 2 > len(self.names)

    def is_lost(self, number: int) -> bool:
        """Return whether the data that etcd expects of this member are missing."""
        entry = self.entries[number]
        if entry is None or self.marks[number] is not None or self.ready(number):
            return False
        # A learner that crashes repeatedly may have begun with data of another etcd.
        return not entry.learner or self.states[number].phase is Phase.BACKOFF

    def told(self, number: int) -> str:
        state = self.states[number]
        return f"{state.name} is {state.phase}" + (f": {state.message}" if state.message else "")


@dataclass(frozen=True, slots=True)
class _Awaited:
    """Description of the event that a step waits for; `soon` if the wait takes moments."""

    what: str
    soon: bool = False


class DedicatedEtcd:
    """Runs the members, and adds them to etcd."""

    def __init__(self, runtime: Runtime, *, quota_bytes: int) -> None:
        """Set the database size at which an etcd on a volume of the default size refuses writes."""
        self._runtime = runtime
        self._quota_bytes = quota_bytes

    def wanted(self, control_plane: ControlPlane, *, asked: int) -> int:
        """Return the target number of members: all, once a second member was begun, and otherwise `asked`."""
        return MOST_ETCD_MEMBERS if self._begun(control_plane) else asked

    async def reserve(self, control_plane: ControlPlane, *, wanted: int) -> list[Address]:
        """Reserve and return the addresses of the members, or of the first alone until its data have a voter's mark."""
        first = etcd_name(control_plane.name, slot=control_plane.home.slot)
        alone = wanted == 1 or (
            not self._begun(control_plane) and await self._runtime.data_mark(first) not in {_VOTED, _COMPLETE}
        )
        return [
            await self._runtime.reserve(
                etcd_name(control_plane.name, number, slot=control_plane.home.slot), ports=ETCD_PORTS
            )
            for number in range(1 if alone else wanted)
        ]

    async def ensure(
        self,
        control_plane: ControlPlane,
        *,
        addresses: Sequence[Address],
        wanted: int,
        keys: EtcdKeys,
        founding: Founding | None,
        trial: SchedulingTrial = _ANYWHERE,
    ) -> EtcdMembers:
        """Run the members with the addresses of `reserve`, and take the next step towards `wanted` members.

        A single member without data begins only with `founding`. Existing members keep their scheduling while `trial`
        holds them.

        Raises ConditionError while no API server can use the etcd, and EtcdWithoutData if a single member has no data.
        Before the publication of the control plane, also raises ConditionError while a member is missing.
        """
        if len(addresses) == 1:
            result = await self._alone(
                control_plane,
                address=addresses[0],
                wanted=wanted,
                keys=keys,
                trial=trial,
                founding=founding,
            )
        else:
            result = await self._several(control_plane, addresses=addresses, keys=keys, trial=trial)
        if result.lag is not None and control_plane.status.endpoint is None:
            raise ConditionError(Reason.PROVISIONING, result.lag.message)
        return result

    async def _alone(
        self,
        control_plane: ControlPlane,
        *,
        address: Address,
        wanted: int,
        keys: EtcdKeys,
        trial: SchedulingTrial,
        founding: Founding | None,
    ) -> EtcdMembers:
        name, published = (
            etcd_name(control_plane.name, slot=control_plane.home.slot),
            control_plane.status.endpoint is not None,
        )
        several = wanted > 1
        begins = await self._begins(name, founding=founding, several=several)
        membership = Membership(0, {0: peer_url(address)}, joins=not begins)
        component = self._describe(
            control_plane,
            address=address,
            keys=keys,
            scheduling=trial.scheduling,
            membership=membership,
            several=several,
            begins_at=founding.begins_at if begins and founding is not None else None,
        )
        held = trial.holds(self._runtime.state(name))
        await self._runtime.apply(replace(component, scheduling_held=held))
        if not begins and await self._runtime.data_mark(name) is None:
            with contextlib.suppress(RuntimeFailure):  # the volume may not exist yet
                await self._runtime.mark_data(name, _ALONE)
        try:
            await check_ready(self._runtime, name, what="etcd", published=published)
        except ConditionError as error:
            # Check after the failure, because a pod that is being replaced has no node for a moment either.
            if held and self._runtime.state(name).unplaced:
                await self._runtime.apply(component)
            if not begins and _NO_CLUSTER in self._runtime.state(name).message:
                raise EtcdWithoutData(error.reason, f"{name} has no data") from error
            raise
        settled = self._runtime.settled(name)
        if not several:
            return EtcdMembers((address,), settled, held=self._keeps_scheduling(name, trial=trial))
        # From now on, other members may have more data than this one, so it must not start on other data any more.
        await self._runtime.mark_data(name, _VOTED)
        return EtcdMembers((address,), settled, _lag(1, of=wanted, why="the next one is about to join"), _SOON_SECONDS)

    async def _begins(self, name: str, *, founding: Founding | None, several: bool) -> bool:
        """Return whether the only member may begin without data. Marks new data once that is over.

        Without `founding`, the data were served. If they have no mark, an earlier version made them, or they are lost.
        The former are not restarted while they run. A member that does not run is restarted in any case.
        """
        mark, ready = await self._runtime.data_mark(name), self._runtime.state(name).phase is Phase.READY
        if founding is not None:
            if founding.is_over(mark):
                return False
            if not ready or several or founding.begins_at is not None:
                return True
            await self._runtime.mark_data(name, founding.mark)
            return False
        if mark is not None:
            return False
        # The state of a program that ended a moment ago may still be READY.
        if await self._runtime.has_data(name):
            with contextlib.suppress(ConditionError):
                await check_ready(self._runtime, name, what="etcd", published=True)
                return True
        return False

    async def confirm(self, control_plane: ControlPlane, *, founding: Founding) -> bool:
        """Mark the data of the only member, which begins at the required revision.

        Returns whether the next call of `ensure` restarts the member, because the mark is new.
        """
        name = etcd_name(control_plane.name, slot=control_plane.home.slot)
        mark = await self._runtime.data_mark(name)
        if self._begun(control_plane) or mark in {_VOTED, _COMPLETE} or founding.is_over(mark):
            return False
        await self._runtime.mark_data(name, founding.mark)
        return True

    def _keeps_scheduling(self, name: str, *, trial: SchedulingTrial) -> bool:
        """Return whether a settled member has a scheduling other than the desired one."""
        return self._runtime.settled(name) and not self._runtime.placed(name, trial.scheduling)

    async def _several(
        self,
        control_plane: ControlPlane,
        *,
        addresses: Sequence[Address],
        keys: EtcdKeys,
        trial: SchedulingTrial,
    ) -> EtcdMembers:
        names = [
            etcd_name(control_plane.name, number, slot=control_plane.home.slot) for number in range(len(addresses))
        ]
        look = _Look(
            control_plane=control_plane,
            keys=keys,
            trial=trial,
            names=names,
            addresses=list(addresses),
            states=[self._runtime.state(name) for name in names],
            marks=[await self._runtime.data_mark(name) for name in names],
        )
        connected = await _connect(look)
        if connected is None:
            await self._revive(look)
            if control_plane.status.endpoint is not None and look.serves():
                # The API server reaches etcd without the operator. So the pass continues, and keeps the API server up
                # to date.
                lag = VersionLag(Reason.ETCD_INCOMPLETE, "the operator does not reach the members of etcd")
                return EtcdMembers(tuple(look.addresses), settled=False, lag=lag, again_seconds=_LOOK_AGAIN_SECONDS)
            raise self._no_majority(look, why="waiting for a majority of the members of etcd")
        etcd, members = connected
        async with etcd:
            look.entries = [members.get(peer_url(address)) for address in look.addresses]
            if not look.voters():
                raise self._no_majority(look, why="etcd knows none of its members by their addresses")
            try:
                awaited = await self._step(look, etcd=etcd)
            except (DataError, WorkloadsError) as error:
                awaited = _Awaited(str(error))
        return await self._result(look, awaited=awaited, settled=await self._keep(look))

    async def _result(self, look: _Look, *, awaited: _Awaited | None, settled: bool) -> EtcdMembers:
        voters = look.voters()
        complete = len(voters) == len(look.names)
        if complete and not all(mark == _COMPLETE for mark in look.marks):
            for number in voters:
                if look.marks[number] is not None:
                    await self._runtime.mark_data(look.names[number], _COMPLETE)
        # During the growth, the API server changes its endpoints only once. Later, each voter may be the last one.
        used = voters if complete or _COMPLETE in look.marks else voters[:1]
        unready = [number for number in voters if not look.ready(number)]
        again = None
        if not complete or awaited is not None:
            again = _SOON_SECONDS if awaited is not None and awaited.soon else _LOOK_AGAIN_SECONDS
        if awaited is None and unready:
            awaited = _Awaited("; ".join(look.told(number) for number in unready))
        lag = _lag(len(voters) - len(unready), of=len(look.names), why=awaited.what) if awaited is not None else None
        held = any(self._keeps_scheduling(look.names[number], trial=look.trial) for number in voters)
        return EtcdMembers(tuple(look.addresses[number] for number in used), settled, lag, again, held)

    async def _revive(self, look: _Look) -> None:
        """Start all members that have data, because no majority answers."""
        for number in look.everyone:
            if not look.ready(number) and look.marks[number] is not None:
                await self._apply(look, number, among=[number])

    def _no_majority(self, look: _Look, *, why: str) -> ConditionError:
        published = look.control_plane.status.endpoint is not None
        crashing = any(map(is_crashing, look.states))
        reason = start_reason(Reason.ETCD_UNAVAILABLE if crashing else Reason.PROVISIONING, published=published)
        states = ", ".join(map(look.told, look.everyone))
        return ConditionError(reason, f"{why}: {states}")

    async def _step(self, look: _Look, *, etcd: Client) -> _Awaited | None:
        """Take the step that is due.

        Returns a description of the event that the next step waits for; None if no member is missing.
        """
        for number in filter(look.is_lost, look.everyone):
            name, entry = look.names[number], look.entries[number]
            if entry is None or not look.others_ready(number):
                return _Awaited(f"{name} has lost its data, and joins anew when the others are ready")
            _log.warning("%s has lost its data: it is removed from etcd, and joins anew", name)
            await etcd.members.remove(entry.id)
            look.entries[number] = None
            return _Awaited(f"{name} has lost its data, and joins anew", soon=True)
        joining = next((index for index in look.everyone if (member := look.entries[index]) and member.learner), None)
        if joining is None:
            missing = [number for number in look.everyone if look.entries[number] is None]
            if not missing:
                return None
            joining = missing[0]
            if not all(map(look.ready, look.voters())):
                return _Awaited(f"{look.names[joining]} joins when the others are ready")
            unmarked = [look.names[number] for number in look.voters() if look.marks[number] is None]
            if unmarked:
                problem = f"{unmarked[0]} runs on data without a mark, which may be new"
                return _Awaited(f"{problem}: see docs/how-to/dedicated-members.md")
            await self._add(look, joining, etcd=etcd)
        return await self._join(look, joining, etcd=etcd)

    async def _add(self, look: _Look, number: int, *, etcd: Client) -> None:
        """Add a member without data to etcd as a learner.

        Deletes the component first, because etcd cannot use its unmarked data. Raises RuntimeFailure if the data have a
        mark.
        """
        name = look.names[number]
        if await self._runtime.data_mark(name) is not None:
            # etcd may know the member by another address, or the etcd may have been replaced.
            raise RuntimeFailure(
                f"{name} has data, and etcd does not know it by {peer_url(look.addresses[number])}; to give these data"
                " up, remove their mark (docs/how-to/dedicated-members.md)"
            )
        await self._runtime.delete(name)
        look.addresses[number] = await self._runtime.reserve(name, ports=ETCD_PORTS)
        await etcd.members.add_learner(peer_url(look.addresses[number]))

    async def _join(self, look: _Look, number: int, *, etcd: Client) -> _Awaited:
        """Start a learner, and promote it to a voter once it has the data."""
        name, url = look.names[number], peer_url(look.addresses[number])
        members = {member.peer_url: member for member in await etcd.members.list()}
        await self._apply(
            look, number, among=[index for index in look.everyone if peer_url(look.addresses[index]) in members]
        )
        for _ in range(_ATTEMPTS):
            if await self._promoted(name, url=url, etcd=etcd):
                _log.info("%s has a vote in etcd", name)
                return _Awaited(f"{name} has its vote, and is not ready yet", soon=True)
            await asyncio.sleep(_ASK_AGAIN_SECONDS)
        look.states[number] = self._runtime.state(name)
        return _Awaited(f"it copies the data; {look.told(number)}")

    async def _promoted(self, name: str, *, url: str, etcd: Client) -> bool:
        entry = next((member for member in await etcd.members.list() if member.peer_url == url), None)
        if entry is None or not entry.name:
            return False
        # Mark before the promotion: a voter with unmarked data would look like a voter whose data are lost.
        await self._runtime.mark_data(name, _VOTED)
        try:
            await etcd.members.promote(entry.id)
        except LearnerBehind:
            return False
        return True

    async def _keep(self, look: _Look) -> bool:
        """Apply the description of each voter, one at a time; return whether all voters run as described.

        A ready member is changed only while all others are ready, so that etcd serves meanwhile.
        """
        voters = look.voters()
        complete = len(voters) == len(look.names)
        unsettled = {number for number in voters if not look.ready(number)}
        for number in voters:
            lost = look.marks[number] is None and not look.ready(number)
            if lost or (look.ready(number) and (unsettled or not complete)):
                continue
            try:
                await self._apply(look, number, among=[number])
            except WorkloadsError as error:
                # The failure must not delay other members or the API server.
                _log.warning("%s is not changed: %s", look.names[number], error)
            if not self._runtime.settled(look.names[number]):
                unsettled.add(number)
        return complete and not unsettled

    async def _apply(self, look: _Look, number: int, *, among: Sequence[int]) -> None:
        """Apply the description of a member. Without data, the member begins with the members `among`.

        If `among` has only the member itself, its program does not start without data.
        """
        urls = {index: peer_url(look.addresses[index]) for index in among}
        membership = Membership(number, urls, joins=True)
        component = self._describe(
            look.control_plane,
            address=look.addresses[number],
            keys=look.keys,
            scheduling=look.trial.scheduling,
            membership=membership,
            several=True,
        )
        held = look.trial.holds(look.states[number]) and not look.states[number].unplaced
        await self._runtime.apply(replace(component, scheduling_held=held))

    def _describe(
        self,
        control_plane: ControlPlane,
        *,
        address: Address,
        keys: EtcdKeys,
        scheduling: Scheduling | None,
        membership: Membership,
        several: bool,
        begins_at: int | None = None,
    ) -> Component:
        numbers = range(MOST_ETCD_MEMBERS if several else 1)
        own = etcd_name(control_plane.name, membership.number, slot=control_plane.home.slot)
        names = [
            name
            for number in numbers
            if (name := etcd_name(control_plane.name, number, slot=control_plane.home.slot)) != own
        ]
        volume = control_plane.home.volume
        return etcd_component(
            own,
            address=address,
            ca=keys.ca,
            server=keys.server,
            quota_bytes=quota_of(control_plane.home, usual=self._quota_bytes),
            reached_by=(apiserver_name(control_plane.name, slot=control_plane.home.slot),),
            scheduling=scheduling,
            membership=membership,
            peers=names,
            begins_at=begins_at,
            storage=Storage(size=volume.size, storage_class=volume.storage_class_name) if volume is not None else None,
        )

    def _begun(self, control_plane: ControlPlane) -> bool:
        names = self._runtime.names()
        return any(
            etcd_name(control_plane.name, number, slot=control_plane.home.slot) in names
            for number in range(1, MOST_ETCD_MEMBERS)
        )


async def _connect(look: _Look) -> tuple[Client, dict[str, Member]] | None:
    """Connect to a member that knows the members by majority; return the client, and the members by peer URL.

    Returns None if no member answers.
    """
    pair = look.keys.client
    credentials = HeldCredentials(ca=look.keys.ca, certificate=pair.certificate, key=pair.key)
    for number in filter(look.ready, look.everyone):
        client = Client(client_url(look.addresses[number]), credentials=credentials, timeout_seconds=_CALL_SECONDS)
        try:
            members = {member.peer_url: member for member in await client.members.list()}
        except DataError as error:
            _log.warning("%s does not tell the members of etcd: %s", look.names[number], error)
            await client.close()
        else:
            return client, members
    return None


def _lag(present: int, *, of: int, why: str) -> VersionLag:
    return VersionLag(Reason.ETCD_INCOMPLETE, f"{present} of {of} members of etcd are ready: {why}")
