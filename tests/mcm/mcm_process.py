"""mcm as a process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kplane.binaries.programs import Binaries
from kplane.workloads import find_processes

Eventually = Callable[..., Any]
Samples = dict[tuple[str, str], dict[str, float]]

_QUICK = Path(__file__).with_name("quick_mcm.py")


class Mcm:
    """mcm as a separate process, with its log, output, HTTP answers, instances and directories."""

    def __init__(
        self,
        directory: Path,
        *,
        kubeconfig: Path,
        programs: tuple[Path, ...],
        port: int,
        quick: bool = False,
        apart: bool = False,
        lease_seconds: int | None = None,
    ) -> None:
        """`quick_mcm.py` describes `quick`, `apart` and `lease_seconds`."""
        self.state = directory / "state"
        self.log = directory / "mcm.log"
        self.output = directory / "mcm.out"
        self.url = f"http://127.0.0.1:{port}"
        variables = {
            "QUICK_MCM": "yes" if quick else None,
            "QUICK_MCM_APART": "yes" if apart else None,
            "QUICK_MCM_LEASE_SECONDS": str(lease_seconds) if lease_seconds is not None else None,
        }
        self._environment = {name: value for name, value in variables.items() if value is not None}
        command = (str(_QUICK),) if self._environment else ("-m", "kplane.mcm.main")
        self._command = [
            *(sys.executable, *command, f"--kubeconfig={kubeconfig}", f"--state-dir={self.state}"),
            *(f"--programs-dir={path}" for path in programs),
            f"--listen={self.url.removeprefix('http://')}",
            "--report-status",
        ]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *flags: str) -> None:
        with self.log.open("ab") as log, self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [*self._command, *flags],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                cwd=Path(__file__).parents[2],
                env=os.environ | self._environment,
            )

    def end(self, number: int = signal.SIGTERM) -> int:
        """Signal the process, wait until it ends and return its exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(90.0)

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"{self.url}{path}", timeout=30.0) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def clusters(self) -> dict[str, Any]:
        clusters: dict[str, Any] = json.loads(self.get("/clusters")[1])["clusters"]
        return clusters

    def instances(self) -> list[int]:
        """Return the pids of all processes with the marker of this mcm's runtime."""
        return find_processes(self.state)

    def directories(self) -> list[str]:
        return sorted(path.name for path in self.state.iterdir() if path.is_dir())


@pytest.fixture
def mcm_of(
    binaries: Binaries, hold_port: Callable[[], int], request: pytest.FixtureRequest
) -> Iterator[Callable[..., Mcm]]:
    """`mcm_of(kubeconfig)` makes an mcm with the identity of a kubeconfig. The test starts it.

    `programs` replaces the default directories of programs. Other arguments are those of Mcm. At the end of the test,
    the fixture stops each mcm and asserts that it has no instances.
    """

    def make(kubeconfig: Path, *, programs: tuple[Path, ...] = binaries.directories, **how: Any) -> Mcm:
        return stack.enter_context(_mcm(kubeconfig, programs=programs, port=hold_port(), at_end=show, **how))

    def show(found: Mcm) -> None:
        _show_logs(found, item=request.node)

    with contextlib.ExitStack() as stack:
        yield make


@pytest.fixture
def mcm(api_server: Any, mcm_of: Callable[[Path], Mcm]) -> Mcm:
    """mcm for the management cluster, with its production identity and rights. The test starts it."""
    return mcm_of(api_server.mcm_kubeconfig)


@pytest.fixture(scope="module")
def started_mcm(api_server: Any, binaries: Binaries, request: pytest.FixtureRequest) -> Iterator[Mcm]:
    """Start mcm once for a module, with short waits and with the flags in the module's `MCM_FLAGS`."""
    with socket.socket() as reservation:
        # `hold_port` does the same, but only for a single test.
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind(("127.0.0.1", 0))
        port = reservation.getsockname()[1]
        with _mcm(api_server.mcm_kubeconfig, programs=binaries.directories, port=port, quick=True) as mcm:
            mcm.start(*getattr(request.module, "MCM_FLAGS", ()))
            yield mcm


@pytest.fixture
async def shared_mcm(started_mcm: Mcm, request: pytest.FixtureRequest, eventually: Eventually) -> AsyncIterator[Mcm]:
    """Lend the mcm of the module to a test. Afterwards, wait until its instances, directories and clusters are gone.

    Request this fixture before `fleet`, so that the registrations are deleted first. Tests that end mcm or need other
    flags use `mcm` in a separate module: two mcm at once would both serve each registration.
    """
    yield started_mcm
    try:
        await eventually(lambda: not started_mcm.instances() and not started_mcm.directories())
        await eventually(lambda: asyncio.to_thread(started_mcm.clusters), lambda found: not found)
    finally:
        _show_logs(started_mcm, item=request.node)


@contextlib.contextmanager
def _mcm(
    kubeconfig: Path,
    *,
    programs: tuple[Path, ...],
    port: int,
    at_end: Callable[[Mcm], None] = lambda _: None,
    **how: Any,
) -> Iterator[Mcm]:
    directory = Path(tempfile.mkdtemp(prefix="kplane-test-"))
    mcm = Mcm(directory, kubeconfig=kubeconfig, programs=programs, port=port, **how)
    try:
        yield mcm
        if mcm.process is not None and mcm.process.poll() is None:
            assert mcm.end() == 0, mcm.log.read_text()
        assert not mcm.instances()
    finally:
        at_end(mcm)
        if mcm.process is not None and mcm.process.poll() is None:
            mcm.process.kill()
            mcm.process.wait()
        for pid in mcm.instances():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(directory, ignore_errors=True)


def _show_logs(mcm: Mcm, *, item: pytest.Item) -> None:
    for log in (mcm.log, *sorted(mcm.state.rglob("log"))):
        if log.is_file():
            item.add_report_section("teardown", str(log), log.read_text()[-20_000:])


@pytest.fixture
def state(mcm: Any, eventually: Eventually) -> Callable[..., Awaitable[dict[str, Any]]]:
    """`await state(name, "Ready")` waits until mcm reports this state of a cluster, and returns its summary."""

    async def wait(name: str, wanted: str, accept: Callable[[dict[str, Any]], Any] = bool) -> dict[str, Any]:
        def told() -> Any:
            return mcm.clusters().get(name, {})

        summary: dict[str, Any] = await eventually(
            lambda: asyncio.to_thread(told),
            lambda found: found.get("state") == wanted and accept(found),
        )
        return summary

    return wait


def samples(mcm: Mcm) -> Samples:
    """Return sample values by metric name and cluster, then by code or queue. Each metric has one TYPE line."""
    series: Samples = {}
    text = mcm.get("/metrics")[1]
    described = re.findall(r"^# TYPE (\S+)", text, flags=re.MULTILINE)
    assert len(set(described)) == len(described)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = sample.labels
            values = series.setdefault((sample.name, labels.get("cluster", "")), {})
            values[labels.get("code") or labels.get("name") or ""] = sample.value
    return series
