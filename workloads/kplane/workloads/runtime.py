"""Where components run: the protocol of every runtime, and what their implementations share."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kplane.workloads.component import Component, Scheduling

__all__ = ["Address", "ComponentState", "Exposure", "ExternalAddress", "NamedLocks", "Phase", "Runtime", "Subscribers"]

logger = logging.getLogger(__name__)


class Phase(enum.StrEnum):
    """Where a component is in its life."""

    ABSENT = "Absent"
    STARTING = "Starting"
    READY = "Ready"
    UNREADY = "Unready"
    """It runs, and its readiness probe fails."""
    BACKOFF = "Backoff"
    """It ended by itself and waits for its next start."""
    STOPPING = "Stopping"
    ENDED = "Ended"
    """It ended by itself and is not started again: `RestartPolicy.NEVER`, or not described since the runtime began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """How a component is made to be reached from outside, where the runtime has Services: pods."""

    annotations: Mapping[str, str] = field(default_factory=dict)
    load_balancer_class: str | None = None
    """It counts when the Service is made: Kubernetes does not allow a change."""


@dataclass(frozen=True, slots=True)
class ExternalAddress:
    """Where a component is reached from outside of the network that components share."""

    host: str
    ports: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Address:
    """Where a component is reached by others."""

    host: str
    """Name or address that other components use, and that its serving certificate must carry."""
    ports: Mapping[str, int]
    bind: str | None = None
    """Address that the program has to listen on; None: `host` is one."""
    external: ExternalAddress | None = None
    """None: there is no other address than `host`."""

    @property
    def listen(self) -> str:
        """Address that the program has to listen on."""
        return self.bind or self.host


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentState:
    """What a runtime knows of a component now."""

    name: str
    phase: Phase
    message: str = ""
    """For people: why it is not ready, with the last lines of its log where it ended by itself."""
    restarts: int = 0
    pid: int | None = None
    exit_code: int | None = None
    """Of the last end; negative: the signal's number. None if it never ended or is not known."""
    version: str | None = None
    """Of the program, such as "1.36.3", as the present or last description has it; None if the runtime cannot tell."""
    rolling: bool = False
    """It is being replaced, because its description has changed. `message` says what is in the way then, also where the
    phase is READY: what was there before may serve on. Of that, something may be left even longer: see `settled`.
    """
    unplaced: bool = False
    """A pod of it has no node, because none fits its scheduling, or the cluster refuses to make the pod."""
    failing: bool = False
    """Its new description was tried and given up for now: the program ended before it was ready, and runs as before.
    `rolling` is True too, and `message` has the last words of the program. Pods are never given up, only `rolling`.
    """
    unobtainable: bool = False
    """It does not run, because its program cannot be had, for example because there is no such image."""


class Runtime(Protocol):
    """Runs components. Every call may be repeated; every call returns when what it says is true."""

    @property
    def runs_pods(self) -> bool:
        """Whether components are pods: held to their resources, put on nodes as scheduled, reached by Services."""
        ...

    async def version(self, program: str) -> str | None:
        """Return the version of a program, such as "1.36.3", that components get which ask for none; None: not known.

        Raises `RuntimeFailure` if the program is missing, or does not say it in time.
        """
        ...

    async def lacks(self, program: str, *, version: str) -> str | None:
        """Return a sentence that says why no component can have that version of the program; None if one can.

        Raises `RuntimeFailure` if that cannot be found out.
        """
        ...

    async def synced(self) -> None:
        """Return when it is known what runs already: before, every component seems to be absent."""
        ...

    async def reserve(self, name: str, *, ports: Sequence[str], exposed: Exposure | None = None) -> Address:
        """Give the address under which a component will be reached; the same one until it is deleted.

        `ports` names the ports wanted. `exposed` asks for an external address too, where the runtime was told how.
        Raises `RuntimeFailure` if no address can be had, or not yet.
        """
        ...

    async def apply(self, component: Component) -> None:
        """Have the component run as described: start it, replace it, or leave it.

        Returns when it was started, not when it is ready: see `state` and `subscribe`. No two processes ever use the
        same data at once.
        Raises `RuntimeFailure` if it cannot be started at all (no such program, no disk).
        """
        ...

    def state(self, name: str) -> ComponentState:
        """Return what is known of a component; phase ABSENT where there is none. Never blocks."""
        ...

    def settled(self, name: str) -> bool:
        """Return whether the component is ready as this runtime was told last, and nothing runs as it was told before.

        Files that programs read again by themselves are not waited for.
        """
        ...

    def placed(self, name: str, scheduling: Scheduling | None) -> bool:
        """Return whether the component is settled (`settled`), and every pod of it is scheduled as this says.

        False until `apply` was called, and while the component keeps another scheduling (`Component.scheduling_held`).
        """
        ...

    def names(self, *, prefix: str = "") -> Sequence[str]:
        """Names of all components that own something here: reserved, running, stopped, or found from an earlier run.

        With `prefix`, of those whose names begin so, which costs little for the others.
        """
        ...

    async def stop(self, name: str) -> None:
        """End the component and wait for its end; its address, files, logs and data stay. Absent: nothing happens."""
        ...

    async def delete(self, name: str) -> None:
        """End the component, wait, and remove its address, files, logs and data. Absent: nothing happens."""
        ...

    async def volume(self, name: str) -> str | None:
        """Name the object of the cluster that holds the component's data, and goes with its namespace; None: there is
        none."""
        ...

    async def unprotect(self, name: str) -> None:
        """Let the component's data be deleted by others too: until then, only `delete` removes them."""
        ...

    async def data_mark(self, name: str) -> str | None:
        """Return what `mark_data` wrote; None if the component has no data, or data that were never marked."""
        ...

    async def mark_data(self, name: str, mark: str) -> None:
        """Write a word on the component's data, which other data do not have. Raises `RuntimeFailure` without data."""
        ...

    def subscribe(self, callback: Callable[[str], None]) -> Callable[[], None]:
        """Call back with the name of each component whose state changed, or that `names` has no more.

        Returns the unsubscribe function.
        """
        ...


class NamedLocks:
    """Locks by name. A lock exists only while it is used."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def holding(self, name: str) -> AsyncIterator[None]:
        """Hold the lock of a name, after all earlier callers have left it."""
        lock = self._locks.setdefault(name, asyncio.Lock())
        self._users[name] += 1
        try:
            async with lock:
                yield
        finally:
            self._users[name] -= 1
            if not self._users[name]:
                del self._users[name], self._locks[name]


class Subscribers:
    """Callbacks that get the name of each component whose state changed."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[str], None]] = []

    def add(self, callback: Callable[[str], None]) -> Callable[[], None]:
        """Call back from now on; returns the function that ends it, which may be called again."""
        self._callbacks.append(callback)

        def remove() -> None:
            with contextlib.suppress(ValueError):
                self._callbacks.remove(callback)

        return remove

    def notify(self, name: str) -> None:
        """Call everybody. What one of them raises is logged, and keeps the others from nothing."""
        for callback in list(self._callbacks):
            try:
                callback(name)
            except Exception:
                logger.exception("A subscriber failed on a change of component %s", name)
