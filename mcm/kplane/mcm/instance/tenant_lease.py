"""Lease in a tenant's control plane that allows one instance to work there."""

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

__all__ = ["TIMINGS", "TRY_SECONDS", "Delayed", "Holder", "TenantLease"]

logger = logging.getLogger(__name__)

TIMINGS: Final = LeaseTimings(duration_seconds=120, renew_deadline_seconds=90.0, retry_seconds=30.0)
"""Slow times: each renewal writes to the etcd of an idle control plane, and an API server may be away for 50 s."""
TRY_SECONDS: Final = TIMINGS.renew_deadline_seconds / 2
"""Longest time for a write of a Lease: half of the renew deadline, as in client-go (NewFromKubeconfig of
tools/leaderelection/resourcelock). An API server waits up to 30 s for a webhook, and gives up a write after 34 s.
"""
_NAMESPACE: Final = "kube-system"
_MIB: Final = 1024**2
_LEASE_LIMITS: Final = AnswerLimits(answer_bytes=_MIB // 4, values=4096)
"""Larger than any Lease. A hostile API server cannot make mcm use more memory."""
_WEBHOOK_LIMITS: Final = AnswerLimits(
    answer_bytes=4 * _MIB, list_bytes=4 * _MIB, values=100_000, together=Allowance(32 * _MIB)
)
"""Room for about a thousand webhooks, each with a CA and managedFields. Memory suffices for two such answers."""
_DEFAULT_DURATION_SECONDS: Final = 15
_LONGEST_DURATION_SECONDS: Final = 600
_RELEASE_SECONDS: Final = 2.0
"""Limit of a release, which only saves time. A silent API server must not delay the end of an engagement."""
_HOLDER_LENGTH: Final = 200
_DIGEST_LENGTH: Final = 16
_NEVER: Final = float("-inf")
Delayed = Callable[[BlockingReason], Awaitable[None]]
"""Is called with the cause if a write is slow while the API server answers reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """mcm as the holder of Leases in control planes."""

    name: str
    """Name of this mcm, for people."""
    fleet: str | None
    """Name of the fleet; its mcm take over each other's Leases without waiting for expiry. None: there is no fleet."""
    uid: Callable[[str], str | None]
    """Returns the uid of the object that stands for a cluster, by the name of the cluster."""
    before_write: Callable[[str], float | None] | None = None
    """Returns for how many seconds this mcm owns a cluster; `Client` calls it before each write.

    Raises ClusterNotOwned if another mcm of the fleet owns the cluster. None: this mcm owns all of its clusters.
    """

    def identity(self, cluster: Cluster) -> str:
        """Return a unique name of a holder, with the mark of the fleet."""
        return f"{self.name}{self.mark(cluster) or '_'}{secrets.token_hex(4)}"

    def mark(self, cluster: Cluster) -> str | None:
        """Return the common part of all holder names of this fleet for a cluster; None without a fleet or a known uid.

        The mark contains the uid, because two management clusters could have equal names.
        """
        uid = self.uid(cluster.name)
        return f"_{_digest(json.dumps([self.fleet, uid]))}_" if self.fleet is not None and uid else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]


