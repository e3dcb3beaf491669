"""Reaches an address inside of the management cluster from this machine, through kubectl."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TextIO, cast
from urllib.parse import urlsplit

from kplane.binaries.errors import BinariesError
from kplane.binaries.programs import resolve
from kplane.cli.errors import CliError
from kplane.cli.kubeconfigs import Management
from kplane.workloads.processes import launcher

__all__ = ["forwarded", "is_inside"]

_SERVICE: Final = re.compile(r"(?P<service>[a-z0-9-]+)\.(?P<namespace>[a-z0-9-]+)\.svc")
_LISTENING: Final = re.compile(r"Forwarding from 127\.0\.0\.1:(?P<port>\d+) ")
_START_SECONDS: Final = 30.0
_END_SECONDS: Final = 5.0


def is_inside(document: dict[str, Any]) -> bool:
    """Whether the server of a kubeconfig is a Service, whose name is known inside of the management cluster alone."""
    return _SERVICE.fullmatch(urlsplit(document["clusters"][0]["cluster"]["server"]).hostname or "") is not None


@contextlib.contextmanager
def forwarded(document: dict[str, Any], *, to: Management) -> Iterator[dict[str, Any]]:
    """Forward a port of this machine to the Service of a kubeconfig, and give the kubeconfig that uses it.

    `to` is the management cluster. The server is still verified by its name.
    Raises CliError if kubectl does not forward. It blocks while kubectl starts; the kernel ends kubectl with the thread
    that entered.
    """
    [cluster] = document["clusters"]
    address = urlsplit(cluster["cluster"]["server"])
    host = address.hostname or ""
    found = _SERVICE.fullmatch(host)
    if found is None:
        raise CliError(f"{host} is not the name of a Service")
    try:
        kubectl = resolve(programs=["kubectl"], report=lambda _: None).path("kubectl")
    except BinariesError as error:
        raise CliError(str(error)) from error
    command = [str(kubectl), "port-forward", f"service/{found['service']}", f":{address.port or 443}"]
    command += ["--namespace", found["namespace"], "--address", "127.0.0.1"]
    command += ["--context", to.context] if to.context is not None else []
    with _running(command, environment=to.environment) as port:
        if port is None:
            raise CliError(f"failed to forward a port to {host} within {_START_SECONDS:g} s; kubectl may say why above")
        local = f"{address.scheme}://127.0.0.1:{port}{address.path}"
        changed = {**cluster["cluster"], "server": local, "tls-server-name": host}
        yield {**document, "clusters": [{**cluster, "cluster": changed}]}


@contextlib.contextmanager
def _running(command: list[str], *, environment: Mapping[str, str]) -> Iterator[int | None]:
    """Run kubectl, and give the port that it listens on; None if it ended, or did not listen in time."""
    # A session of its own: Ctrl-C is for the command that uses the port. Complaints go to the user as they come.
    process = subprocess.Popen(
        [*_bound(), *command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=sys.stderr,
        text=True,
        start_new_session=True,
    )
    with process:
        first = queue.SimpleQueue[str]()
        output = cast("TextIO", process.stdout)
        reader = threading.Thread(target=_read, args=(output, first), name="output of kubectl port-forward")
        reader.start()
        try:
            yield _port(first)
        finally:
            _signal(process, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
            _signal(process, signal.SIGKILL)
            reader.join()


def _signal(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Signal kubectl and what it runs, such as a plugin for credentials, which has the same output."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _bound() -> Sequence[str]:
    """Return what has the kernel end a program with its parent, also if that is killed; nothing on other systems."""
    if sys.platform != "linux":
        return []
    return [sys.executable, "-I", "-S", launcher.__file__, str(os.getpid()), "", ""]


def _read(output: TextIO, first: queue.SimpleQueue[str]) -> None:
    """Hand the first line on, and drop the rest: there is one for each connection, and kubectl waits for a reader."""
    first.put(output.readline())
    for _ in output:
        pass


def _port(first: queue.SimpleQueue[str]) -> int | None:
    try:
        listening = _LISTENING.match(first.get(timeout=_START_SECONDS))
    except queue.Empty:
        return None
    return int(listening["port"]) if listening is not None else None
