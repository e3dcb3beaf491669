"""When an address has to be forwarded, and what is told if that fails."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kplane.cli import port_forward
from kplane.cli.errors import CliError
from kplane.cli.kubeconfigs import Management
from kplane.cli.port_forward import forwarded, is_inside
from kplane.cli.tenants import reached


def document(server: str) -> dict[str, Any]:
    return {"clusters": [{"name": "kplane-acme", "cluster": {"server": server}}]}


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ("https://kube-apiserver.kplane-cp-acme.svc:6443", True),
        ("https://kplane-gateway.kplane-system.svc/clusters/acme/control-plane", True),
        ("https://acme.example.org:6443", False),
        ("https://svc.example.org/clusters/acme/control-plane", False),
        ("https://127.0.0.1:6443", False),
        ("https://[::1]:6443", False),
    ],
)
def test_services_alone_are_inside(server: str, expected: bool) -> None:
    assert is_inside(document(server)) is expected


class Kubectl:
    """A program in the place of kubectl. It notes its process, says something, floods its output, and stays."""

    def __init__(self, directory: Path, *, says: str) -> None:
        self.program = directory / "kubectl"
        self.pid_file, self.flooded = directory / "pid", directory / "flooded"
        self.program.write_text(
            f"#!/bin/sh\necho $$ > {self.pid_file}.new && mv {self.pid_file}.new {self.pid_file}\n"
            f"{says}\nyes | head -n 200000\ntouch {self.flooded}\nexec sleep 300\n"
        )
        self.program.chmod(0o755)

    @property
    def runs(self) -> bool:
        """Whether its process is there, and has not ended."""
        try:
            stat = Path(f"/proc/{self.pid_file.read_text().strip()}/stat").read_text()
        except FileNotFoundError:
            return False
        return stat.rpartition(")")[2].split()[0] != "Z"


def wait_for(what: Callable[[], bool], *, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


LISTENS = "echo 'Forwarding from 127.0.0.1:4711 -> 6443'"
INSIDE = "https://kube-apiserver.kplane-cp-acme.svc:6443"


def use(kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_forward, "resolve", lambda **_: SimpleNamespace(path=lambda _: kubectl.program))


def test_kubectl_runs_as_long_as_it_is_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(kubectl := Kubectl(tmp_path, says=LISTENS), monkeypatch)
    with forwarded(document(INSIDE), to=Management()) as found:
        assert found["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:4711"
        # What it says is read, so that it never waits for a reader.
        wait_for(kubectl.flooded.exists)
        assert kubectl.runs
    assert not kubectl.runs


@pytest.mark.parametrize("how", [signal.SIGHUP, signal.SIGTERM, signal.SIGKILL])
def test_kubectl_ends_with_a_command_that_is_killed(tmp_path: Path, how: signal.Signals) -> None:
    kubectl = Kubectl(tmp_path, says=LISTENS)
    script = (
        "import pathlib, signal, sys, time\n"
        # Where these tests run under nohup, a child would ignore it too.
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        "from types import SimpleNamespace\n"
        "from kplane.cli import port_forward\n"
        "from kplane.cli.kubeconfigs import Management\n"
        "found = SimpleNamespace(path=lambda _: pathlib.Path(sys.argv[1]))\n"
        "port_forward.resolve = lambda **_: found\n"
        f"with port_forward.forwarded({document(INSIDE)!r}, to=Management()):\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(300)\n"
    )
    command = [sys.executable, "-c", script, str(kubectl.program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert kubectl.runs
        process.send_signal(how)
        try:
            process.wait(20)
        finally:
            process.kill()
    wait_for(lambda: not kubectl.runs)


def test_kubectl_has_to_listen_in_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(kubectl := Kubectl(tmp_path, says="sleep 300"), monkeypatch)
    monkeypatch.setattr(port_forward, "_START_SECONDS", 1.0)
    with pytest.raises(CliError, match="within 1 s"), forwarded(document(INSIDE), to=Management()):
        pass
    assert not kubectl.runs


async def test_a_loop_goes_on_while_kubectl_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(kubectl := Kubectl(tmp_path, says=f"sleep 1; {LISTENS}"), monkeypatch)

    async def ready(_: str, **__: Any) -> str:
        return json.dumps(
            {
                **document(INSIDE),
                "users": [{"name": "acme", "user": {"token": "t"}}],
                "contexts": [{"name": "acme", "context": {"cluster": "kplane-acme", "user": "acme"}}],
                "current-context": "acme",
            }
        )

    control_planes: Any = SimpleNamespace(ensure_awake=ready, restored_kubeconfig=ready)
    reaching = reached(control_planes, "acme", internal=False, context="management")
    entering = asyncio.ensure_future(reaching.__aenter__())
    turns = 0
    while not entering.done():
        await asyncio.sleep(0.02)
        turns += 1
    assert turns > 10
    assert (await entering).config.server == "https://127.0.0.1:4711"
    await reaching.__aexit__(None, None, None)
    assert not kubectl.runs
    # It also ends if it is waited for no longer.
    entering = asyncio.ensure_future(reached(control_planes, "acme", internal=False, context="m").__aenter__())
    await asyncio.sleep(0.5)
    entering.cancel()
    await asyncio.wait({entering})
    assert entering.cancelled()
    assert not kubectl.runs


@pytest.mark.integration
def test_what_kubectl_cannot_forward_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    address = document("https://kube-apiserver.kplane-cp-acme.svc:6443")
    with (
        pytest.raises(CliError, match="failed to forward a port to kube-apiserver"),
        forwarded(address, to=Management("nosuch")),
    ):
        pass
    assert "nosuch" in capfd.readouterr().err
