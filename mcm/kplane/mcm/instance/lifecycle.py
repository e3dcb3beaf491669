"""Process of an instance: a kube-controller-manager or a kube-scheduler for a registered control plane."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, NoReturn

from kplane.mcm.describe.certificate import ServingCertificate
from kplane.mcm.describe.controllers import PORT
from kplane.mcm.describe.flags import Flags
from kplane.mcm.describe.kinds import InstanceKind, fingerprint
from kplane.mcm.describe.programs import Programs
from kplane.mcm.errors import McmError
from kplane.mcm.instance.exits import OomKills
from kplane.mcm.instance.start_permit import StartPermit
from kplane.mcm.instance.state import BlockingReason, InstanceState
from kplane.mcm.reasons import Reason
from kplane.provider import Cluster, Engagement
from kplane.provider.aio.backoff import Backoff
from kplane.workloads import Address, Component, ComponentState, Phase, ProcessRuntime, WorkloadsError

__all__ = ["Instance", "Origin", "Target"]

logger = logging.getLogger(__name__)

_FIRST_RETRY_SECONDS: Final = 1.0


class Origin(NamedTuple):
    """Cluster and program of the instance from which metrics come."""

    cluster: str
    program: str


class Target(NamedTuple):
    """Address of the metrics of an instance."""

    origin: Origin
    url: str
    authority: bytes
    """CA of the instance's serving certificate, in PEM."""


