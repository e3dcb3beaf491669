"""Instances as in mcm, whose program is a script that only waits."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kplane.mcm.describe.controllers import component_name
from kplane.mcm.describe.flags import Flags
from kplane.mcm.errors import RegistrationWithdrawn
from kplane.mcm.fleet import Instances
from kplane.mcm.instance.turns import StartBudget
from kplane.mcm.reasons import Reason
from kplane.mcm.serving.metrics import Metrics
from kplane.mcm.serving.overview import Overview
from kplane.provider import Cluster, ClusterConfig
from kplane.provider.fleet.clusters import Clusters
from kplane.workloads import ProcessRuntime

PYTHON = Flags((f"--python={sys.prefix}", f"--base={sys.base_prefix}"))
"""Flags with the paths of Python. An instance may use files that its flags name, so its program may be Python."""


def cluster(name: str, *, server: str = "https://127.0.0.1:1", token: str = "t", **more: Any) -> Cluster:
    return Cluster(name, config=ClusterConfig(server=server, token=token), **more)


class Heard:
    """A fake observer that records all reports."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.refuses = False

    async def announce(self, cluster: Cluster, *, version: str | None = None) -> None:
        self.told.append(("announced", cluster.config.server))
        if self.refuses:
            raise RegistrationWithdrawn("not wanted any more")

    async def confirm(self, cluster: Cluster) -> None: ...

    def update(self, name: str, reason: Reason, *, message: str = "") -> None:
        if self.told[-1][0] != reason:
            self.told.append((reason, ""))

    def report_failure(self, cluster: Cluster, message: str) -> None:
        self.told.append(("failed", message))

    async def end(self, name: str) -> None:
        self.told.append(("ended", ""))


class World:
    """Clusters, instances and their runtime, put together as in mcm."""

    def __init__(self, directory: Path, runtime: ProcessRuntime) -> None:
        self.directory = directory
        self.runtime = runtime
        self.observer = Heard()
        self.instances = Instances(runtime, observer=self.observer, budget=StartBudget(longest_seconds=0.05))
        self.clusters = Clusters(awares=[self.instances], retry_initial_seconds=0.1)
        self.overview = Overview(self.clusters, instances=self.instances)
        self.metrics = Metrics(self.overview)

    def pid(self, name: str) -> int | None:
        return next((summary.pid for summary in self.overview.summaries() if summary.name == name), None)

    def file(self, name: str, file: str) -> Path:
        return self.directory / "state" / component_name(name) / "files" / file


@pytest.fixture
async def world(runtime: ProcessRuntime, tmp_path: Path) -> AsyncIterator[World]:
    program(tmp_path)
    world = World(tmp_path, runtime)
    try:
        yield world
    finally:
        await world.clusters.aclose()


def program(directory: Path, script: str = "exec sleep 1000", *, name: str = "kube-controller-manager") -> None:
    """Write a script in place of a program. The default script only waits."""
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
