"""What the operator does about the mcm of one registration, whatever that does: here it only waits."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from kplane.components.mcm import McmProgram
from kplane.components.names import mcm_name
from kplane.controlplane_operator.registrations import reconciler as control_plane_registration
from kplane.provider import ClusterConfig
from kplane.provider.client.resources import CLUSTER_ROLES
from kplane.workloads import find_processes

from .conftest import KINDS, Field, door_to

pytestmark = pytest.mark.integration

KIND = "ControlPlaneRegistration"


_PROGRAM = """#!{python}
import http.server, os, pathlib, signal, sys, time
here = pathlib.Path(__file__).parent
if (here / "fails").exists():
    sys.exit("it has no mind to")
def end(*_):
    while (here / "slow").exists():
        time.sleep(0.05)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
listen = next(each for each in sys.argv if each.startswith("--listen="))
host, port = listen.partition("=")[2].split(":")
http.server.HTTPServer((host, int(port)), Handler).serve_forever()
"""


@pytest.fixture
def program(tmp_path: Path) -> McmProgram:
    """It answers its probe; a file beside it has it fail (`fails`), or not end as long as it is there (`slow`)."""
    made = tmp_path / "mcm"
    made.write_text(_PROGRAM.format(python=sys.executable))
    made.chmod(0o700)
    return McmProgram(program=str(made), directories=())


async def registered(field: Field, name: str, *, mode: str) -> Path:
    """A registration, ready or told why not; returns where its mcm has its files."""
    # The API server of the management cluster is as good as any: the program here never asks for it.
    door = await door_to(field, name, config=ClusterConfig.load(field.handle.admin_kubeconfig))
    await field.create("ControlPlaneEndpoint", name, **door)
    await field.create("ControlPlane", name, mode="Dedicated", endpointRef={"name": name})
    made = await field.create(KIND, name, controlPlaneRef={"name": name}, mode=mode)
    return field.state / mcm_name(name, uid=made["metadata"]["uid"])


async def said(field: Field, name: str) -> tuple[str, str]:
    conditions = (await field.get(KIND, name))["status"]["conditions"]
    found = next((item for item in conditions if item["type"] == "DedicatedReady"), {})
    return found.get("reason", ""), found.get("message", "")


async def has_instance(field: Field, name: str, instance: dict[str, Any] | None) -> None:
    await field.client.patch(KINDS[KIND], name, {"status": {"instance": instance}}, subresource="status")


async def nothing_is_left(field: Field, name: str, directory: Path) -> None:
    label = f"controlplane.kplane.dev/registration={name}"
    await field.eventually(directory.exists, lambda found: not found)
    await field.eventually(
        lambda: field.client.list(CLUSTER_ROLES, label_selector=label), lambda listed: listed.items == []
    )


async def test_without_a_program_it_is_served_by_nobody_and_says_what_to_do(own_field: Field) -> None:
    field = own_field
    directory = await registered(field, "helpless", mode="Dedicated")
    found = await field.becomes(KIND, "helpless", "DedicatedNotAvailable")
    assert (found["status"]["ready"], found["status"]["mode"]) == (False, "Dedicated")
    told = next(item["message"] for item in found["status"]["conditions"] if item["type"] == "Ready")
    assert "--mcm-program" in told
    assert "set spec.mode to Shared" in told
    assert not directory.exists()
    await field.client.patch(KINDS[KIND], "helpless", {"spec": {"mode": "Shared"}})
    await field.becomes(KIND, "helpless", "Resolved")


async def test_the_turn_of_an_mcm_ends_with_it_whatever_it_said(mortal_field: Any, program: McmProgram) -> None:
    field, operator = mortal_field
    name = "lasting"
    async with operator(dedicated_mcm=program):
        directory = await registered(field, name, mode="Dedicated")
        await field.eventually(lambda: said(field, name), lambda told: told[0] == "McmRunning", timeout=120.0)
        uid = (await field.get(KIND, name))["status"]["controlPlaneUID"]
        await has_instance(field, name, {"controlPlaneUID": uid})
        await field.eventually(lambda: said(field, name), lambda told: told[0] == "WaitingForShared")
        await has_instance(field, name, {"controlPlaneUID": uid, "mode": "Dedicated"})
        await field.eventually(lambda: said(field, name), lambda told: told[0] == "McmRunning")
    # Also for the next operator, which starts one that died meanwhile.
    (Path(program.program).parent / "fails").touch()
    [pid] = find_processes(directory)
    async with operator(dedicated_mcm=program):
        await field.eventually(lambda: said(field, name), lambda told: told[0] == "McmRunning")
        assert find_processes(directory) == [pid]
        os.kill(pid, signal.SIGKILL)
        await field.eventually(
            lambda: said(field, name), lambda told: told[0] == "McmFailed" and "it has no mind to" in told[1]
        )
    async with operator():
        # It cannot say any more that its instance has ended, and this operator does not even know how to run it.
        await field.eventually(lambda: said(field, name), lambda told: told == ("", ""))
        status = (await field.get(KIND, name))["status"]
        assert "instance" not in status
        assert await field.reason(KIND, name, "Running") == "Ended"
        await nothing_is_left(field, name, directory)


async def test_one_that_is_made_again_waits_for_the_end_of_the_former_mcm(
    mortal_field: Any, program: McmProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It is that end which wakes it, and no try by time.
    monkeypatch.setattr(control_plane_registration, "_RETRY_SECONDS", 600.0)
    field, operator = mortal_field
    name = "again"
    async with operator(dedicated_mcm=program):
        directory = await registered(field, name, mode="Dedicated")
        # From then on it knows what to do when it is asked to end; a process that has just begun would end at once.
        await field.eventually(lambda: said(field, name), lambda told: told[0] == "McmRunning", timeout=120.0)
    slow = Path(program.program).parent / "slow"
    slow.touch()
    # While nobody looks.
    await field.client.delete(KINDS[KIND], name)
    await field.create(KIND, name, controlPlaneRef={"name": name}, mode="Shared")
    async with operator(dedicated_mcm=program):
        await field.becomes(KIND, name, "McmEnding")
        slow.unlink()
        await field.becomes(KIND, name, "Resolved")
        assert not find_processes(directory)
        await nothing_is_left(field, name, directory)