class TenantLease:
    """Holds the leader election Lease of a program in the control plane of one cluster.

    kube-controller-manager and kube-scheduler elect a leader by the Lease of their name in kube-system. mcm holds this
    Lease for its instance, which takes no part in the election. So a tenant's own program waits for mcm's instance, and
    mcm's instance waits for the tenant's program.

    A Lease of another holder counts as held for the holder's lease duration after mcm saw the Lease change last. Only
    the Lease of another mcm of the fleet is taken at once. An mcm that held the Lease and lost it waits for expiry,
    because it was the late holder.

    `program` is the name of the Lease, and `timeout_seconds` the deadline of a read. A write may take longer while
    reads are answered, because it waits for admission webhooks of the tenant. `now` is the clock; tests replace it.
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
        """Mark of the holders whose Lease is taken at once; None after this mcm has held the Lease itself."""
        self._identity = holder.identity(cluster)
        self._program = program
        self._timeout_seconds = timeout_seconds
        self._now = now
        self._client: Client | None = None
        """Client of quick reads. The Lease has a client of its own, over the same connections."""
        self._lease: Lease | None = None
        self._write = Write(resource=LEASES, namespace=_NAMESPACE)
        self._admitted = False
        """Whether the API server has accepted these credentials before. A user's credentials may always lack rights."""
        self.refusal: str = ""
        """Why the API server refused, at its last answer, credentials that it accepted before; empty if it did not."""

    @property
    def seconds_left(self) -> float:
        """Seconds for which no other program may take the Lease; 0 if this mcm does not hold it."""
        return max(0.0, self._lease.expires_at - self._now()) if self._lease is not None else 0.0

    async def acquire(
        self, config: ClusterConfig, *, seconds: float = TRY_SECONDS, delayed: Delayed | None = None
    ) -> BlockingReason | None:
        """Take or renew the Lease. Return the reason that blocks the instance now; None if the Lease is held.

        The attempt fails after `seconds`. Then a second request looks for the cause, for at most `seconds` and at most
        the deadline of a read. `delayed` is called at most once.
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

    async def observe(self) -> bool:
        """Return whether the API server answers a read of the Lease now. Webhooks do not delay reads."""
        try:
            _ = self._client is not None and await self._client.exists(LEASES, self._program, namespace=_NAMESPACE)
        except ProviderError:
            return False
        return self._client is not None

    async def _try(self, lease: Lease, *, seconds: float, delayed: Delayed | None) -> bool:
        """Take or renew the Lease. Waits for a slow write only while the API server answers reads."""
        taking = asyncio.create_task(_take(lease), name=f"take the Lease {self._name}")
        reads = ""
        try:
            async with asyncio.timeout(seconds):
                _ = await asyncio.wait((taking,), timeout=self._timeout_seconds)
                if not taking.done():
                    reads = await self._explain_delay(taking, delayed)
                return await taking
        except TimeoutError as error:
            message = f"no answer within {seconds:.3g} s for the Lease {self._name}{reads}"
            raise _no_answer(message, write_sent=True) from error
        finally:
            await end_tasks((taking,))

    async def _explain_delay(self, taking: asyncio.Task[bool], delayed: Delayed | None) -> str:
        """Find the webhooks that delay a write, report them, and return the end of the error message.

        Raises Unreachable if the API server does not answer reads either.
        """
        guards, failure = list[Guard](), ""
        try:
            guards = await self._guards()
        except (ApiError, AnswerTooLarge) as error:
            failure = f"; mcm failed to list its webhooks: {error}"
        except ProviderError:
            if taking.done():
                return ""
            raise
        if guards and delayed is not None and not taking.done():
            await delayed(self._held_up(guards, f"no answer within {self._timeout_seconds:g} s"))
        return f", though it answers reads: an admission webhook or a slow etcd holds up the write{failure}"

    async def _guards(self) -> list[Guard]:
        """Return the webhooks that apply to writes of the Lease. Raises Unreachable after the deadline of a read."""
        client = self._client
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await guards_of(client, self._write) if client is not None else []
        except TimeoutError as error:
            raise _no_answer(f"no answer within {self._timeout_seconds:g} s") from error

    async def release(self) -> None:
        """Release the Lease and close the connection. Call this method after the end of the instance's process."""
        client, self._client = self._client, None
        lease, self._lease = self._lease, None
        if client is None:
            return
        try:
            if lease is not None:
                async with asyncio.timeout(_RELEASE_SECONDS):
                    await lease.release()
        except Exception as error:  # noqa: BLE001 - the Lease expires anyway, so no answer of an API server matters
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
            # Same connections, with a long deadline for each call: `acquire` limits all calls together.
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
        """Return for how many seconds another holder's Lease must not change; the values may be hostile."""
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
        """Return the webhooks and policies that may have caused an error; empty if there are none."""
        if self._client is None:
            return []
        return await blamed_guards(self._client, error, self._write, seconds=seconds)

    def _held_up(self, guards: list[Guard], why: str) -> BlockingReason:
        """Return the blocking reason, with a remedy, for webhooks and policies that block writes of the Lease."""
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
    except LeaseLost:  # the Lease was edited, and has another holder or none
        return await lease.try_acquire(absent_since=_NEVER)
