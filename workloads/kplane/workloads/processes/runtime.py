"""Components as processes of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp

from kplane.provider.aio.backoff import Backoff
from kplane.provider.aio.cancellation import end_tasks
from kplane.workloads.component import Component, Scheduling
from kplane.workloads.errors import RuntimeFailure
from kplane.workloads.processes.directory import REMOVED_PREFIX, ComponentDirectory
from kplane.workloads.processes.launch import check_name, is_name, prepare_launch
from kplane.workloads.processes.pace import Pace
from kplane.workloads.processes.ports import PortRegistry
from kplane.workloads.processes.preparation import prepare_data
from kplane.workloads.processes.process import end_entries
from kplane.workloads.processes.proctable import ProcessEntry, marked_processes
from kplane.workloads.processes.program import ProgramVersions
from kplane.workloads.processes.supervision import Supervision
from kplane.workloads.runtime import Address, ComponentState, Exposure, NamedLocks, Phase, Subscribers

__all__ = ["ProcessRuntime"]

logger = logging.getLogger(__name__)

_LOCK_FILE = ".lock"


async def _at_once(_name: str, _failures: int) -> None:
    pass


class ProcessRuntime:
    """A `Runtime` of supervised processes on this machine; an async context manager.

    Each component has `<directory>/<name>/` with `files/`, `data/`, `log` (and `log.1`), `address.json`. On entry, the
    runtime finds the processes of an earlier run by the marker in their environment, and watches them. `apply` with an
    equal description leaves such a process running; another description replaces the process. If such a process ends
    before `apply` describes its component, its phase is ENDED and it is not started, because descriptions are not kept
    on disk. On exit, components of `Lifetime.BOUND` are ended, and the others continue.

    Arguments: `directory` belongs to one runtime at a time, and to this user alone. `programs` are the directories
    searched for programs, in this order. `host` is the address on which components listen, and which probes connect to.
    `log_limit_bytes` bounds each of a component's two log files.

    Raises RuntimeFailure on entry if the directory cannot be used or another runtime uses it. Run the runtime in a loop
    whose thread lives as long as the components: the kernel ends bound components with that thread.
    """

    def __init__(
        self,
        directory: Path,
        *,
        programs: Sequence[Path],
        host: str = "127.0.0.1",
        pace: Pace | None = None,
        log_limit_bytes: int = 10 * 1024 * 1024,
    ) -> None:
        self._directory = directory.resolve()
        self._programs = tuple(programs)
        self._versions = ProgramVersions(programs)
        self._host = host
        self._pace = pace or Pace()
        self._log_limit_bytes = log_limit_bytes
        self._ports = PortRegistry(host=host)
        self._supervisions: dict[str, Supervision] = {}
        self._locks = NamedLocks()
        self._subscribers = Subscribers()
        self._admit_restart: Callable[[str, int], Awaitable[None]] = _at_once
        self._session: aiohttp.ClientSession | None = None
        self._removals: list[asyncio.Task[None]] = []
        """Tasks that remove files of deleted components of an earlier run."""
        self._lock = -1

    async def __aenter__(self) -> Self:
        self._lock = self._acquire()
        # No limit on connections: a component that never answers must not delay the probes of others.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
        )
        try:
            await self._take_over()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        session, self._session = self._session, None
        try:
            await end_tasks(self._removals)
            async with asyncio.TaskGroup() as tasks:
                for name in list(self._supervisions):
                    tasks.create_task(self._close(name), name=f"close {name}")
        finally:
            if session is not None:
                await session.close()
            os.close(self._lock)

    def log_path(self, name: str) -> Path:
        """Return the path of the component's log. The part before the last rotation is in `<path>.1`."""
        check_name(name)
        return ComponentDirectory(self._directory / name).log

    @property
    def runs_pods(self) -> bool:
        """See `Runtime.runs_pods`. Requests and limits do not apply to processes."""
        return False

    async def version(self, program: str) -> str | None:
        """See `Runtime.version`. The answer of `<program> --version` is remembered until the program's file changes."""
        return await self._versions.of(program)

    async def lacks(self, program: str, *, version: str) -> str | None:
        """See `Runtime.lacks`. This machine has a single version of each program."""
        own = await self._versions.of(program)
        return None if version == own else f"{program} is here in version {own} only, and as a process it runs as that"

    async def synced(self) -> None:
        """See `Runtime.synced`. Returns at once, because the processes of an earlier run are found on entry."""

    async def reserve(
        self,
        name: str,
        *,
        ports: Sequence[str],
        exposed: Exposure | None = None,  # noqa: ARG002 - there are no Services
    ) -> Address:
        """See `Runtime.reserve`. The ports are unique among all runtimes of this user on this machine.

        `exposed` is ignored: clients that reach `host` reach the component, which has no other address.
        """
        async with self._supervision(name) as supervision:
            numbers = await self._ports.claim(supervision.directory, ports=ports)
        return Address(host=self._host, ports=numbers)

    async def apply(self, component: Component) -> None:
        """See `Runtime.apply`. Changes of `File.reloaded` files, probe, restart policy and grace cause no restart.

        Also raises RuntimeFailure if the component requires a version that this machine does not have.
        """
        if component.version is not None and (why := await self.lacks(component.program, version=component.version)):
            raise RuntimeFailure(f"Component {component.name}: version {component.version} cannot be had: {why}.")
        async with self._supervision(component.name) as supervision:
            launch = prepare_launch(
                component,
                directory=supervision.directory,
                programs=self._programs,
                log_limit_bytes=self._log_limit_bytes,
            )
            await prepare_data(component, directory=supervision.directory, programs=self._programs)
            await supervision.apply(launch)

    def state(self, name: str) -> ComponentState:
        """See `Runtime.state`. A stopped component is ABSENT, but remains in `names`."""
        supervision = self._supervisions.get(name)
        return supervision.state if supervision else ComponentState(name=name, phase=Phase.ABSENT)

    def settled(self, name: str) -> bool:
        """See `Runtime.settled`. A process ends before the next process starts."""
        state = self.state(name)
        return state.phase is Phase.READY and not state.rolling

    def placed(self, name: str, scheduling: Scheduling | None) -> bool:  # noqa: ARG002 - there is one machine
        """See `Runtime.placed`."""
        return self.settled(name)

    def names(self, *, prefix: str = "") -> Sequence[str]:
        """See `Runtime.names`."""
        entries = ((name, candidate) for name, candidate in self._supervisions.items() if name.startswith(prefix))
        return sorted(name for name, supervision in entries if _owns_something(supervision))

    async def stop(self, name: str) -> None:
        """See `Runtime.stop`. Waits without limit until the kernel has ended a killed process.

        If the call is cancelled, the stop continues.
        """
        async with self._supervision(name) as supervision:
            await supervision.stop()

    def kill(self, name: str) -> bool:
        """Kill the component's process, which is then restarted as after any other end.

        Returns False if no process runs.
        """
        supervision = self._supervisions.get(name)
        return supervision is not None and supervision.kill()

    async def delete(self, name: str) -> None:
        """See `Runtime.delete`. Raises RuntimeFailure if the directory cannot be removed."""
        async with self._supervision(name) as supervision:
            await supervision.stop()
            directory = supervision.directory
            if directory.exists:
                await self._ports.release(directory)
            try:
                if directory.exists:
                    directory.remove()
                    self._subscribers.notify(name)
                # Remove in a thread, because data can be large. After an interruption the component is deleted already,
                # but its remaining files hold credentials. So files of earlier attempts are removed too.
                for removed in directory.removed():
                    await asyncio.to_thread(_remove_all, removed)
            except OSError as error:
                raise RuntimeFailure(f"Component {name} cannot be removed: {error}.") from error

    async def volume(self, name: str) -> str | None:  # noqa: ARG002 - processes have no volumes
        """See `Runtime.volume`. Always None: the data are in a directory of this machine."""
        return None

    async def unprotect(self, name: str) -> None:
        """See `Runtime.unprotect`. Has no effect: the cluster cannot delete a directory of this machine."""

    async def has_data(self, name: str) -> bool:
        """See `Runtime.has_data`."""
        async with self._supervision(name) as supervision:
            return supervision.directory.data.is_dir()

    async def data_mark(self, name: str) -> str | None:
        """See `Runtime.data_mark`."""
        async with self._supervision(name) as supervision:
            try:
                return supervision.directory.read_mark()
            except OSError as error:
                raise RuntimeFailure(f"Component {name}: the mark of its data cannot be read: {error}.") from error

    async def mark_data(self, name: str, mark: str) -> None:
        """See `Runtime.mark_data`."""
        async with self._supervision(name) as supervision:
            try:
                supervision.directory.write_mark(mark)
            except OSError as error:
                raise RuntimeFailure(f"Component {name}: its data cannot be marked: {error}.") from error

    def subscribe(self, callback: Callable[[str], None]) -> Callable[[], None]:
        """See `Runtime.subscribe`. The callback is called in the loop, and its exceptions are logged."""
        return self._subscribers.add(callback)

    def before_restart(self, admit: Callable[[str, int], Awaitable[None]]) -> None:
        """Await `admit` before each restart of a component that ended by itself, after its backoff.

        `admit` gets the name and the number of consecutive ends. The call is cancelled if the component is stopped.
        """
        self._admit_restart = admit

    def _acquire(self) -> int:
        path = self._directory / _LOCK_FILE
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise RuntimeFailure(f"The directory {self._directory} cannot be used: {error}.") from error
        try:
            # The lock belongs to the descriptor, which no program inherits. So the lock cannot outlive this process.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            user = os.pread(descriptor, 20, 0).decode(errors="replace")
            os.close(descriptor)
            raise RuntimeFailure(
                f"The directory {self._directory} is used by another runtime (process {user or 'unknown'}):"
                " end that one, or take another directory."
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        return descriptor

    async def _take_over(self) -> None:
        for path in self._directory.iterdir():
            if path.name.startswith(REMOVED_PREFIX):
                if (error := await asyncio.to_thread(_try_to_remove_all, path)) is not None:
                    self._removals.append(asyncio.create_task(_keep_removing(path, error), name=f"remove {path}"))
            elif is_name(path.name) and path.is_dir():
                self._add(path.name)
        leaders: dict[str, ProcessEntry] = {}
        entries = [entry for entry in marked_processes(self._directory) if Path(entry.marker).parent == self._directory]
        for entry in entries:
            if entry.leader:
                leaders.setdefault(entry.marker, entry)
        strays = [entry for entry in entries if entry.marker not in leaders]
        await end_entries(strays, grace_seconds=0.0)  # their main processes are dead, and so are their components
        for marker, entry in leaders.items():
            self._add(Path(marker).name).adopt(entry)
        for supervision in list(self._supervisions.values()):
            try:
                await self._ports.restore(supervision.directory)
            except (RuntimeFailure, OSError) as error:
                logger.warning("%s", error)  # `reserve` and `delete` raise it again; other components are not delayed
        try:
            await self._ports.sweep()
        except (RuntimeFailure, OSError) as error:
            logger.warning("claims of ports are not cleared away: %s", error)

    def _add(self, name: str) -> Supervision:
        if self._session is None:
            raise RuntimeFailure(f"The runtime over {self._directory} is not open.")
        if name not in self._supervisions:
            self._supervisions[name] = Supervision(
                ComponentDirectory(self._directory / name),
                host=self._host,
                session=self._session,
                pace=self._pace,
                log_limit_bytes=self._log_limit_bytes,
                on_change=self._subscribers.notify,
                before_restart=self._wait_to_restart,
            )
        return self._supervisions[name]

    async def _wait_to_restart(self, name: str, failures: int) -> None:
        await self._admit_restart(name, failures)

    @contextlib.asynccontextmanager
    async def _supervision(self, name: str) -> AsyncIterator[Supervision]:
        """Hold the lock of a component, which serializes its calls.

        At exit, drop the supervision of a component without a directory and a process.
        """
        check_name(name)
        async with self._locks.holding(name):
            supervision = self._add(name)
            try:
                yield supervision
            finally:
                if not _owns_something(supervision):
                    del self._supervisions[name]

    async def _close(self, name: str) -> None:
        async with self._locks.holding(name):
            supervision = self._supervisions.get(name)
            if supervision is None:
                return
            if supervision.bound:
                await supervision.stop()
            else:
                await supervision.release()


def _remove_all(directory: Path) -> None:
    """Remove a directory. Raises OSError if a part cannot be removed, after removing all other parts."""
    while directory.exists():
        try:
            shutil.rmtree(directory)
        except FileNotFoundError:
            pass  # a removal whose caller was cancelled continues in its thread, and may remove each file first
        except OSError:
            shutil.rmtree(directory, ignore_errors=True)
            raise


async def _keep_removing(directory: Path, error: OSError) -> None:
    backoff = Backoff(initial_seconds=1.0, maximum_seconds=300.0)
    failed: OSError | None = error
    while failed is not None:
        delay = backoff.next_delay()
        logger.warning("failed to remove %s of a deleted component: %s; retry in %.1f s", directory, failed, delay)
        await asyncio.sleep(delay)
        failed = await asyncio.to_thread(_try_to_remove_all, directory)


def _try_to_remove_all(directory: Path) -> OSError | None:
    try:
        _remove_all(directory)
    except OSError as error:
        return error
    return None


def _owns_something(supervision: Supervision) -> bool:
    # A process counts even without a directory, which may have been removed under it.
    return supervision.directory.exists or supervision.state.phase is not Phase.ABSENT
