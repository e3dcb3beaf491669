"""Runs the demo, and ends it or, with `--keep`, leaves it running."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
from pathlib import Path
from typing import Final

from rich.console import Console

from kplane.binaries.programs import BinariesError, resolve
from kplane.cli.demo import site
from kplane.cli.demo.display import Display
from kplane.cli.demo.steps import STEPS, Demo
from kplane.cli.errors import CliError, DemoFailed
from kplane.embedded import lock
from kplane.embedded.daemon import Daemon, end, tail
from kplane.embedded.errors import EmbeddedError, leaves
from kplane.embedded.handle import log_files
from kplane.workloads import WorkloadsError, find_processes

__all__ = ["run_demo"]

_OWN_STEPS: Final = 3
_READY_SECONDS: Final = 240.0
_TAIL_LINES: Final = 12
_ERRORS: Final = (BinariesError, CliError, EmbeddedError, WorkloadsError, OSError)


def run_demo(directory: Path, *, keep: bool) -> int:
    """Run the demo and return the exit status: 0 only if each step was verified."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    display = Display(Console(), steps=len(STEPS) + _OWN_STEPS)
    directory = directory.absolute()
    try:
        site.take(directory)
    except _ERRORS as error:
        display.line(f"error: {error}", style="red")
        return 1
    try:
        return _run_guarded(directory, display=display, keep=keep)
    except KeyboardInterrupt:
        display.line("Interrupted. Ending all processes.", style="red")
        return _give_up(directory, display=display, status=130)


def _run_guarded(directory: Path, *, display: Display, keep: bool) -> int:
    status = 0
    try:
        _run(directory, display=display, keep=keep)
    except* _ERRORS as group:
        for error in leaves(group):
            display.line(f"error: {error}", style="red")
        status = _give_up(directory, display=display, status=1)
    return status


def _run(directory: Path, *, display: Display, keep: bool) -> None:
    with display.step("Set up the Kubernetes and etcd programs"):
        binaries = resolve(report=display.note)
        for programs in dict.fromkeys(binaries.directories):
            display.note(str(programs))
    # A kept cluster outlives this process. Any other ends with it, even if this process is killed.
    daemon = Daemon(directory, binaries=binaries, bound=not keep, gateway=True)
    try:
        with display.step("Start the management cluster, both operators and the gateway"):
            handle = daemon.wait_ready(timeout_seconds=_READY_SECONDS)
            display.note(", ".join(f"{part} {seconds:.1f} s" for part, seconds in handle.seconds.items()))
        demo = Demo(handle=handle, note=display.note)
        asyncio.run(_verify(demo, display=display))
    except BaseException as error:
        if not isinstance(error, KeyboardInterrupt):
            # Before the stop: stopping the programs adds many lines to their logs.
            _show_logs(directory, display=display)
        with contextlib.suppress(EmbeddedError):
            daemon.stop()
        raise
    with display.step("Keep everything running" if keep else "Stop everything"):
        if keep:
            _describe(demo, display=display)
        else:
            _stop(daemon, display=display)


async def _verify(demo: Demo, *, display: Display) -> None:
    for step in STEPS:
        with display.step(step.title):
            await step.run(demo)


def _stop(daemon: Daemon, *, display: Display) -> None:
    pids = [daemon.pid, *find_processes(daemon.directory)]
    daemon.stop()
    if left := sorted({pid for pid in pids if _alive(pid)} | set(find_processes(daemon.directory))):
        raise DemoFailed(f"failed to stop the demo: processes {left} still run; end them by `kill`")
    shutil.rmtree(daemon.directory)
    display.note(f"{len(pids)} processes ended, 0 left; {daemon.directory} removed")


def _alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    # A zombie has ended. Its parent, here often process 1, removes it from the table later.
    return stat.rpartition(")")[2].split()[0] != "Z"


def _describe(demo: Demo, *, display: Display) -> None:
    handle = demo.handle
    kubectl = f"{handle.kubectl_program} --kubeconfig"
    kinds = "controlplanes,controlplaneregistrations"
    lines = [
        f"management cluster:  {kubectl} {handle.admin_kubeconfig} get {kinds}",
        *(
            f"control plane {name}:  {kubectl} {tenant.kubectl.kubeconfig} get all --all-namespaces"
            for name, tenant in demo.tenants.items()
        ),
        f"operator:  curl {handle.operator_url}/readyz    its metrics: {handle.operator_url}/metrics",
        f"mcm:  curl '{handle.mcm_url}/clusters?format=table'    its metrics: {handle.mcm_url}/metrics",
        f"end it:  kplane demo-down --directory {handle.directory}    (or: make demo-down)",
    ]
    for line in lines:
        display.note(line)


def _show_logs(directory: Path, *, display: Display) -> None:
    for log in log_files(directory):
        display.line(f"--- {log}")
        display.line(tail(log, lines=_TAIL_LINES), style="dim")


def _give_up(directory: Path, *, display: Display, status: int) -> int:
    """End all processes after a failure. The directory with the logs stays until the next demo."""
    try:
        end(directory)
    except EmbeddedError as error:
        display.line(f"error: {error}", style="red")
    if lock.holder(directory) is None and not find_processes(directory):
        display.line(f"All processes have ended. The logs stay in {directory} until the next demo.")
    return status
