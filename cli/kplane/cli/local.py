"""Management cluster of `kplane up`: processes of this machine, which run until `kplane down`."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from kplane.binaries.programs import BinariesError, resolve
from kplane.cli.errors import CliError, Refused
from kplane.cli.local_context import enter_local, leave_local
from kplane.cli.own_kubeconfig import check_writable
from kplane.embedded import lock
from kplane.embedded.daemon import Daemon, end
from kplane.embedded.errors import EmbeddedError
from kplane.embedded.handle import READY_FILE, Handle

__all__ = ["default_directory", "end_local", "start_local"]

_MARKER: Final = ".kplane-local"
_READY_SECONDS: Final = 240.0

Report = Callable[[str], None]


def default_directory() -> Path:
    """Return the data directory of `kplane up` without `--directory`."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "kplane" / "local"


def start_local(directory: Path | None, *, fake_nodes: bool = False, report: Report) -> str:
    """Start a management cluster in a directory unless it runs, and return its context in the user's kubeconfig.

    Raises CliError if the directory belongs to another program, or if the directory or the kubeconfig is not writable.
    Also raises CliError if the start fails, or if a running cluster lacks the requested fake nodes.
    """
    check_writable()
    target = (directory or default_directory()).absolute()
    with _using(target):
        is_running = lock.holder(target) is not None and (target / READY_FILE).exists()
    if is_running:
        handle = _load(target)
        if fake_nodes and not handle.fake_nodes:
            raise Refused("kplane runs already, without fake nodes; end it first: kplane down")
        report(f"kplane runs already, process {handle.pid}")
    else:
        handle = _start(target, fake_nodes=fake_nodes, report=report)
    context, path = enter_local(handle)
    report(f"context {context} is in {path}, and is the current one")
    option = "" if target == default_directory().absolute() else f" --directory {shlex.quote(str(target))}"
    report(f"next: kplane create acme{' --fake-nodes 3' if handle.fake_nodes else ''}; end it: kplane down{option}")
    return context


def _start(directory: Path, *, fake_nodes: bool, report: Report) -> Handle:
    # Imported here, because `kplane down` also runs without an installed pyrage.
    from kplane.embedded.snapshots import SNAPSHOT_KEY, SNAPSHOTS

    with _using(directory):
        _require_own(directory)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        (directory / _MARKER).touch(mode=0o600)
    try:
        binaries = resolve(report=report)
        kwok = resolve(programs=("kwok",), report=report).path("kwok") if fake_nodes else None
        report("starting etcd, kube-apiserver, both operators and the gateway ...")
        daemon = Daemon(directory, binaries=binaries, bound=False, gateway=True, kwok=kwok)
        try:
            handle = daemon.wait_ready(timeout_seconds=_READY_SECONDS)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                report("interrupted: what was started is being ended ...")
            end(directory)
            raise
    except (BinariesError, EmbeddedError) as error:
        raise CliError(str(error)) from error
    report(f"ready after {handle.seconds['total']:.1f} s")
    report(f"snapshots are in {directory / SNAPSHOTS}; their private key is {directory / SNAPSHOT_KEY}")
    return handle


def end_local(directory: Path | None, *, purge: bool, report: Report) -> None:
    """Stop the management cluster of a directory, and remove its context. Raises CliError if a process does not end."""
    target = (directory or default_directory()).absolute()
    _require_own(target)
    if not target.exists():
        report("nothing runs")
        return
    server = _load(target).server if (target / READY_FILE).exists() else None
    try:
        end(target)
    except EmbeddedError as error:
        raise CliError(str(error)) from error
    leave_local(target, server=server)
    if purge:
        shutil.rmtree(target)
        report("ended, and all data deleted")
    else:
        report(f"ended; the data stay in {target} for the next `kplane up`; --purge deletes them")


@contextlib.contextmanager
def _using(directory: Path) -> Iterator[None]:
    """Convert an OSError of the block into Refused with a remedy."""
    try:
        yield
    except OSError as error:
        raise Refused(
            f"failed to use directory {directory}: {error.strerror or error}; choose one that you can write: kplane up"
            " --directory DIRECTORY"
        ) from error


def _require_own(directory: Path) -> None:
    if directory.exists() and any(directory.iterdir()) and not (directory / _MARKER).exists():
        raise Refused(f"{directory} holds files that `kplane up` did not write; choose another directory")


def _load(directory: Path) -> Handle:
    try:
        return Handle.load(directory)
    except EmbeddedError as error:
        raise CliError(str(error)) from error
