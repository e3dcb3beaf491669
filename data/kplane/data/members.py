"""The members of an etcd cluster: list, add, promote and remove them."""

from __future__ import annotations

from dataclasses import dataclass

from kplane.data import rpc
from kplane.data._proto import etcd_pb2 as pb
from kplane.data.connection import Connection

__all__ = ["Member", "Members"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member of an etcd cluster, as recorded in the membership of the cluster."""

    id: int
    name: str
    """Empty until the member's program has started for the first time."""
    peer_url: str
    client_url: str
    """Empty until the member's program has started for the first time."""
    learner: bool
    """Whether the member only copies data and has no vote."""


class Members:
    """Calls about members. Each method raises DataError."""

    def __init__(self, connection: Connection, *, timeout_seconds: float) -> None:
        """Use a connection. `timeout_seconds` is the deadline of each call."""
        self._connection = connection
        self._timeout_seconds = timeout_seconds

    async def list(self) -> tuple[Member, ...]:
        """Return the members, sorted by peer URL. The read is linearizable: it needs a quorum."""
        answer = await self._call(rpc.MEMBER_LIST, pb.MemberListRequest(linearizable=True))
        return tuple(sorted(map(_member, answer.members), key=lambda member: member.peer_url))

    async def leader(self) -> int:
        """Return the id of the leader as the member that answers sees it; 0 if there is no leader."""
        return (await self._call(rpc.STATUS, pb.StatusRequest())).leader

    async def add_learner(self, peer_url: str) -> None:
        """Add a member without a vote; its program may start afterwards. Raises AlreadyExists."""
        await self._call(rpc.MEMBER_ADD, pb.MemberAddRequest(peerURLs=[peer_url], isLearner=True))

    async def promote(self, member: int) -> None:
        """Give a learner its vote. Raises LearnerBehind, and NotFound if the member does not exist.

        If access control is on, the call must go to the leader: a request that a follower forwards names no user.
        """
        await self._call(rpc.MEMBER_PROMOTE, pb.MemberPromoteRequest(ID=member))

    async def remove(self, member: int) -> None:
        """Remove a member for good: its data directory cannot be used again. Raises NotFound if it does not exist."""
        await self._call(rpc.MEMBER_REMOVE, pb.MemberRemoveRequest(ID=member))

    async def _call(self, method: rpc.Method[rpc.RequestT, rpc.ResponseT], request: rpc.RequestT) -> rpc.ResponseT:
        return await self._connection.call(method, request, timeout_seconds=self._timeout_seconds)


def _member(member: pb.Member) -> Member:
    return Member(
        id=member.ID,
        name=member.name,
        peer_url=member.peerURLs[0] if member.peerURLs else "",
        client_url=member.clientURLs[0] if member.clientURLs else "",
        learner=member.isLearner,
    )
