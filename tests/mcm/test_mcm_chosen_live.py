"""Which registrations have an instance, and of which program it is."""

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
"""So many connections are refused while an API server is away."""


class Program(NamedTuple):
    path: Path
    version: str


@pytest.fixture(scope="session")
def newer(binaries: Binaries) -> Program:
    """The real one."""
    path = binaries.path(PROGRAM)
    told = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    return Program(path, told.split()[-1])


@pytest.fixture
def older(newer: Program, tmp_path: Path) -> Program:
    """One that says it is of the minor version before, and is the real one."""
    version = KubernetesVersion.parse(newer.version)
    assert version is not None
    said = f"v{version.major}.{version.minor - 1}.9"
    path = tmp_path / "older" / PROGRAM
    path.parent.mkdir()
    path.write_text(
        f'#!/bin/bash\n[ "$1" = --version ] && echo "Kubernetes {said}" && exit\nexec -a "$0" "{newer.path}" "$@"\n'
    )
    path.chmod(0o700)
    return Program(path, said)


@pytest.fixture
def mcm(mcm_of: Any, api_server: Any, newer: Program, older: Program) -> Any:
    """mcm with programs of two versions, not started yet."""
    return mcm_of(api_server.mcm_kubeconfig, programs=(older.path.parent, newer.path.parent), quick=True)


async def label(fleet: Fleet, stem: str, tier: str | None) -> None:
    await fleet.client.patch(REGISTRATIONS, fleet.name(stem), {"metadata": {"labels": {"tier": tier}}})


async def report_version(fleet: Fleet, stem: str, version: str) -> None:
    """Write what the operator does of the API server."""
    await fleet.client.patch(REGISTRATIONS, fleet.name(stem), {"status": {"version": version}}, subresource="status")


async def test_those_with_the_label_have_one_of_the_version_of_their_api_server(
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
        old = await fleet.register("old", tenants["one"].controllers_secret(), server=tenants["one"].server)
        new = await fleet.register("new", tenants["two"].controllers_secret(), server=gate.url)
        await fleet.register("other", tenants["two"].controllers_secret(), server=tenants["two"].server)
        for stem, program in (("old", older), ("new", newer)):
            await report_version(fleet, stem, program.version)
            await label(fleet, stem, tier)
        mcm.start(f"--cluster-selector=tier={tier}")

        found = {name: await state(name, "Ready") for name in (old, new)}
        assert set(await asyncio.to_thread(mcm.clusters)) == {old, new}
        pids = {name: each["pid"] for name, each in found.items()}
        assert set(await asyncio.to_thread(mcm.instances)) == set(pids.values())
        for name, program in ((old, older), (new, newer)):
            assert (found[name]["version"], program_of(pids[name])) == (program.version, str(program.path))
            assert Path(f"/proc/{pids[name]}/exe").samefile(newer.path)
        for client in (one, two):
            await client.delete(NAMESPACES, await works(client, eventually))

        # One loses its label, while the API server of the other is away, which does not matter for that long.
        gate.shut = True
        gate.cut()
        await label(fleet, "old", None)
        ended = ("False", "Ended", "")
        await eventually(lambda: fleet.told("old"), lambda told: told == ended)
        await eventually(lambda: asyncio.to_thread(mcm.instances), lambda pids_now: pids_now == [pids[new]])
        await eventually(lambda: gate.turned_away >= _TURNED_AWAY)
        gate.shut = False
        await two.delete(NAMESPACES, await works(two, eventually))
        after = await state(new, "Ready")
        assert (after["pid"], after["restarts"]) == (pids[new], found[new]["restarts"])
        assert set(await asyncio.to_thread(mcm.clusters)) == {new}


def program_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().partition("\0")[0]
