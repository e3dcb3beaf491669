"""Run of the demo: leaves the demo running or, with `--clean`, stops it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

import aiohttp
from rich.console import Console

from kplane.binaries.programs import BinariesError, resolve
from kplane.cli.demo import context, site
from kplane.cli.demo.display import Display, Proof
from kplane.cli.demo.steps import ASLEEP, MOVED, STAYS, STEPS, Demo
from kplane.cli.errors import CliError, DemoFailed, ExitCode
from kplane.client import ClientError, ControlPlanes
from kplane.data import DataError
from kplane.embedded import lock
from kplane.embedded.daemon import Daemon, end, tail
from kplane.embedded.errors import EmbeddedError, leaves
from kplane.embedded.handle import Handle, log_files
from kplane.provider import ClusterConfig, ProviderError
from kplane.workloads import WorkloadsError, find_processes

__all__ = ["run_demo"]

_BEFORE: Final = 2
"""Number of steps before `STEPS`."""
_READY_SECONDS: Final = 240.0
_TAIL_LINES: Final = 12
_ERRORS: Final = (
    aiohttp.ClientError,
    BinariesError,
    CliError,
    ClientError,
    DataError,
    EmbeddedError,
    ProviderError,
    WorkloadsError,
    OSError,
)


def run_demo(directory: Path, *, clean: bool, count: int) -> int:
    """Run the demo with `count` control planes. Return the exit status: 0 only if each step was verified."""
    _handle_signals()
    display = Display(Console(), steps=_BEFORE + len(STEPS) + clean)
    directory = directory.absolute()
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(site.hold(directory))
            # A crashed demo may have left its context. Its notes about the user's former context are deleted next.
            context.leave(directory)
            site.empty(directory)
        except _ERRORS as error:
            display.line(f"error: {error}", style="red")
            return ExitCode.FAILED
        try:
            return _run_guarded(directory, display=display, clean=clean, count=count)
        except KeyboardInterrupt:
            with _giving_up(directory, display=display):
                display.line("Interrupted. Ending all processes.", style="red")
            return ExitCode.INTERRUPTED


def _handle_signals() -> None:
    """Make SIGTERM and the end of the terminal interrupt the demo. With `nohup`, the demo outlives its terminal."""
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    """Raise KeyboardInterrupt once, because kernel and shell may both send SIGHUP, and the cleanup must not be cut."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _run_guarded(directory: Path, *, display: Display, clean: bool, count: int) -> int:
    status = ExitCode.OK
    try:
        _run(directory, display=display, clean=clean, count=count)
    except* _ERRORS as group:
        status = ExitCode.FAILED
        with _giving_up(directory, display=display):
            for error in leaves(group):
                display.line(f"error: {error}", style="red")
    return status


def _run(directory: Path, *, display: Display, clean: bool, count: int) -> None:
    with display.step("Find the programs of Kubernetes and etcd") as proof:
        binaries = resolve(report=display.note)
        proof.show("The unmodified programs of Kubernetes and etcd are there", _places(binaries.directories))
    # A demo without --clean outlives this process. A demo with --clean ends with it, even if this process is killed.
    daemon = Daemon(directory, binaries=binaries, bound=clean, gateway=True)
    try:
        with display.step("Start a management cluster, both operators and the gateway") as proof:
            handle = daemon.wait_ready(timeout_seconds=_READY_SECONDS)
            proof.show("A management cluster, both operators and the gateway run on this machine", _parts(handle))
        asyncio.run(_verify(handle, count=count, display=display))
    except BaseException as error:
        try:
            if not isinstance(error, KeyboardInterrupt):
                # The logs are shown before the stop, because stopping the programs adds many lines to them.
                _show_logs(directory, display=display)
        finally:
            with contextlib.suppress(EmbeddedError):
                daemon.stop()
        raise
    if clean:
        with display.step("Stop everything") as proof:
            _stop(daemon, proof=proof)
    entered = not clean and _enter(handle, display=display)
    _close(handle, display=display, clean=clean, entered=entered)


def _enter(handle: Handle, *, display: Display) -> bool:
    """Enter the demo's context. Return False if that fails, because a verified demo must not fail then."""
    try:
        context.enter(handle)
    except _ERRORS as error:
        display.note(f"failed to add context {context.CONTEXT} to your kubeconfig: {error}; use --kubeconfig")
        return False
    return True


def _places(directories: Iterable[Path]) -> str:
    parents: dict[Path, list[str]] = {}
    for directory in directories:
        parents.setdefault(directory.parent, []).append(directory.name)
    return "; ".join(f"{context.home_relative(parent)}: {', '.join(names)}" for parent, names in parents.items())


def _parts(handle: Handle) -> str:
    return ", ".join(f"{part} {seconds:.1f} s" for part, seconds in handle.seconds.items() if part != "total")


async def _verify(handle: Handle, *, count: int, display: Display) -> None:
    async with ControlPlanes.connect(ClusterConfig.load(handle.admin_kubeconfig)) as control_planes:
        demo = Demo(handle=handle, control_planes=control_planes, count=count)
        for step in STEPS:
            with display.step(step.title) as proof:
                await step.run(demo, proof)


def _stop(daemon: Daemon, *, proof: Proof) -> None:
    pids = [daemon.pid, *find_processes(daemon.directory)]
    daemon.stop()
    if survivors := sorted({pid for pid in pids if _alive(pid)} | set(find_processes(daemon.directory))):
        raise DemoFailed(f"failed to stop the demo: processes {survivors} still run; end them by `kill`")
    shutil.rmtree(daemon.directory)
    proof.show(f"Everything has ended: {len(pids)} processes → 0, and the data are deleted")


def _alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    # A zombie has ended. Its parent, here often process 1, removes it from the process table later.
    return stat.rpartition(")")[2].split()[0] != "Z"


def _close(handle: Handle, *, display: Display, clean: bool, entered: bool) -> None:
    display.line()
    if clean:
        display.line(f"Each step was verified, in {display.seconds:.0f} s.", style="bold")
        return
    display.line(f"Each step was verified, in {display.seconds:.0f} s. It is still running. Type next:", style="bold")
    for command in context.next_commands(handle, shown=(STAYS, MOVED, ASLEEP), connect=STAYS, entered=entered):
        display.note(command, style="")


def _show_logs(directory: Path, *, display: Display) -> None:
    for log in log_files(directory):
        display.line(f"--- {log}")
        display.line(tail(log, lines=_TAIL_LINES), style="dim")


@contextlib.contextmanager
def _giving_up(directory: Path, *, display: Display) -> Iterator[None]:
    """Stop all processes after the block, even if the block fails to print. The logs stay until the next demo."""
    try:
        yield
    finally:
        try:
            end(directory)
            context.leave(directory)
        except _ERRORS as error:
            display.line(f"error: {error}", style="red")
        if lock.holder(directory) is None and not find_processes(directory):
            display.line(f"All processes have ended. The logs stay in {directory} until the next demo.")
