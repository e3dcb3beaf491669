"""Measures memory and processor time of processes, and counts the requests to an API server, from outside."""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import aiohttp

from kplane.provider import ClusterConfig
from kplane.provider.client.tls import ssl_context

__all__ = ["Memory", "PeakMemory", "cpu_seconds", "memory_of", "passes_by_controller", "requests_by_kind"]

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_SAMPLE_SECONDS: Final = 0.5
_REQUESTS: Final = re.compile(r"^apiserver_request_total\{([^}]*)\} (\S+)", re.MULTILINE)
_PASSES: Final = re.compile(
    r'^controller_runtime_reconcile_time_seconds_count\{controller="([^"]*)"\} (\S+)', re.MULTILINE
)
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process and of its awaited children, in all threads."""
    # The name, in parentheses, can have spaces. utime to cstime are fields 14 to 17 (proc(5)).
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15]) / _TICKS


class Memory(NamedTuple):
    """Memory of a process in MiB: its proportional share of the mapped memory, and the anonymous part of this share."""

    pss: float
    anonymous: float


def memory_of(pid: int) -> Memory:
    """Read the memory of a process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    fields = {name: int(value.split()[0]) / 1024 for name, _, value in (line.partition(":") for line in lines)}
    return Memory(fields["Pss"], fields["Pss_Anon"])


@dataclass(slots=True)
class PeakMemory:
    """Finds the peak memory of a process in MiB: resident (by the kernel), and PSS (sampled)."""

    pid: int
    pss: float = 0.0

    @property
    def rss(self) -> float:
        """High-water mark of the kernel."""
        return self._field("status", "VmHWM")

    async def watch(self) -> None:
        """Sample until cancelled."""
        while True:
            self.pss = max(self.pss, self._field("smaps_rollup", "Pss"))
            await asyncio.sleep(_SAMPLE_SECONDS)

    def _field(self, file: str, name: str) -> float:
        for line in Path(f"/proc/{self.pid}/{file}").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) / 1024
        raise LookupError(f"/proc/{self.pid}/{file} has no {name}")


async def requests_by_kind(config: ClusterConfig) -> Counter[str]:
    """Count the requests that an API server has answered since its start, by `VERB resource/subresource`.

    Reads the API server's own metrics. The metrics omit /version, and count a watch at its end.
    """
    connector = aiohttp.TCPConnector(ssl=ssl_context(config))
    headers = {"Authorization": f"Bearer {config.token}"} if config.token is not None else {}
    async with (
        aiohttp.ClientSession(connector=connector, headers=headers) as session,
        session.get(f"{config.server}/metrics") as answer,
    ):
        answer.raise_for_status()
        text = await answer.text()
    counted: Counter[str] = Counter()
    for labels, value in _REQUESTS.findall(text):
        fields = dict(_LABEL.findall(labels))
        resource = "/".join(filter(None, (fields.get("resource"), fields.get("subresource"))))
        counted[f"{fields.get('verb', '')} {resource}"] += int(float(value))
    return counted


async def passes_by_controller(url: str) -> Counter[str]:
    """Count the reconciles of an operator since its start. `url` is the URL of its /healthz without the path."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as answer:
        answer.raise_for_status()
        text = await answer.text()
    return Counter({controller: int(float(value)) for controller, value in _PASSES.findall(text)})
