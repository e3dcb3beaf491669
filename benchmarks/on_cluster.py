"""Measures kplane on a cluster that runs pods: `python -m benchmarks.on_cluster --kind-cluster NAME ...`.

Creates a kind cluster, loads the images, installs the chart, and creates and deletes control planes one by one. Then
switches the gateway on, and wakes a control plane many times. Deletes the cluster at the end. Uses kind, docker,
helm and kubectl only, as a user does.

Prints JSON: seconds of each step up to the first Ready tenant, and from create to Ready of each control plane. For each
wake, it prints the seconds from the request to its answer.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.client
import json
import os
import platform
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

from kplane.binaries.programs import resolve

_ROOT: Final = Path(__file__).resolve().parent.parent
_NAMESPACE: Final = "kplane-system"
_DEADLINE_SECONDS: Final = 600
_READY_SECONDS: Final = 120
_GATEWAY_PORT: Final = 30443
_SLEEP_REQUESTED: Final = "controlplane.kplane.dev/sleep-requested"


class Cluster:
    """Runs kind, helm and kubectl on a kind cluster."""

    def __init__(self, name: str, *, kubeconfig: Path) -> None:
        binaries = resolve(programs=("helm", "kind", "kubectl"))
        self.name = name
        self._kind, self._helm, self._kubectl = (str(binaries.path(program)) for program in ("kind", "helm", "kubectl"))
        self._environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}

    def run(self, *command: str, given: str | None = None) -> str:
        """Run a command. Raises CalledProcessError; the error output goes to standard error."""
        done = subprocess.run(
            command,
            input=given,
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=_DEADLINE_SECONDS,
        )
        return done.stdout

    def create(self, *, image: str | None, config: Path | None) -> None:
        """Create the cluster."""
        options = [*(["--image", image] if image else []), *(["--config", str(config)] if config else [])]
        self.run(self._kind, "create", "cluster", "--quiet", "--name", self.name, *options)

    def delete(self) -> None:
        """Delete the cluster."""
        self.run(self._kind, "delete", "cluster", "--quiet", "--name", self.name)

    def load(self, *images: str) -> None:
        """Load images of the Docker engine into the nodes."""
        self.run(self._kind, "load", "docker-image", "--name", self.name, *images)

    def install(self, *, operator: str, mcm: str, etcd: str) -> None:
        """Install the chart, and wait until all its pods are ready."""
        settings = ["--set", f"etcd.image={etcd},controlPlanes.etcdImage={etcd}"]
        for part, image in (("operator", operator), ("mcm", mcm)):
            repository, _, tag = image.rpartition(":")
            settings += ["--set", f"{part}.image.repository={repository},{part}.image.tag={tag}"]
        chart = str(_ROOT / "deploy" / "chart" / "kplane")
        options = ["--namespace", _NAMESPACE, "--create-namespace", "--wait", "--timeout", f"{_READY_SECONDS}s"]
        self.run(self._helm, "install", "kplane", chart, *options, *settings)

    def open_gateway(self, image: str) -> None:
        """Switch the gateway of the chart on, at a port of the node."""
        host = self.kubectl("get", "nodes", "-o=jsonpath={.items[0].status.addresses[?(@.type=='InternalIP')].address}")
        selector = {"app.kubernetes.io/component": "gateway"}
        port = {"port": 443, "targetPort": "https", "nodePort": _GATEWAY_PORT}
        metadata = {"name": "measured-gateway", "namespace": _NAMESPACE}
        spec = {"type": "NodePort", "selector": selector, "ports": [port]}
        self.apply({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
        self.kubectl("create", "namespace", "kplane-gateway")
        repository, _, tag = image.rpartition(":")
        settings = f"gateway.enabled=true,gateway.url=https://{host}:{_GATEWAY_PORT}"
        settings += f",gateway.image.repository={repository},gateway.image.tag={tag}"
        chart = str(_ROOT / "deploy" / "chart" / "kplane")
        options = ["--namespace", _NAMESPACE, "--wait", "--timeout", f"{_READY_SECONDS}s"]
        self.run(self._helm, "upgrade", "kplane", chart, *options, "--reuse-values", "--set", settings)

    def apply(self, *objects: dict[str, Any]) -> None:
        """Create objects."""
        self.kubectl(
            "apply", "--filename", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        )

    def kubectl(self, *arguments: str, given: str | None = None) -> str:
        """Run kubectl."""
        return self.run(self._kubectl, *arguments, given=given)


def _control_plane(name: str, *, mode: str) -> dict[str, Any]:
    spec = {"classRef": {"name": "measured"}, "mode": mode, "deletionPolicy": "Destroy"}
    return _object("ControlPlane", name, spec=spec)


def _object(kind: str, name: str, *, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "controlplane.kplane.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    }


def _create_and_delete(cluster: Cluster, name: str, *, mode: str) -> float:
    """Return the seconds from create to Ready, and delete the control plane to free the node for the next."""
    seconds = _create_and_wait(cluster, name, mode=mode)
    cluster.kubectl("delete", f"controlplane/{name}", f"--timeout={_READY_SECONDS}s")
    return seconds


def _create_and_wait(cluster: Cluster, name: str, *, mode: str) -> float:
    began = time.monotonic()
    cluster.apply(_control_plane(name, mode=mode))
    cluster.kubectl("wait", f"controlplane/{name}", "--for=condition=Ready", f"--timeout={_READY_SECONDS}s")
    return time.monotonic() - began


class Client:
    """Sends requests to a control plane with its published kubeconfig, each on a new connection."""

    def __init__(self, kubeconfig: str) -> None:
        config = yaml.safe_load(kubeconfig)
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        ca_data = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._server, self._token = urlsplit(cluster["server"]), user["token"]
        self._trust = ssl.create_default_context(cadata=ca_data)

    def get(self, path: str, *, anonymous: bool = False) -> int:
        """Send a GET. Returns the status code of the response."""
        address = self._server.hostname or "", self._server.port or 443
        headers = {} if anonymous else {"Authorization": f"Bearer {self._token}"}
        connection = http.client.HTTPSConnection(*address, context=self._trust, timeout=_READY_SECONDS)
        with contextlib.closing(connection):
            connection.request("GET", f"{self._server.path}{path}", headers=headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status


def _wakes(cluster: Cluster, count: int) -> dict[str, Any]:
    """Wake a control plane by a request, `count` times. Returns the seconds until the response."""
    name = "sleeper"
    spec = {"classRef": {"name": "measured"}, "deletionPolicy": "Destroy", "virtual": {"start": "OnDemand"}}
    cluster.apply(_object("ControlPlane", name, spec=spec))
    _wait_phase(cluster, name, "Hibernated")
    secret = ("get", "secret", f"controlplane-{name}-kubeconfig", "--namespace", f"kplane-cp-{name}")
    encoded = cluster.kubectl(*secret, "-o=jsonpath={.data.kubeconfig-external}")
    client, seconds = Client(base64.b64decode(encoded).decode()), []
    while _anonymous(client) != 401:  # the gateway has no route to the control plane yet
        time.sleep(0.2)
    for _ in range(count):
        began = time.monotonic()
        status = client.get("/api/v1/namespaces")
        seconds.append(time.monotonic() - began)
        if status != 200:
            raise SystemExit(f"failed to wake {name}: its first answer has status {status}")
        _wait_phase(cluster, name, "Ready")
        annotation = f"{_SLEEP_REQUESTED}={datetime.now(UTC).isoformat()}"
        cluster.kubectl("annotate", f"controlplane/{name}", "--overwrite", annotation)
        _wait_phase(cluster, name, "Hibernated")
    return {**_summary(seconds), "max": round(max(seconds), 2)}


def _anonymous(client: Client) -> int | None:
    with contextlib.suppress(OSError):
        return client.get("/version", anonymous=True)
    return None


def _wait_phase(cluster: Cluster, name: str, phase: str) -> None:
    condition = f"--for=jsonpath={{.status.phase}}={phase}"
    cluster.kubectl("wait", f"controlplane/{name}", condition, f"--timeout={_READY_SECONDS}s")


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def _summary(values: Sequence[float]) -> dict[str, Any]:
    return {
        "each": [round(value, 2) for value in values],
        "p50": round(statistics.median(values), 2),
        "p99": round(_quantile(values, 0.99), 2),
    }


@contextmanager
def _timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    seconds[step] = round(time.monotonic() - began, 2)


def _measure(cluster: Cluster, given: argparse.Namespace) -> dict[str, Any]:
    steps: dict[str, float] = {}
    began = time.monotonic()
    with _timed(steps, "kind create cluster"):
        cluster.create(image=given.node_image, config=given.kind_config)
    try:
        with _timed(steps, "kind load images"):
            cluster.load(given.operator_image, given.mcm_image, given.etcd_image)
        with _timed(steps, "helm install --wait"):
            cluster.install(operator=given.operator_image, mcm=given.mcm_image, etcd=given.etcd_image)
        with _timed(steps, "first tenant Ready"):
            cluster.apply(_object("ControlPlaneClass", "measured", spec={}))
            _create_and_wait(cluster, "first", mode="Virtual")
        total = round(time.monotonic() - began, 2)
        ready = {
            mode: _summary([_create_and_delete(cluster, f"{mode.lower()}-{at}", mode=mode) for at in range(count)])
            for mode, count in (("Virtual", given.control_planes), ("Dedicated", given.dedicated))
            if count
        }
        wakes = {}
        if given.wakes:
            cluster.kubectl("delete", "controlplane/first", f"--timeout={_READY_SECONDS}s")
            cluster.load(given.gateway_image)
            cluster.open_gateway(given.gateway_image)
            wakes = {"seconds_from_request_to_answer_of_a_wake": _wakes(cluster, given.wakes)}
    finally:
        cluster.delete()
    return {
        "machine": {"cores": os.cpu_count(), "processor": platform.processor() or platform.machine()},
        "seconds_to_first_tenant": {**steps, "total": total},
        "seconds_from_create_to_ready": ready,
        **wakes,
    }


def main() -> int:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.on_cluster", description=__doc__)
    add = parser.add_argument
    add("--kind-cluster", default="kplane-benchmark", help="name of the new cluster; default: %(default)s")
    add("--node-image", default=os.environ.get("KIND_NODE_IMAGE"), help="default: $KIND_NODE_IMAGE, or kind's own")
    add("--kind-config", type=Path, default=os.environ.get("KIND_CONFIG"), help="default: $KIND_CONFIG, or none")
    add("--operator-image", default="kplane-operator:dev", help="default: %(default)s")
    add("--mcm-image", default="kplane-mcm:dev", help="default: %(default)s")
    add("--etcd-image", default="kplane-etcd:dev", help="default: %(default)s")
    add("--gateway-image", default="kplane-gateway:dev", help="default: %(default)s")
    add("--control-planes", type=int, default=10, help="number with mode Virtual; default: %(default)s")
    add("--dedicated", type=int, default=10, help="number with mode Dedicated; default: %(default)s")
    add("--wakes", type=int, default=10, help="number of wakes by a request; default: %(default)s")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kplane-benchmark-") as directory:
        cluster = Cluster(given.kind_cluster, kubeconfig=Path(directory) / "kubeconfig")
        result = _measure(cluster, given)
    json.dump(result, sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
