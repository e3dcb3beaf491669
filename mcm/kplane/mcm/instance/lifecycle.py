"""One kube-controller-manager, or one kube-scheduler, for one registered control plane."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final, NamedTuple, NoReturn

from kplane.mcm.describe.certificate import ServingCertificate
from kplane.mcm.describe.controllers import PORT
from kplane.mcm.describe.flags import Flags
from kplane.mcm.describe.kinds import InstanceKind, fingerprint
from kplane.mcm.describe.programs import Programs
from kplane.mcm.errors import McmError
from kplane.mcm.instance.exits import OomKills
from kplane.mcm.instance.state import BlockingReason, InstanceState
from kplane.mcm.instance.tenant_lease import TenantLease
from kplane.mcm.instance.turns import StartBudget
from kplane.mcm.reasons import Reason
from kplane.provider import Cluster, Engagement
from kplane.provider.aio.backoff import Backoff
from kplane.workloads import Address, Component, ComponentState, Phase, ProcessRuntime, WorkloadsError

__all__ = ["Instance", "Origin", "Target"]

logger = logging.getLogger(__name__)

_FIRST_RETRY_SECONDS: Final = 1.0


class Origin(NamedTuple):
    """Names the instance that metrics come from."""

    cluster: str
    program: str


class Target(NamedTuple):
    """Where the metrics of one instance are."""

    origin: Origin
    url: str
    authority: bytes
    """CA of its serving certificate, in PEM."""


class Instance:
    """Keeps the process of one engaged cluster as its description asks for, from `start` to `aclose`.

    A `StartGate` starts and holds it. It follows a changed description at once: `DebouncingProvider` has waited before.
    `generation` is the engagement's, `budget` gives turns to start, and `changed` is called when `reason` or `message`
    may have changed.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        runtime: ProcessRuntime,
        changed: Callable[[], None],
        kind: InstanceKind,
        generation: int,
        flags: Flags,
        programs: Programs,
        budget: StartBudget,
        readers: bytes | None,
        oom_kills: OomKills,
        lease: TenantLease | None,
    ) -> None:
        """`readers` is the CA, in PEM, of the clients that may read the metrics of the process.

        The process may run while `lease` is held; None: it may always run.
        """
        self.cluster = cluster
        self.kind = kind
        self.generation = generation
        self.component = kind.component(cluster.name)
        """Its name in the runtime."""
        self.version: str | None = None
        """Of the program, such as v1.36.3, from `check` on; None if it is not known."""
        self.described: Component | None = None
        """What runs, or is about to run; None before its first start."""
        self._runtime = runtime
        self._changed = changed
        self._flags = flags
        self._programs = programs
        self._budget = budget
        self._readers = readers
        self.lease: Final = lease
        self._address: Address | None = None
        self._serving: ServingCertificate | None = None
        self._state = InstanceState(oom_kills)
        self._lock = asyncio.Lock()
        """Of what starts, changes and ends the process."""
        self._started = asyncio.Event()
        """The start in the present turn is over."""
        self._in_turn = False
        self._followed = asyncio.Event()
        self._unsubscribe = runtime.subscribe(self._observe)

    @property
    def target(self) -> Target | None:
        """Where its metrics are, while it is ready; None also if its metrics are closed."""
        address, serving = self._address, self._serving
        if self._readers is None or address is None or serving is None or self.process.phase is not Phase.READY:
            return None
        host = f"[{address.host}]" if ":" in address.host else address.host
        origin = Origin(self.cluster.name, self.kind.program)
        return Target(origin, f"https://{host}:{address.ports[PORT]}/metrics", serving.certificate)

    @property
    def process(self) -> ComponentState:
        """What the runtime knows of its process."""
        return self._runtime.state(self.component)

    @property
    def message(self) -> str:
        """What is wrong with it, for people; empty if nothing is. While it is started again, why it ended."""
        return self._state.message or self.process.message

    @property
    def last_error(self) -> str:
        """What was wrong with it last, also if that is over."""
        return self._state.last_error

    @property
    def exits(self) -> Mapping[Reason, int]:
        """How often it ended by itself, by the reason."""
        return self._state.exits

    @property
    def running(self) -> bool:
        """Whether it was started and is not held: there is a process, or one is about to be started again."""
        return self._state.running

    @property
    def failed(self) -> bool:
        """Whether it ended by itself and was not ready since."""
        return self._state.failed

    @property
    def reason(self) -> Reason | None:
        """Why it runs or does not; None while that is about to change."""
        return self._state.reason

    @property
    def unready_since(self) -> float | None:
        """Since when it does not answer its health check, by time.monotonic; None if it answers or never did."""
        return self._state.unready_since

    @property
    def seconds_left(self) -> float | None:
        """For how many seconds its Lease allows the process to run; None: no Lease bounds it."""
        return self.lease.seconds_left if self.lease is not None else None

    async def check(self) -> None:
        """Check that a process can be described. Raises McmError or WorkloadsError if not."""
        await self._describe(self.cluster)

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until it may start, and start or hold it within; return when it is ready or has ended, or in seconds."""
        try:
            async with self._budget.turn(over=self._started):
                self._started.clear()
                self._in_turn = True
                yield
        finally:
            self._in_turn = False

    async def wait_to_restart(self, failures: int) -> None:
        """Return in a turn for the restart of the process, which has ended by itself so often in a row.

        The turn in which a hung process was killed is that of its restart too.
        """
        if self._started.is_set() or not self._in_turn:
            await self._budget.take(over=self._started, failures=failures)
            self._started.clear()

    async def start(self, engagement: Engagement) -> None:
        """Start the process by the newest description of the cluster. If that fails, `reason` and `message` say why."""
        async with self._lock:
            cluster = engagement.cluster
            self._state.start()
            try:
                await self._apply(cluster)
            except Exception as error:  # whatever it is, it is reported, and the start is retried
                expected = isinstance(error, (McmError, WorkloadsError, OSError))
                logger.warning("failed to start instance %s: %s", self.component, error, exc_info=not expected)
                self._state.fail_to_start(BlockingReason(Reason.CANNOT_START, str(error) or repr(error)))
                self._started.set()
            else:
                server, pid = cluster.config.server, self.process.pid
                logger.info("instance %s started for %s, process %s", self.component, server, pid)
            self._changed()

    def note_refusal(self, refusal: str) -> None:
        """Report why its API server refuses its credentials; empty: it does not, or not any more."""
        if self._state.refuse(refusal):
            self._changed()

    async def hold(self, why: BlockingReason) -> None:
        """End the process, if there is one, and report what is in its way."""
        async with self._lock:
            if self.reason is not why.reason:
                logger.warning("instance %s is held: %s", self.component, why.message)
            runs = self._state.block(why)
            self._started.set()
            self._changed()
            if runs:
                await self._runtime.stop(self.component)
                self._state.stop()

    def end_above(self, pid: int, *, taken_bytes: int, limit_bytes: int) -> None:
        """Kill the process, if `pid` is still its number, for taking more memory than it may."""
        if self.process.pid != pid:
            return
        why = f"it took {taken_bytes >> 20} MiB of memory, and may take {limit_bytes >> 20} MiB"
        _ = self._kill(BlockingReason(Reason.OUT_OF_MEMORY, why))

    async def end_hung(self, since: float, *, look: Callable[[], Awaitable[bool]]) -> bool:
        """Kill the process in a turn, if it is still unready since then (`unready_since`). Returns whether it was.

        `look` asks whether its API server answers, without which it is not killed. The runtime starts it again, and the
        turn is that of this start.
        """
        async with self.turn():
            if await look() and self.unready_since == since:
                why = f"it did not answer its health check for {time.monotonic() - since:.0f} s"
                if self._kill(BlockingReason(Reason.KILLED, why)):
                    return True
            self._started.set()
            return False

    def _kill(self, why: BlockingReason) -> bool:
        """Kill the process. Returns False if it has ended by itself already."""
        if not self._runtime.kill(self.component):
            return False
        self._state.kill(why)
        logger.warning("instance %s is killed: %s", self.component, why.message)
        return True

    async def follow(self, engagement: Engagement) -> None:
        """Follow the changes of the cluster's description until cancelled."""
        changed = asyncio.Event()

        async def listen() -> None:
            async for _ in engagement.changes():
                changed.set()

        async with asyncio.TaskGroup() as tasks:
            _ = tasks.create_task(listen(), name="listen to changes")
            await self._keep_applying(engagement, changed=changed)

    async def wait_followed(self) -> None:
        """Return when the cluster's description has changed since the last call."""
        await self._followed.wait()
        self._followed.clear()

    async def aclose(self) -> None:
        """End the process and wait for its end, then release its Lease. Its files stay."""
        self._unsubscribe()
        await self._runtime.stop(self.component)
        if self.lease is not None:
            await self.lease.aclose()
        logger.info("instance %s ended", self.component)

    async def _keep_applying(self, engagement: Engagement, *, changed: asyncio.Event) -> NoReturn:
        backoff = Backoff(initial_seconds=_FIRST_RETRY_SECONDS, maximum_seconds=60.0)
        delay: float | None = None
        while True:
            # A newer description does not wait for the retry of one that could not be followed.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await changed.wait()
            if changed.is_set():
                changed.clear()
                backoff.reset()
            try:
                await self._change(engagement)
            except (McmError, WorkloadsError, OSError) as error:
                problem = f"failed to apply the changed configuration: {error}"
                self._state.follow(problem)
                self._changed()
                delay = backoff.next_delay()
                logger.warning("instance %s: %s; retry in %.1f s", self.component, problem, delay)
            else:
                delay = None
                self._followed.set()

    async def _change(self, engagement: Engagement) -> None:
        async with self._lock:  # and so not in the midst of a start, which may be by the former description
            if not self.running:
                return  # its next start is by the new one
            heavy = await self._replaces(engagement.cluster)
        async with self.turn() if heavy else contextlib.nullcontext(), self._lock:
            if not self._state.running:
                self._started.set()
                return  # held meanwhile
            before = self.process.pid
            await self._apply(engagement.cluster)
            self._state.follow()
            self._changed()
            if self.process.pid == before:
                logger.info("instance %s continues; what it reads again is renewed", self.component)
            else:
                logger.info("instance %s has the changed configuration, process %s", self.component, self.process.pid)

    async def _replaces(self, cluster: Cluster) -> bool:
        """Whether that description takes another process than the present one."""
        component = await self._describe(cluster)
        return self.described is None or fingerprint([component]) != fingerprint([self.described])

    async def _apply(self, cluster: Cluster) -> None:
        component = await self._describe(cluster)
        await self._runtime.apply(component)
        self.described, self.cluster = component, cluster

    async def _describe(self, cluster: Cluster) -> Component:
        build = await self.kind.choose(cluster, programs=self._programs)
        address = self._address = await self._runtime.reserve(self.component, ports=(PORT,))
        if self._serving is None:
            self._serving = ServingCertificate.create(host=address.host)
        self.version = f"v{build.version}" if build.version is not None else None
        return self.kind.describe(
            cluster,
            address=address,
            serving=self._serving,
            flags=self._flags,
            program=build.program,
            readers=self._readers,
        )

    def _observe(self, component: str) -> None:
        if component == self.component:
            if self._state.observe(self.process):
                self._started.set()
            self._changed()
