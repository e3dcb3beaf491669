"""Script that `helm test` runs on a cluster, against servers of the test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy" / "chart" / "kplane" / "files" / "test" / "check.py"
KINDS = sorted(path.stem.partition("_")[2] for path in (ROOT / "crds").glob("*.yaml"))


KERNEL = """\
import ctypes, os
class Kernel:
    left = {instances}
    def __init__(self, name): pass
    def inotify_init1(self, flags):
        Kernel.left -= 1
        return os.open(os.devnull, os.O_RDONLY) if Kernel.left >= 0 else -1
ctypes.CDLL = Kernel
"""
"""Fake kernel with a fixed number of inotify instances, independent of other programs."""


class Servers:
    """HTTP server that acts as operator, mcm and API server, each with its own path prefix."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, str]] = {
            "/operator/readyz": (200, "ok"),
            "/mcm/readyz": (200, "ok"),
            "/api/apis/controlplane.kplane.dev/v1alpha1": (200, resources(KINDS)),
        }
        self.tokens: list[str | None] = []

    def start(self) -> ThreadingHTTPServer:
        servers = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                servers.tokens.append(self.headers["Authorization"])
                status, text = servers.answers[self.path]
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        return server


def resources(names: list[str]) -> str:
    return json.dumps({"resources": [{"name": name} for name in names]})


@pytest.fixture
def servers() -> Servers:
    return Servers()


@pytest.fixture
def check(servers: Servers, tmp_path: Path) -> Iterator[Any]:
    """Return a function that runs the script as the pod does, without retries, with `instances` of inotify."""
    (tmp_path / "token").write_text("secret\n")
    server = servers.start()
    url = f"http://127.0.0.1:{server.server_port}"
    environment = {
        **os.environ,
        "no_proxy": "*",
        "OPERATOR": f"{url}/operator",
        "MCM": f"{url}/mcm",
        "API_SERVER": f"{url}/api",
        "CREDENTIALS": str(tmp_path),
        "SECONDS_AT_MOST": "0",
        "NODE": "worker-1",
    }

    def run(instances: int = 128, **paths: str) -> subprocess.CompletedProcess[str]:
        added = {name: f"{url}{path}" for name, path in paths.items()}
        return subprocess.run(
            [sys.executable, "-c", KERNEL.format(instances=instances) + SCRIPT.read_text()],
            env={**environment, **added},
            capture_output=True,
            text=True,
            check=False,
        )

    yield run
    server.shutdown()
    server.server_close()


def test_check_passes_if_all_servers_are_ready(servers: Servers, check: Any) -> None:
    process = check()
    assert (process.returncode, process.stderr) == (0, "")
    assert [line.partition(":")[0] for line in process.stdout.splitlines()] == ["ok"] * 4
    # Only the API server gets the token.
    assert servers.tokens == [None, None, "Bearer secret"]


@pytest.mark.parametrize(
    ("path", "answer", "says"),
    [
        ("/operator/readyz", (503, "[-]shared-etcd failed"), "FAILED: the operator is ready: 503 Service Unavailable"),
        ("/mcm/readyz", (503, "no Lease"), "FAILED: mcm is ready: 503 Service Unavailable: no Lease"),
        (
            "/api/apis/controlplane.kplane.dev/v1alpha1",
            (200, resources(KINDS[1:])),
            "FAILED: the API server serves the kinds of kplane: the API server does not serve controlplaneclasses",
        ),
        ("/api/apis/controlplane.kplane.dev/v1alpha1", (404, "none"), "404 Not Found: none"),
    ],
)
def test_check_fails_and_names_the_failing_server(
    servers: Servers, check: Any, path: str, answer: tuple[int, str], says: str
) -> None:
    servers.answers[path] = answer
    process = check()
    assert process.returncode == 1
    assert says in process.stdout
    assert process.stdout.count("ok: ") == 3


def test_check_fails_if_the_gateway_is_not_ready(servers: Servers, check: Any) -> None:
    servers.answers["/gateway/readyz"] = (503, "user 65532 has 125 of 128 inotify instances in use")
    process = check(GATEWAY="/gateway")
    assert process.returncode == 1
    assert "FAILED: the gateway is ready: 503 Service Unavailable: user 65532 has 125 of 128 inotify" in process.stdout


def test_check_fails_if_node_lacks_inotify_instances(check: Any) -> None:
    process = check(instances=4)
    assert process.returncode == 1
    assert "inotify instances in use (fs.inotify.max_user_instances), and an API server takes 7" in process.stdout
    assert "raise the limit on node worker-1: sysctl -w fs.inotify.max_user_instances=8192" in process.stdout
