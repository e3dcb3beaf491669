"""Measures the programs of an embedded management cluster by part: memory, processor time, disk."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from benchmarks.cost import Memory, cpu_seconds, memory_of
from kplane.binaries.programs import resolve
from kplane.embedded import components
from kplane.embedded.daemon import Daemon
from kplane.embedded.handle import Handle
from kplane.workloads import find_processes

__all__ = ["API_SERVERS", "INSTANCES", "SHARED", "Programs", "cluster_with_gateway", "growth", "print_result"]

SHARED: Final = ("etcd", "operator", "mcm", "gateway", "envoy")
"""Parts that serve all control planes. `etcd` is the shared etcd, `gateway` is the controller beside Envoy."""
API_SERVERS: Final = "tenants' API servers"
INSTANCES: Final = "instances of mcm"
_PARTS: Final = {
    components.TENANTS_ETCD: "etcd",
    components.OPERATOR: "operator",
    components.MCM: "mcm",
    components.GATEWAY: "gateway",
    components.ETCD: "management etcd",
    components.API_SERVER: "management API server",
    components.CONTROLLER_MANAGER: "management controllers",
}
_START_SECONDS: Final = 300.0
_MARKER: Final = b"KPLANE_COMPONENT="
_MIB: Final = 1024 * 1024
_BLOCK: Final = 512
"""Bytes of a block in `st_blocks`, on each file system."""
_GONE: Final = (ProcessLookupError, FileNotFoundError)


@dataclass(frozen=True, slots=True)
class Programs:
    """Finds the processes of an embedded cluster, and assigns each to a part."""

    handle: Handle

    def memory(self) -> dict[str, Memory]:
        """Return the memory of each part in MiB."""
        memory: dict[str, Memory] = {}
        for part, pid in self._processes():
            with contextlib.suppress(*_GONE):
                process, total = memory_of(pid), memory.get(part, Memory(0.0, 0.0))
                memory[part] = Memory(total.pss + process.pss, total.anonymous + process.anonymous)
        return memory

    def processor(self) -> dict[str, float]:
        """Return the processor seconds of each part since its start."""
        seconds: dict[str, float] = {}
        for part, pid in self._processes():
            with contextlib.suppress(*_GONE):
                seconds[part] = seconds.get(part, 0.0) + cpu_seconds(pid)
        return seconds

    def numbers(self) -> Counter[str]:
        """Count the processes of each part."""
        return Counter(part for part, _ in self._processes())

    def disk(self) -> dict[str, float]:
        """Return the MiB that the files of each part take on disk."""
        directory = self.handle.directory
        places = {part: directory / "runtime" / name for name, part in _PARTS.items()}
        others = {
            "tenants": self.handle.operator_directory,
            "instances": self.handle.mcm_directory,
            "envoy": directory / "gateway",
        }
        return {part: _allocated(place) / _MIB for part, place in {**places, **others}.items()}

    def _processes(self) -> Iterator[tuple[str, int]]:
        for pid in find_processes(self.handle.directory):
            with contextlib.suppress(*_GONE):
                yield self._part(pid), pid

    def _part(self, pid: int) -> str:
        """Name the part of a process by the directory of its component."""
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        marker = next(
            (variable.removeprefix(_MARKER).decode() for variable in variables if variable.startswith(_MARKER)), ""
        )
        place = Path(marker)
        if place.is_relative_to(self.handle.operator_directory):
            program = Path(f"/proc/{pid}/comm").read_text().strip()
            return API_SERVERS if program == "kube-apiserver" else f"tenants' {program}"
        if place.is_relative_to(self.handle.mcm_directory):
            return INSTANCES
        return _PARTS.get(place.name, place.name)


def growth(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return the growth of each part."""
    return {part: after[part] - before.get(part, 0.0) for part in after}


def _allocated(directory: Path) -> int:
    """Return the bytes that the files below a directory take on disk."""
    total = 0
    for place, _, files in os.walk(directory):
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                total += (Path(place) / file).lstat().st_blocks * _BLOCK
    return total


@contextlib.contextmanager
def cluster_with_gateway() -> Iterator[Programs]:
    """Run an embedded cluster with a gateway in a temporary directory. Both end with the context, and on SIGTERM."""
    signal.signal(signal.SIGTERM, _end)
    with (
        tempfile.TemporaryDirectory(prefix="kplane-benchmark-", ignore_cleanup_errors=True) as directory,
        Daemon(Path(directory), binaries=resolve(), gateway=True) as daemon,
    ):
        yield Programs(daemon.wait_ready(timeout_seconds=_START_SECONDS))


def _end(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)


def print_result(result: Mapping[str, Any]) -> None:
    """Print a result as JSON, with cores and Python version of the machine."""
    machine = {"cores": os.cpu_count(), "python": platform.python_version()}
    json.dump({"machine": machine, **result}, sys.stdout, indent=2)
    sys.stdout.write("\n")
