"""The protocol of runtimes, the state of components, and helpers that all runtimes share."""

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
    """Phase in the life of a component."""

    ABSENT = "Absent"
    STARTING = "Starting"
    READY = "Ready"
    UNREADY = "Unready"
    """The program runs, and its readiness probe fails."""
    BACKOFF = "Backoff"
    """The program ended by itself, and its next start is delayed."""
    STOPPING = "Stopping"
    ENDED = "Ended"
    """The program ended by itself and is not started again.

    Either its policy is `RestartPolicy.NEVER`, or `apply` was not called for it since the runtime began.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """Options for making a component reachable from outside; apply to pods, which have Services."""

    annotations: Mapping[str, str] = field(default_factory=dict)
    load_balancer_class: str | None = None
    """Class of the load balancer, which counts only when the Service is created: Kubernetes refuses a change."""


@dataclass(frozen=True, slots=True)
class ExternalAddress:
    """Address of a component outside of the network that components share."""

    host: str
    ports: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a component inside of the network that components share."""

    host: str
    """Host name or IP address that other components use. The component's serving certificate must contain it."""
    ports: Mapping[str, int]
    bind: str | None = None
    """Address for the program to listen on; None: `host`."""
    external: ExternalAddress | None = None
    """Address for clients outside; None: `host` is the only address."""

    @property
    def listen(self) -> str:
        """Address for the program to listen on."""
        return self.bind or self.host


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentState:
    """State of a component, as far as its runtime knows."""

    name: str
    phase: Phase
    message: str = ""
    """Reason for people why the component is not ready; if it ended by itself, with the last lines of its log."""
    restarts: int = 0
    pid: int | None = None
    exit_code: int | None = None
    """Exit code of the last end; negative: the signal's number.

    None if the program never ended, or the code is unknown.
    """
    version: str | None = None
    """Version of the program, such as "1.36.3", under the present or last description; None if it is unknown."""
    rolling: bool = False
    """Whether the component is being replaced after a change of its description.

    `message` then names the obstacle, even in phase READY, because the former program may still serve. Pods of the
    former description may outlast this flag: see `settled`.
    """
    unplaced: bool = False
    """Whether a pod has no node, or no pod exists.

    For example, no node fits the scheduling, or the cluster refuses to create the pod.
    """
    failing: bool = False
    """Whether the new description failed and the former description runs again, until a retry.

    The new program ended or hung before it was ready, or refused its arguments. `rolling` is True too, and `message`
    has the last words of the program. Always False for pods, which keep trying and stay `rolling`.
    """
    unobtainable: bool = False
    """Whether the program does not run because it cannot be obtained; for example, its image does not exist."""


class Runtime(Protocol):
    """Runs components. Each method may be called again, and returns once the described effect has taken place."""

    @property
    def runs_pods(self) -> bool:
        """Whether components are pods: Kubernetes enforces their resources, schedules them and gives them Services."""
        ...

    async def version(self, program: str) -> str | None:
        """Return the version of a program, such as "1.36.3", for components without a version of their own.

        None if the version is unknown. Raises `RuntimeFailure` if the program is missing, or does not report its
        version in time.
        """
        ...

    async def lacks(self, program: str, *, version: str) -> str | None:
        """Return a sentence with the reason why the runtime lacks this version of the program.

        None if the version is available. Raises `RuntimeFailure` if the version of the program cannot be determined.
        """
        ...

    async def synced(self) -> None:
        """Wait until the runtime knows the components that run already. Before, every component seems to be absent."""
        ...

    async def reserve(self, name: str, *, ports: Sequence[str], exposed: Exposure | None = None) -> Address:
        """Reserve the address of a component. The address stays the same until `delete`.

        `ports` are the names of the ports. `exposed` requests an external address too, if the runtime's settings allow
        it. Raises `RuntimeFailure` if no address is available, or not yet.
        """
        ...

    async def apply(self, component: Component) -> None:
        """Run the component as described: start it, replace it, or leave it unchanged.

        Returns once the component is started, not once it is ready: see `state` and `subscribe`. Two processes never
        use the same data at once. Raises `RuntimeFailure` if the component cannot be started at all, for example
        because the program is missing or the disk is full.
        """
        ...

    def state(self, name: str) -> ComponentState:
        """Return the state of a component, with phase ABSENT if it does not exist. Never blocks."""
        ...

    def settled(self, name: str) -> bool:
        """Return whether the component is ready under its last description, and no former process or pod is left.

        A program that reads changed files again by itself may still have their former content.
        """
        ...

    def placed(self, name: str, scheduling: Scheduling | None) -> bool:
        """Return whether the component is settled (`settled`), and all its pods have the given scheduling.

        False before the first `apply`, and while the component keeps a former scheduling (`Component.scheduling_held`).
        """
        ...

    def names(self, *, prefix: str = "") -> Sequence[str]:
        """Return the names of all components that own resources here: reserved, running, stopped, or of an earlier run.

        With `prefix`, only names that begin with `prefix`. Components with other names then cost little time.
        """
        ...

    async def stop(self, name: str) -> None:
        """End the component and wait for its end. Does not fail if the component is absent.

        The address, files, logs and data stay.
        """
        ...

    async def delete(self, name: str) -> None:
        """End the component, wait for its end, and remove its address, files, logs and data.

        Does not fail if the component is absent.
        """
        ...

    async def volume(self, name: str) -> str | None:
        """Return the name of the cluster object that holds the component's data and is deleted with its namespace.

        None if the component has no such object.
        """
        ...

    async def unprotect(self, name: str) -> None:
        """Allow others to delete the component's data. Before this call, only `delete` removes the data."""
        ...

    async def has_data(self, name: str) -> bool:
        """Return whether the component has a place for data, such as a volume."""
        ...

    async def data_mark(self, name: str) -> str | None:
        """Return the mark that `mark_data` wrote; None if the component has no data, or the data have no mark."""
        ...

    async def mark_data(self, name: str, mark: str) -> None:
        """Write a mark on the component's data, to tell them from other data. Raises `RuntimeFailure` without data."""
        ...

    def subscribe(self, callback: Callable[[str], None]) -> Callable[[], None]:
        """Call `callback` with the name of each component whose state changes, or that disappears from `names`.

        Returns the function that unsubscribes.
        """
        ...


class NamedLocks:
    """Locks by name. A lock exists only while callers hold it or wait for it."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def holding(self, name: str) -> AsyncIterator[None]:
        """Hold the lock of a name. Callers get the lock in the order of their calls."""
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
    """Callbacks that receive the name of each component whose state changes."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[str], None]] = []

    def add(self, callback: Callable[[str], None]) -> Callable[[], None]:
        """Add a callback. Returns the function that removes the callback, which may be called repeatedly."""
        self._callbacks.append(callback)

        def remove() -> None:
            with contextlib.suppress(ValueError):
                self._callbacks.remove(callback)

        return remove

    def notify(self, name: str) -> None:
        """Call all callbacks. An exception of a callback is logged, and does not affect the other callbacks."""
        for callback in list(self._callbacks):
            try:
                callback(name)
            except Exception:
                logger.exception("A subscriber failed on a change of component %s", name)
