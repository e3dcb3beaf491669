"""Selection of registrations by label, and of the program by the version of the API server."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kplane.api import KubernetesVersion
from kplane.binaries.programs import Binaries
from kplane.provider import Client
from kplane.provider.client.resources import NAMESPACES
from kplane.provider.providers.kplane import REGISTRATIONS

from .control_planes import works

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("mcm"), pytest.mark.timeout(300)]

Eventually = Callable[..., Any]
Fleet = Any
PROGRAM = "kube-controller-manager"
_TURNED_AWAY = 5
"""Number of refused connections to wait for while an API server is away."""


class Program(NamedTuple):
    path: Path
    version: str


@pytest.fixture(scope="session")
def newer(binaries: Binaries) -> Program:
    """The real program."""
    path = binaries.path(PROGRAM)
    output = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    return Program(path, output.split()[-1])


@pytest.fixture
def older(newer: Program, tmp_path: Path) -> Program:
    """The real program behind a script that reports the previous minor version."""
    version = KubernetesVersion.parse(newer.version)
    assert version is not None
    release = f"v{version.major}.{version.minor - 1}.9"
    path = tmp_path / "older" / PROGRAM
    path.parent.mkdir()
    path.write_text(
        f'#!/bin/bash\n[ "$1" = --version ] && echo "Kubernetes {release}" && exit\nexec -a "$0" "{newer.path}" "$@"\n'
    )
    path.chmod(0o700)
    return Program(path, release)


@pytest.fixture
def mcm(mcm_of: Any, api_server: Any, newer: Program, older: Program) -> Any:
    """mcm with programs of two versions, not started yet."""
    return mcm_of(api_server.mcm_kubeconfig, programs=(older.path.parent, newer.path.parent), quick=True)


async def label(fleet: Fleet, stem: str, tier: str | None) -> None:
    await fleet.client.patch(REGISTRATIONS, fleet.name(stem), {"metadata": {"labels": {"tier": tier}}})


async def report_version(fleet: Fleet, stem: str, version: str) -> None:
    """Write the version of the API server to the status, as the operator does."""
    await fleet.client.patch(REGISTRATIONS, fleet.name(stem), {"status": {"version": version}}, subresource="status")


async def test_labelled_registrations_run_the_version_of_their_api_server(
    mcm: Any,
    older: Program,
    newer: Program,
    fleet: Fleet,
    tenants: Any,
    one: Client,
    two: Client,
    state: Any,
    gate_to: Any,
    eventually: Eventually,
) -> None:
    tier = fleet.namespace
    async with gate_to(tenants["two"].server) as gate:
        old_name = await fleet.register("old", tenants["one"].controllers_secret(), server=tenants["one"].server)
        new_name = await fleet.register("new", tenants["two"].controllers_secret(), server=gate.url)
        await fleet.register("other", tenants["two"].controllers_secret(), server=tenants["two"].server)
        for stem, program in (("old", older), ("new", newer)):
            await report_version(fleet, stem, program.version)
            await label(fleet, stem, tier)
        mcm.start(f"--cluster-selector=tier={tier}")

        summaries = {name: await state(name, "Ready") for name in (old_name, new_name)}
        assert set(await asyncio.to_thread(mcm.clusters)) == {old_name, new_name}
        pids = {name: summary["pid"] for name, summary in summaries.items()}
        assert set(await asyncio.to_thread(mcm.instances)) == set(pids.values())
        for name, program in ((old_name, older), (new_name, newer)):
            assert (summaries[name]["version"], program_of(pids[name])) == (program.version, str(program.path))
            assert Path(f"/proc/{pids[name]}/exe").samefile(newer.path)
        for client in (one, two):
            await client.delete(NAMESPACES, await works(client, eventually))

        # `old` loses its label while the API server of `new` is away for a short time.
        gate.shut = True
        gate.cut()
        await label(fleet, "old", None)
        ended_status = ("False", "Ended", "")
        await eventually(lambda: fleet.told("old"), lambda told: told == ended_status)
        await eventually(lambda: asyncio.to_thread(mcm.instances), lambda pids_now: pids_now == [pids[new_name]])
        await eventually(lambda: gate.turned_away >= _TURNED_AWAY)
        gate.shut = False
        await two.delete(NAMESPACES, await works(two, eventually))
        after = await state(new_name, "Ready")
        assert (after["pid"], after["restarts"]) == (pids[new_name], summaries[new_name]["restarts"])
        assert set(await asyncio.to_thread(mcm.clusters)) == {new_name}


def program_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().partition("\0")[0]