class Instance:
    """Runs the process of an engaged cluster by the cluster's description, from `start` to `aclose`.

    A `StartGate` starts and holds the instance. A changed description applies at once, because `DebouncingProvider`
    has already debounced it. `generation` is the generation of the engagement. `changed` is called when `reason` or
    `message` may have changed.
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
        readers: bytes | None,
        oom_kills: OomKills,
        permit: StartPermit,
    ) -> None:
        """`readers` is the CA, in PEM, of the clients that may read the metrics of the process."""
        self.cluster = cluster
        self.kind = kind
        self.generation = generation
        self.component = kind.component(cluster.name)
        """Name of the instance in the runtime."""
        self.version: str | None = None
        """Version of the program, such as v1.36.3, after the first `check`; None if unknown."""
        self.described: Component | None = None
        """Component that runs or is about to run; None before the first start."""
        self._runtime = runtime
        self._changed = changed
        self._flags = flags
        self._programs = programs
        self._readers = readers
        self.permit: Final = permit
        self._address: Address | None = None
        self._serving: ServingCertificate | None = None
        self._state = InstanceState(oom_kills)
        self._lock = asyncio.Lock()
        """Held while the process is started, changed or stopped."""
        self._followed = asyncio.Event()
        self._unsubscribe = runtime.subscribe(self._observe)

    @property
    def target(self) -> Target | None:
        """Address of the metrics while the instance is ready; None also if no client may read metrics."""
        address, serving = self._address, self._serving
        if self._readers is None or address is None or serving is None or self.process.phase is not Phase.READY:
            return None
        host = f"[{address.host}]" if ":" in address.host else address.host
        origin = Origin(self.cluster.name, self.kind.program)
        return Target(origin, f"https://{host}:{address.ports[PORT]}/metrics", serving.certificate)

    @property
    def process(self) -> ComponentState:
        """State of the process in the runtime."""
        return self._runtime.state(self.component)

    @property
    def message(self) -> str:
        """Present problem, for people; empty if there is none. During a restart, why the process ended."""
        return self._state.message or self.process.message

    @property
    def last_error(self) -> str:
        """Last problem, also if it is over."""
        return self._state.last_error

    @property
    def exits(self) -> Mapping[Reason, int]:
        """Number of times that the process ended by itself, by reason."""
        return self._state.exits

    @property
    def running(self) -> bool:
        """Whether the instance was started and is not held: its process runs, or is about to be restarted."""
        return self._state.running

    @property
    def failed(self) -> bool:
        """Whether the process ended by itself and was not ready since."""
        return self._state.failed

    @property
    def reason(self) -> Reason | None:
        """Reason why the instance runs or does not run; None while the process is being replaced."""
        return self._state.reason

    @property
    def unready_since(self) -> float | None:
        """Time of the first unanswered health check, by time.monotonic; None while ready or never ready before."""
        return self._state.unready_since

    async def check(self) -> None:
        """Check that the component can be described. Raises McmError, WorkloadsError or OSError if not."""
        await self._describe(self.cluster)

    async def start(self, engagement: Engagement) -> None:
        """Start the process by the newest description of the cluster. `reason` and `message` report a failure."""
        async with self._lock:
            cluster = engagement.cluster
            self._state.start()
            try:
                await self._apply(cluster)
            except Exception as error:  # any error is reported, and the start gate retries the start
                expected = isinstance(error, (McmError, WorkloadsError, OSError))
                logger.warning("failed to start instance %s: %s", self.component, error, exc_info=not expected)
                self._state.fail_to_start(BlockingReason(Reason.CANNOT_START, str(error) or repr(error)))
                self.permit.turn.release()
            else:
                server, pid = cluster.config.server, self.process.pid
                logger.info("instance %s started for %s, process %s", self.component, server, pid)
            self._changed()

    def note_refusal(self, refusal: str) -> None:
        """Report why the API server refuses the instance's credentials; an empty string clears the refusal."""
        if self._state.refuse(refusal):
            self._changed()

    async def hold(self, why: BlockingReason) -> None:
        """Report the block of the instance, and stop its process if there is a process."""
        async with self._lock:
            if self.reason is not why.reason:
                logger.warning(
                    "instance %s is held without its %s: %s", self.component, self.permit.missing, why.message
                )
            runs = self._state.block(why)
            self.permit.turn.release()
            self._changed()
            if runs:
                await self._runtime.stop(self.component)
                self._state.stop()

    def end_above(self, pid: int, *, taken_bytes: int, limit_bytes: int) -> None:
        """Kill the process for its memory, if its process ID is still `pid`."""
        if self.process.pid != pid:
            return
        why = f"it took {taken_bytes >> 20} MiB of memory, and may take {limit_bytes >> 20} MiB"
        _ = self._kill(BlockingReason(Reason.OUT_OF_MEMORY, why))

    async def end_hung(self, since: float, *, look: Callable[[], Awaitable[bool]]) -> bool:
        """Kill the process in a turn, if `unready_since` is still `since`. Return whether it was killed.

        `look` returns whether the API server answers; the process is not killed otherwise. The runtime restarts the
        process in the same turn.
        """
        async with self.permit.turn.acquired():
            if await look() and self.unready_since == since:
                why = f"it did not answer its health check for {time.monotonic() - since:.0f} s"
                if self._kill(BlockingReason(Reason.KILLED, why)):
                    return True
            self.permit.turn.release()
            return False

    def _kill(self, why: BlockingReason) -> bool:
        """Kill the process. Return False if it has already ended."""
        if not self._runtime.kill(self.component):
            return False
        self._state.kill(why)
        logger.warning("instance %s is killed: %s", self.component, why.message)
        return True

    async def follow(self, engagement: Engagement) -> None:
        """Apply changes of the cluster's description until cancelled."""
        changed = asyncio.Event()

        async def listen() -> None:
            async for _ in engagement.changes():
                changed.set()

        async with asyncio.TaskGroup() as tasks:
            _ = tasks.create_task(listen(), name="listen to changes")
            await self._keep_applying(engagement, changed=changed)

    async def wait_followed(self) -> None:
        """Wait until a changed description has been applied since the last call."""
        await self._followed.wait()
        self._followed.clear()

    async def aclose(self) -> None:
        """Stop the process, wait for its end, and then release its permit. The files stay."""
        self._unsubscribe()
        await self._runtime.stop(self.component)
        await self.permit.release()
        logger.info("instance %s ended", self.component)

    async def _keep_applying(self, engagement: Engagement, *, changed: asyncio.Event) -> NoReturn:
        backoff = Backoff(initial_seconds=_FIRST_RETRY_SECONDS, maximum_seconds=60.0)
        delay: float | None = None
        while True:
            # A newer description interrupts the wait for the retry of a description that could not be applied.
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
        async with self._lock:  # not during a start, which may use the former description
            if not self.running:
                return  # the next start uses the new description
            heavy = await self._replaces(engagement.cluster)
        async with self.permit.turn.acquired() if heavy else contextlib.nullcontext(), self._lock:
            if not self._state.running:
                self.permit.turn.release()
                return  # the instance was held in the meantime
            before = self.process.pid
            await self._apply(engagement.cluster)
            self._state.follow()
            self._changed()
            if self.process.pid == before:
                logger.info("instance %s continues; what it reads again is renewed", self.component)
            else:
                logger.info("instance %s has the changed configuration, process %s", self.component, self.process.pid)

    async def _replaces(self, cluster: Cluster) -> bool:
        """Whether this description needs a new process."""
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
                self.permit.turn.release()
            self._changed()
