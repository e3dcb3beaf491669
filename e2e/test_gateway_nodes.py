"""A node that joins through kplane's gateway, and streams to its pods."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from e2e.installation import images
from e2e.kubectl import Object
from e2e.machine import Machine, running_machine
from e2e.nodes import Nodes
from e2e.page_pod import PAGE_PORT, page_pod
from e2e.platform import Platform, condition
from e2e.tenant import Tenant
from e2e.waiting import eventually

pytestmark = pytest.mark.k8s_needs("images")

_SECONDS: Final = 60.0
_POD: Final = "talker"
_NUMBERS: Final = itertools.count(1)
_PROGRAM: Final = f"""
cd /srv && echo served > index.html && python3 -m http.server {PAGE_PORT} 2>/dev/null &
while read -r line; do echo "heard $line"; done
"""
"""Serves a page, and echoes each line of its input."""


@pytest.fixture(scope="module")
def machine(nodes: Nodes, k8s: Any, gateway_platform: Platform) -> Iterator[Machine]:
    """A machine in the network of the nodes."""
    with running_machine(nodes, name=gateway_platform.name("worker")) as running:
        k8s.load_images(images()[1])
        yield running


@pytest.fixture(scope="module")
def tenant(gateway_platform: Platform, machine: Machine) -> Tenant:
    """A control plane with the machine as its node."""
    platform, name = gateway_platform, gateway_platform.name("with-nodes")
    platform.create(
        "ControlPlaneClass",
        name,
        deletionPolicy="Destroy",
        addons=["kubeadm-join"],
        allowedDestinations=[{"cidr": f"{machine.address}/32", "ports": [10250]}],
        auth={"defaultRole": "cluster-admin"},
        controllers={"profile": "Full"},
        defaultServices=["Controllers", "Scheduler"],
        virtual={"start": "Always"},
    )
    platform.create("ControlPlane", name, classRef={"name": name})
    platform.becomes_ready("ControlPlane", name)
    eventually(
        "its add-ons", lambda: condition(platform.get("ControlPlane", name), "AddonsReady").get("status") == "True"
    )
    control_plane = platform.tenant(name)
    machine.join(control_plane)
    control_plane.wait_account("default")
    return control_plane


@pytest.fixture(scope="module")
def pod(tenant: Tenant, machine: Machine) -> str:
    """A pod that the control plane's own scheduler has placed on the node."""
    tenant.kubectl.apply(_pod())
    tenant.kubectl("wait", f"pod/{_POD}", "--for=condition=Ready", "--timeout=120s")
    return _POD


def _pod() -> Object:
    return page_pod(_POD, _PROGRAM, stdin=True)


def test_node_joins_by_gateway_path_of_its_control_plane(tenant: Tenant, machine: Machine) -> None:
    """The kubeconfig of the kubelet has the address of the gateway."""
    (node,) = tenant.kubectl.items("nodes")
    assert node["metadata"]["name"] == machine.name
    server = tenant.kubectl("config", "view", "--minify", "-o=jsonpath={.clusters[0].cluster.server}")
    assert server.endswith(f"/clusters/{tenant.name}/control-plane")
    assert f"server: {server}\n" in machine("cat", "/etc/kubernetes/kubelet.conf")


def test_own_scheduler_of_control_plane_assigns_the_pod(tenant: Tenant, machine: Machine, pod: str) -> None:
    """mcm runs kube-scheduler for the control plane."""
    (event,) = tenant.kubectl.items("events", f"--field-selector=involvedObject.name={pod},reason=Scheduled")
    assert event["reportingComponent"] == "default-scheduler"
    assert f"Successfully assigned default/{pod} to {machine.name}" in event["message"]


@dataclass(frozen=True, slots=True)
class Streams:
    """Runs kubectl commands that stream, by one protocol."""

    tenant: Tenant
    spdy: bool

    def run(self, *args: str, stdin: str = "") -> str:
        """Run a command to its end, and return its output."""
        with self.running(*args) as (process, errors):
            printed, _ = process.communicate(stdin, timeout=_SECONDS)
            assert process.returncode == 0, errors.read_text()
        return printed

    @contextlib.contextmanager
    def running(self, *args: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
        """Run a command within the context. Yields the process and the file of its errors."""
        kubectl, websocket = self.tenant.kubectl, "false" if self.spdy else "true"
        variables = ("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "KUBECTL_PORT_FORWARD_WEBSOCKETS")
        command = [kubectl.program, f"--kubeconfig={kubectl.kubeconfig}", "--v=4", *args]
        with tempfile.TemporaryDirectory() as directory:
            errors = Path(directory, "errors")
            with errors.open("wb") as error_file:
                process = subprocess.Popen(
                    command,
                    env={**os.environ, **dict.fromkeys(variables, websocket)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=error_file,
                    text=True,
                )
            try:
                yield process, errors
                # At this log level, kubectl reports a fallback to SPDY if WebSocket does not work.
                assert "fallback" not in errors.read_text()
            finally:
                process.kill()
                process.communicate()


@pytest.fixture(params=["websocket", "spdy"])
def streams(request: pytest.FixtureRequest, tenant: Tenant) -> Streams:
    """kubectl with each of its streaming protocols."""
    return Streams(tenant, spdy=request.param == "spdy")


def test_exec_streams_stdin_and_stdout(streams: Streams, pod: str) -> None:
    assert streams.run("exec", "-i", pod, "--", "cat", stdin="there and back") == "there and back"


def test_cp_round_trip_preserves_bytes(streams: Streams, pod: str, tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    (tmp_path / "sent").write_bytes(content)
    streams.run("cp", str(tmp_path / "sent"), f"{pod}:/srv/sent")
    streams.run("cp", f"{pod}:/srv/sent", str(tmp_path / "fetched"))
    assert (tmp_path / "fetched").read_bytes() == content


def test_attached_input_is_answered_in_followed_logs(streams: Streams, pod: str) -> None:
    """`attach` sends a line, and `logs --follow` prints the answer of the program."""
    word = f"hello-{next(_NUMBERS)}"
    with streams.running("logs", "--follow", pod) as (following, _):
        assert following.stdout is not None
        with streams.running("attach", "-i", pod) as (attached, _):
            assert attached.stdin is not None
            attached.stdin.write(f"{word}\n")
            attached.stdin.flush()
            assert f"heard {word}\n" in following.stdout


def test_port_forward_carries_several_connections(streams: Streams, pod: str) -> None:
    with streams.running("port-forward", f"pod/{pod}", f":{PAGE_PORT}") as (forwarding, _):
        assert forwarding.stdout is not None
        match = re.search(r"127\.0\.0\.1:(\d+) ", forwarding.stdout.readline())
        assert match is not None
        for _ in range(3):
            with urllib.request.urlopen(f"http://127.0.0.1:{match[1]}/", timeout=_SECONDS) as answer:
                assert answer.read() == b"served\n"
