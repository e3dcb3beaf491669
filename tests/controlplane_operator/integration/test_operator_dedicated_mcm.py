"""The operator and the dedicated mcm of a registration. The mcm of these tests only waits."""

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
    """Program that answers its probe, fails if file `fails` exists beside it, and runs on while `slow` exists."""
    path = tmp_path / "mcm"
    path.write_text(_PROGRAM.format(python=sys.executable))
    path.chmod(0o700)
    return McmProgram(program=str(path), directories=())


async def registered(field: Field, name: str, *, mode: str) -> Path:
    """Create a registration with its control plane, and return the directory of its mcm."""
    # Any API server will do, such as that of the management cluster: the program never connects to it.
    door = await door_to(field, name, config=ClusterConfig.load(field.handle.admin_kubeconfig))
    await field.create("ControlPlaneEndpoint", name, **door)
    await field.create("ControlPlane", name, mode="Dedicated", endpointRef={"name": name})
    registration = await field.create(KIND, name, controlPlaneRef={"name": name}, mode=mode)
    return field.state / mcm_name(name, uid=registration["metadata"]["uid"])


async def said(field: Field, name: str) -> tuple[str, str]:
    conditions = (await field.get(KIND, name))["status"]["conditions"]
    condition = next((item for item in conditions if item["type"] == "DedicatedReady"), {})
    return condition.get("reason", ""), condition.get("message", "")


async def has_instance(field: Field, name: str, instance: dict[str, Any] | None) -> None:
    await field.client.patch(KINDS[KIND], name, {"status": {"instance": instance}}, subresource="status")


async def nothing_is_left(field: Field, name: str, directory: Path) -> None:
    label = f"controlplane.kplane.dev/registration={name}"
    await field.eventually(directory.exists, lambda found: not found)
    await field.eventually(
        lambda: field.client.list(CLUSTER_ROLES, label_selector=label), lambda listed: listed.items == []
    )


async def test_dedicated_registration_without_mcm_program_names_the_remedy(own_field: Field) -> None:
    field = own_field
    directory = await registered(field, "helpless", mode="Dedicated")
    registration = await field.becomes(KIND, "helpless", "DedicatedNotAvailable")
    assert (registration["status"]["ready"], registration["status"]["mode"]) == (False, "Dedicated")
    message = next(item["message"] for item in registration["status"]["conditions"] if item["type"] == "Ready")
    assert "--mcm-program" in message
    assert "set spec.mode to Shared" in message
    assert not directory.exists()
    await field.client.patch(KINDS[KIND], "helpless", {"spec": {"mode": "Shared"}})
    await field.becomes(KIND, "helpless", "Resolved")


async def test_instance_in_status_ends_with_its_dedicated_mcm(mortal_field: Any, program: McmProgram) -> None:
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
    # The next operator keeps the running mcm, and starts it again after it died.
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
        # The dead mcm cannot report the end of its instance, and this operator has no program to run it.
        await field.eventually(lambda: said(field, name), lambda told: told == ("", ""))
        status = (await field.get(KIND, name))["status"]
        assert "instance" not in status
        assert await field.reason(KIND, name, "Running") == "Ended"
        await nothing_is_left(field, name, directory)


async def test_recreated_registration_waits_for_end_of_former_mcm(
    mortal_field: Any, program: McmProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The end of the former mcm must trigger the reconciliation, not the retry interval.
    monkeypatch.setattr(control_plane_registration, "_RETRY_SECONDS", 600.0)
    field, operator = mortal_field
    name = "again"
    async with operator(dedicated_mcm=program):
        directory = await registered(field, name, mode="Dedicated")
        # From then on the mcm has a signal handler. Without a handler, the process would end at once.
        await field.eventually(lambda: said(field, name), lambda told: told[0] == "McmRunning", timeout=120.0)
    slow = Path(program.program).parent / "slow"
    slow.touch()
    # No operator runs during this change.
    await field.client.delete(KINDS[KIND], name)
    await field.create(KIND, name, controlPlaneRef={"name": name}, mode="Shared")
    async with operator(dedicated_mcm=program):
        await field.becomes(KIND, name, "McmEnding")
        slow.unlink()
        await field.becomes(KIND, name, "Resolved")
        assert not find_processes(directory)
        await nothing_is_left(field, name, directory)
