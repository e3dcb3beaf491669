"""The Lease in a tenant's control plane that allows one instance to work there."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from kplane.mcm.instance.state import BlockingReason
from kplane.mcm.reasons import Reason
from kplane.provider import ApiError, Client, Cluster, ClusterConfig, ProviderError, Unreachable
from kplane.provider.aio.cancellation import end_tasks
from kplane.provider.client.admission import Guard, Write, blamed_guards, guards_of, name_guards, refusing_guard
from kplane.provider.client.limits import Allowance, AnswerLimits
from kplane.provider.client.resources import LEASES
from kplane.provider.coordination.lease import Lease, LeaseTimings, clock
from kplane.provider.errors import (
    AnswerTooLarge,
    ClusterNotOwned,
    Conflict,
    Forbidden,
    KubeconfigError,
    LeaseLost,
    NotFound,
    ServerError,
    Unauthorized,
)

__all__ = ["TIMINGS", "TRY_SECONDS", "Holder", "TenantLease"]

logger = logging.getLogger(__name__)

TIMINGS: Final = LeaseTimings(duration_seconds=120, renew_deadline_seconds=90.0, retry_seconds=30.0)
"""Slow: each renewal is a write to the etcd of an idle control plane, and an API server may be away for 50 s."""
TRY_SECONDS: Final = TIMINGS.renew_deadline_seconds / 2
"""How long one write of a Lease may take: half of the deadline, as in client-go (NewFromKubeconfig of
tools/leaderelection/resourcelock). An API server waits up to 30 s for a webhook, and gives up a write after 34 s.
"""
_NAMESPACE: Final = "kube-system"
_MIB: Final = 1024**2
_LEASE_LIMITS: Final = AnswerLimits(answer_bytes=_MIB // 4, values=4096)
"""More than any Lease has: a hostile API server costs mcm no more."""
_WEBHOOK_LIMITS: Final = AnswerLimits(
    answer_bytes=4 * _MIB, list_bytes=4 * _MIB, values=100_000, together=Allowance(32 * _MIB)
)
"""About a thousand webhooks, each with a CA and its managedFields. Two answers of the worst kind fit into memory."""
_DEFAULT_DURATION_SECONDS: Final = 15
_LONGEST_DURATION_SECONDS: Final = 600
_RELEASE_SECONDS: Final = 2.0
"""A release only saves time. A silent API server must not hold up the end of an engagement."""
_HOLDER_LENGTH: Final = 200
_DIGEST_LENGTH: Final = 16
_NEVER: Final = float("-inf")
Delayed = Callable[[BlockingReason], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """This mcm as the holder of Leases in control planes."""

    name: str
    """Of this mcm, for people."""
    fleet: str | None
    """Name of the fleet: of its mcm, one begins with a cluster when another has ended there. None: there is none."""
    uid: Callable[[str], str | None]
    """Returns the uid of the object that stands for a cluster, by the name of the cluster."""
    before_write: Callable[[str], float | None] | None = None
    """Returns for how many seconds this mcm works on a cluster, as `Client` asks it before each write.

    It raises ClusterNotOwned if another mcm of the fleet does. None: this mcm works on all of its clusters.
    """

    def identity(self, cluster: Cluster) -> str:
        """Return a name that no other holder has, with the mark of the fleet."""
        return f"{self.name}{self.mark(cluster) or '_'}{secrets.token_hex(4)}"

    def mark(self, cluster: Cluster) -> str | None:
        """Return what the names of all holders of this fleet have in them, for one cluster; None: its uid is unknown.

        By names alone, two management clusters could have the same mark.
        """
        uid = self.uid(cluster.name)
        return f"_{_digest(json.dumps([self.fleet, uid]))}_" if self.fleet is not None and uid else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]


class TenantLease:
    """Holds the Lease by which programs of one name elect a leader, in the control plane of one cluster.

    kube-controller-manager and kube-scheduler elect a leader by the Lease of their name in kube-system. mcm holds it
    for its instance, which takes no part in the election. So a program of somebody else waits, and an instance of mcm
    waits for a program of somebody else.

    A Lease counts as held for as long as its holder asks for, from when mcm saw it change last. Only the Lease of
    another mcm of the fleet is taken at once. An mcm that held the Lease and lost it does not take it back like that:
    it is the one that was late.

    `program` is the name of the Lease, and `timeout_seconds` the time in which an API server has to answer a read. A
    write may take longer, as long as reads are answered: it waits for admission webhooks of the tenant. Tests replace
    `now`.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        program: str,
        holder: Holder,
        timeout_seconds: float = 5.0,
        now: Callable[[], float] = clock,
    ) -> None:
        self._cluster = cluster.name
        self._before_write = holder.before_write
        self._followed = holder.mark(cluster)
        """Mark of the holders whose Lease is taken at once; None from when this mcm has held the Lease itself."""
        self._identity = holder.identity(cluster)
        self._program = program
        self._timeout_seconds = timeout_seconds
        self._now = now
        self._client: Client | None = None
        """For quick reads. The Lease has a client of its own, by the same connections."""
        self._lease: Lease | None = None
        self._write = Write(resource=LEASES, namespace=_NAMESPACE)
        self._admitted = False
        """Whether the API server has accepted these credentials: those of a user's choice may lack rights for good."""
        self.refusal: str = ""
        """Why the API server refused, at the last look that it answered, what it accepted before; empty: it did not."""

    @property
    def seconds_left(self) -> float:
        """For how many seconds no other program may take it; 0 if this mcm does not hold it."""
        return max(0.0, self._lease.expires_at - self._now()) if self._lease is not None else 0.0

    async def look(
        self, config: ClusterConfig, *, seconds: float = TRY_SECONDS, delayed: Delayed | None = None
    ) -> BlockingReason | None:
        """Take the Lease, or renew it. Returns what is in the way of an instance now; None if it is held.

        A look that takes longer than `seconds` has failed; its cause is looked for as long, and no longer than a read
        may take. `delayed` is called once if a write takes long, and the API
        server answers reads, with what holds the write up.
        """
        try:
            lease = await self._connect(config)
            taken = await self._try(lease, seconds=seconds, delayed=delayed)
        except ProviderError as error:
            refused = isinstance(error, Unauthorized) or (isinstance(error, Forbidden) and self._admitted)
            if refused and refusing_guard(error) is None:
                self.refusal = f"its API server refuses the credentials of its controllers: {error}"
            return await self._failure(error, config, seconds=seconds)
        self._admitted, self.refusal = True, ""
        if taken:
            self._followed = None
            return None
        if (holder := lease.holder) is None:
            return BlockingReason(
                Reason.CANNOT_START, f"the Lease {self._name} of its control plane was changed meanwhile; mcm retries"
            )
        return BlockingReason(
            Reason.FOREIGN_CONTROLLER_MANAGER,
            f"another {self._program} works on this control plane: {str(holder)[:_HOLDER_LENGTH]!r} holds the Lease"
            f" {self._name}; stop it; mcm starts its instance when the Lease is released or expires",
        )

    async def answers(self) -> bool:
        """Tell whether the API server answers a read of the Lease now. No webhook holds up a read."""
        try:
            _ = self._client is not None and await self._client.exists(LEASES, self._program, namespace=_NAMESPACE)
        except ProviderError:
            return False
        return self._client is not None

    async def _try(self, lease: Lease, *, seconds: float, delayed: Delayed | None) -> bool:
        """Take or renew the Lease, and wait for a slow write only while the API server answers reads."""
        taking = asyncio.create_task(_take(lease), name=f"take the Lease {self._name}")
        reads = ""
        try:
            async with asyncio.timeout(seconds):
                _ = await asyncio.wait((taking,), timeout=self._timeout_seconds)
                if not taking.done():
                    reads = await self._explain_delay(taking, delayed)
                return await taking
        except TimeoutError as error:
            said = f"no answer within {seconds:.3g} s for the Lease {self._name}{reads}"
            raise _no_answer(said, write_sent=True) from error
        finally:
            await end_tasks((taking,))

    async def _explain_delay(self, taking: asyncio.Task[bool], delayed: Delayed | None) -> str:
        """Find the webhooks that hold a write up, and say how reads are answered meanwhile.

        Raises Unreachable if the API server answers no reads either.
        """
        guards, listed = list[Guard](), ""
        try:
            guards = await self._guards()
        except (ApiError, AnswerTooLarge) as error:
            listed = f"; mcm failed to list its webhooks: {error}"
        except ProviderError:
            if taking.done():
                return ""
            raise
        if guards and delayed is not None and not taking.done():
            await delayed(self._held_up(guards, f"no answer within {self._timeout_seconds:g} s"))
        return f", though it answers reads: an admission webhook or a slow etcd holds up the write{listed}"

    async def _guards(self) -> list[Guard]:
        """Return the webhooks on writes of the Lease, by one quick look."""
        client = self._client
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await guards_of(client, self._write) if client is not None else []
        except TimeoutError as error:
            raise _no_answer(f"no answer within {self._timeout_seconds:g} s") from error

    async def aclose(self) -> None:
        """Release the Lease and close the connection. Call it when nothing of the instance is left."""
        client, self._client = self._client, None
        lease, self._lease = self._lease, None
        if client is None:
            return
        try:
            if lease is not None:
                async with asyncio.timeout(_RELEASE_SECONDS):
                    await lease.release()
        except Exception as error:  # noqa: BLE001 - whatever an API server answers, the Lease runs out by itself
            logger.info("failed to release the Lease %s at %s: %s", self._name, client.config.server, error)
        finally:
            await client.aclose()

    @property
    def _name(self) -> str:
        return f"{_NAMESPACE}/{self._program}"

    async def _connect(self, config: ClusterConfig) -> Lease:
        if self._client is None:
            self._client = Client(
                config,
                timeout_seconds=self._timeout_seconds,
                connect_timeout_seconds=self._timeout_seconds,
                field_manager="mcm",
                limits=_WEBHOOK_LIMITS,
            )
        elif self._client.config != config:
            await self._client.update(config)
            self._admitted, self.refusal = False, ""
        if self._lease is None:
            # By the same connections, with a deadline of its own for each call: `look` bounds them all.
            writer = Client(
                config,
                transport=self._client.transport,
                timeout_seconds=TIMINGS.duration_seconds,
                field_manager="mcm",
                before_write=partial(self._before_write, self._cluster) if self._before_write is not None else None,
                limits=_LEASE_LIMITS,
            )
            self._lease = Lease(
                writer,
                namespace=_NAMESPACE,
                name=self._program,
                identity=self._identity,
                timings=TIMINGS,
                strict=True,
                patience=self._patience,
                now=self._now,
            )
        return self._lease

    def _patience(self, holder: Any, duration_seconds: Any) -> float:
        """Return how long the Lease of another holder must not change; its API server may be hostile."""
        if not isinstance(holder, str) or not holder or (self._followed is not None and self._followed in holder):
            return 0.0
        if not isinstance(duration_seconds, int) or duration_seconds <= 0:
            return _DEFAULT_DURATION_SECONDS
        return min(duration_seconds, _LONGEST_DURATION_SECONDS)

    async def _failure(self, error: ProviderError, config: ClusterConfig, *, seconds: float) -> BlockingReason:
        if guards := await self._blamed(error, seconds=min(seconds, self._timeout_seconds)):
            return self._held_up(guards, str(error))
        match error:
            case ServerError():
                return BlockingReason(
                    Reason.API_SERVER_UNREACHABLE, f"its API server at {config.server} answers {error.status}: {error}"
                )
            case ClusterNotOwned():
                return BlockingReason(Reason.CANNOT_START, f"another mcm works on it: {error}")
            case Unauthorized() | Forbidden() if self._admitted:
                return BlockingReason(Reason.CREDENTIALS_REFUSED, self.refusal)
            case Unauthorized():
                return BlockingReason(
                    Reason.CANNOT_START, f"its API server refuses the credentials in its Secret: {error}; renew them"
                )
            case Conflict() | NotFound():
                return BlockingReason(
                    Reason.CANNOT_START, f"failed to write the Lease {self._name}: {error}; mcm retries"
                )
            case ApiError():
                return BlockingReason(
                    Reason.CANNOT_START,
                    f"failed to hold the Lease {self._name} of its control plane: {error};"
                    " allow the identity in its Secret to get, create and update this Lease",
                )
            case KubeconfigError():
                return BlockingReason(Reason.CANNOT_START, f"invalid kubeconfig in its Secret: {error}")
            case Unreachable() if error.timed_out and error.write_sent:
                return BlockingReason(Reason.API_SERVER_UNREACHABLE, f"its API server does not answer a write: {error}")
            case _:
                return BlockingReason(Reason.API_SERVER_UNREACHABLE, f"its API server does not answer: {error}")

    async def _blamed(self, error: ProviderError, *, seconds: float) -> list[Guard]:
        """Return the webhooks and policies that may have caused an error; empty if none did."""
        if self._client is None:
            return []
        return await blamed_guards(self._client, error, self._write, seconds=seconds)

    def _held_up(self, guards: list[Guard], why: str) -> BlockingReason:
        """Return what to do about webhooks and policies that keep the Lease from being written."""
        them, command = "it" if len(guards) == 1 else "them", guards[0].deletion if len(guards) == 1 else ""
        deletion = f" (`{command}`)" if command else ""
        return BlockingReason(
            Reason.WEBHOOK_REFUSED,
            f"{name_guards(guards)} of its control plane holds up or refuses the Lease {self._name}; mend or delete"
            f" {them}{deletion}, or exclude namespace {_NAMESPACE} from the rules; mcm retries: {why}",
        )


def _no_answer(what: str, *, write_sent: bool = False) -> Unreachable:
    return Unreachable(what, kind="timeout", write_sent=write_sent)


async def _take(lease: Lease) -> bool:
    try:
        return await lease.try_acquire(absent_since=_NEVER)
    except LeaseLost:  # it was edited, and has another holder or none
        return await lease.try_acquire(absent_since=_NEVER)
