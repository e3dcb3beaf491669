"""One kube-controller-manager, or one kube-scheduler, for one registered control plane."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, NoReturn

from kplane.mcm.describe.certificate import ServingCertificate
from kplane.mcm.describe.controllers import PORT
from kplane.mcm.describe.fingerprint import fingerprint
from kplane.mcm.describe.flags import Flags
from kplane.mcm.describe.services import Served
from kplane.mcm.errors import McmError
from kplane.mcm.instance.api_server_probe import Obstacle
from kplane.mcm.instance.exits import KILLED_BY, OomKills, exit_reason
from kplane.mcm.instance.programs import Programs
from kplane.mcm.instance.turns import StartBudget
from kplane.mcm.metrics.scrape import Origin, Target
from kplane.mcm.status.report import Reason, reason_of
from kplane.provider import Backoff, Cluster, Engagement
from kplane.workloads import Address, Component, ComponentState, Phase, Runtime, WorkloadsError

__all__ = ["Instance"]

logger = logging.getLogger(__name__)

_FIRST_RETRY_SECONDS: Final = 1.0


class Instance:
    """Keeps the process of one engaged cluster as its description asks for, from `start` to `aclose`.

    A `Guard` starts and holds it. What changes in its description has settled before (`Settling`), and is followed at
    once. `generation` is that of the engagement. `budget` says whose turn it is to start, and `changed` is called when
    `reason` or `message` may be others than before.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        runtime: Runtime,
        changed: Callable[[], None],
        service: Served,
        generation: int,
        flags: Flags,
        programs: Programs,
        budget: StartBudget,
        readers: bytes | None,
        oom_kills: OomKills,
    ) -> None:
        self.cluster = cluster
        self.service = service
        self.exits: Counter[Reason] = Counter()
        """How often it ended by itself, by the reason."""
        self._runtime = runtime
        self._flags = flags
        self._programs = programs
        self.version: str | None = None
        """Of the program, such as v1.36.3, from `check` on; None where it is not known."""
        self._changed = changed
        self._readers = readers
        """Authority of those that may read the metrics of the process, in PEM."""
        self._address: Address | None = None
        self.last_error = ""
        """Why it ended last or was held, also where that is over."""
        self._component = service.component(cluster.name)
        self.generation = generation
        self.described: Component | None = None
        """What runs, or is about to run; None before its first start."""
        self._serving: ServingCertificate | None = None
        self._budget = budget
        self._lock = asyncio.Lock()
        """Of what starts, changes and ends the process."""
        self._running = False
        self._obstacle: Obstacle | None = None
        self._under_way = asyncio.Event()
        """A start is over: the instance is ready, or has ended."""
        self._followed = asyncio.Event()
        self._failure = ""
        self._end = ""
        self._exited: Reason | None = None
        self._phase = self.state.phase
        """As it was told of last."""
        self._oom_kills = oom_kills
        self.unready_since: float | None = None
        """By time.monotonic; None where it answers its health check, and before it did for the first time."""
        self._killed_for: Obstacle | None = None
        """Why we have killed it ourselves."""
        self._unsubscribe = runtime.subscribe(self._note)

    @property
    def component(self) -> str:
        """Its name in the runtime."""
        return self._component

    @property
    def target(self) -> Target | None:
        """Where its metrics are, while it is ready; None also where nobody may read them."""
        address, serving = self._address, self._serving
        if self._readers is None or address is None or serving is None or self.state.phase is not Phase.READY:
            return None
        host = f"[{address.host}]" if ":" in address.host else address.host
        origin = Origin(self.cluster.name, self.service.program)
        return Target(origin, f"https://{host}:{address.ports[PORT]}/metrics", serving.certificate)

    @property
    def state(self) -> ComponentState:
        """What the runtime knows of the process."""
        return self._runtime.state(self._component)

    @property
    def message(self) -> str:
        """For people: what is wrong; empty where nothing is. While it is started again, why it ended."""
        if self._obstacle is not None:
            return self._obstacle.message
        return self._failure or self._end or self.state.message

    @property
    def running(self) -> bool:
        """Whether it has been started and is not held: there is a process, or one is about to be started again."""
        return self._running

    @property
    def exited(self) -> bool:
        """Whether it ended by itself and was not ready since."""
        return self._exited is not None

    @property
    def reason(self) -> Reason | None:
        """Why it runs or does not; None while that is about to change."""
        if self._obstacle is not None:
            return self._obstacle.reason
        return reason_of(self.state.phase, exited=self._exited)

    async def check(self) -> None:
        """See that a process can be described. Raises McmError or WorkloadsError where that is not possible."""
        await self._describe(self.cluster)

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until it may start, and start or hold it within; return when it is ready or has ended, or in seconds."""
        async with self._budget.turn(over=self._under_way):
            self._under_way.clear()
            yield

    async def start(self, engagement: Engagement) -> None:
        """Start the process by the newest description of the cluster, or tell why that is not possible."""
        async with self._lock:
            await self._start(engagement.cluster)

    async def hold(self, obstacle: Obstacle) -> None:
        """End the process, if there is one, and say what is in its way."""
        async with self._lock:
            if self._obstacle is None or self._obstacle.reason is not obstacle.reason:
                logger.warning("instance %s is not run: %s", self._component, obstacle.message)
            self._obstacle = obstacle
            self._under_way.set()
            self._changed()
            if self._running:
                await self._runtime.stop(self._component)
                self._running = False  # not before: where it could not be ended, that is tried again
                self._end, self._exited, self._failure = "", None, ""

    def end_above(self, pid: int, *, taken_bytes: int, limit_bytes: int) -> None:
        """End the process of that number, where it is still the present one, for taking more memory than it may."""
        if self.state.pid != pid:
            return
        why = f"it took {taken_bytes >> 20} MiB of memory, and may take {limit_bytes >> 20} MiB"
        self._kill(pid, Obstacle(Reason.OUT_OF_MEMORY, why))

    async def end_hung(self, since: float, *, look: Callable[[], Awaitable[bool]]) -> bool:
        """End the process in a turn, where it is still unready since then (`unready_since`); tell whether it was.

        `look` asks whether its API server answers, without which it is not ended. The runtime starts it again, and the
        turn is that of this start.
        """
        async with self.turn():
            answers, pid = await look(), self.state.pid
            if not answers or pid is None or self.unready_since != since:
                self._under_way.set()
                return False
            seconds = time.monotonic() - since
            self._kill(pid, Obstacle(Reason.KILLED, f"it did not answer its health check for {seconds:.0f} s"))
            return True

    def _kill(self, pid: int, why: Obstacle) -> None:
        self._killed_for = why
        logger.warning("instance %s is ended: %s", self._component, why.message)
        with contextlib.suppress(ProcessLookupError):
            # Its number is nobody else's: the runtime takes it back in this thread, and tells `state` of that.
            os.kill(pid, signal.SIGKILL)

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
        """End the process, wait for its end, and remove all that belongs to it."""
        self._unsubscribe()
        await self._runtime.delete(self._component)
        logger.info("instance %s ended and removed", self._component)

    async def _keep_applying(self, engagement: Engagement, *, changed: asyncio.Event) -> NoReturn:
        backoff = Backoff(initial_seconds=_FIRST_RETRY_SECONDS, maximum_seconds=60.0)
        delay: float | None = None
        while True:
            # What replaces a description that cannot be followed need not wait for the next try of that.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await changed.wait()
            if changed.is_set():
                changed.clear()
                backoff.reset()
            try:
                await self._change(engagement)
            except (McmError, WorkloadsError, OSError) as error:
                self._failure = self.last_error = f"changes are not followed: {error}"
                self._changed()
                delay = backoff.next_delay()
                logger.warning("instance %s: %s, again in %.1f s", self._component, self._failure, delay)
            else:
                delay = None
                self._followed.set()

    async def _change(self, engagement: Engagement) -> None:
        async with self._lock:  # and so not in the midst of a start, which may be by the former description
            if not self._running:
                return  # its next start is by the new one
            heavy = await self._replaces(engagement.cluster)
        async with self.turn() if heavy else contextlib.nullcontext(), self._lock:
            if not self.running:
                self._under_way.set()
                return  # held meanwhile
            cluster, before = engagement.cluster, self.state.pid
            await self._apply(cluster)
            self.cluster, self._failure = cluster, ""
            self._changed()
            if self.state.pid == before:
                logger.info("instance %s goes on; what it reads again is renewed", self._component)
            else:
                logger.info("instance %s has the changed configuration, process %s", self._component, self.state.pid)

    async def _start(self, cluster: Cluster) -> None:
        """Have it run, or tell why that is not possible."""
        try:
            await self._apply(cluster)
        except Exception as error:  # whatever it is, it is told and tried again
            expected = isinstance(error, (McmError, WorkloadsError, OSError))
            logger.warning("instance %s cannot start: %s", self._component, error, exc_info=not expected)
            self._running, self._obstacle = False, Obstacle(Reason.CANNOT_START, str(error) or repr(error))
            self._under_way.set()
        else:
            self.cluster, self._failure = cluster, ""
            self._running, self._obstacle = True, None
            server, pid = cluster.config.server, self.state.pid
            logger.info("instance %s started for %s, process %s", self._component, server, pid)
        self._changed()

    async def _replaces(self, cluster: Cluster) -> bool:
        """Whether that description takes another process than the present one."""
        component = await self._describe(cluster)
        return self.described is None or fingerprint([component]) != fingerprint([self.described])

    async def _apply(self, cluster: Cluster) -> None:
        component = await self._describe(cluster)
        await self._runtime.apply(component)
        self.described = component

    async def _describe(self, cluster: Cluster) -> Component:
        build = await self.service.choose(cluster, programs=self._programs)
        address = self._address = await self._runtime.reserve(self._component, ports=(PORT,))
        if self._serving is None:
            self._serving = ServingCertificate.create(host=address.host)
        self.version = f"v{build.version}" if build.version is not None else None
        return self.service.describe(
            cluster,
            address=address,
            serving=self._serving,
            flags=self._flags,
            program=build.program,
            readers=self._readers,
        )

    def _note(self, component: str) -> None:
        if component == self._component:
            state = self.state
            before, self._phase = self._phase, state.phase
            if state.phase is not before:
                unready = state.phase is Phase.UNREADY
                self.unready_since = time.monotonic() if unready else None
            # What was ended because it hangs has the turn for its next start.
            hung = self._killed_for is not None and self._killed_for.reason is Reason.KILLED
            over = state.phase in {Phase.READY, Phase.BACKOFF, Phase.ENDED} and not hung
            if state.phase is Phase.BACKOFF:
                if before is not Phase.BACKOFF:
                    self._note_end(state)
                else:  # no process came of an attempt to start it again
                    self._end = self.last_error = state.message
            elif state.phase is Phase.READY:
                self._end, self._exited = "", None
            elif state.phase is Phase.ABSENT:
                self._killed_for = None  # who ended it for something else meanwhile says why
            if over:
                self._under_way.set()
            self._changed()

    def _note_end(self, state: ComponentState) -> None:
        ours, self._killed_for = self._killed_for, None
        self._end = self.last_error = f"{ours.message}; it {state.message}" if ours else state.message
        starved = (
            ours.reason is Reason.OUT_OF_MEMORY if ours else state.exit_code == KILLED_BY and self._oom_kills.take()
        )
        self._exited = exit_reason(state.exit_code, state.message, oom_killed=starved)
        self.exits[self._exited] += 1
