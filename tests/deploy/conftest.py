"""The chart as rendered by the real helm, and members of etcd."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import yaml

_ROOT = Path(__file__).parents[2]
_NAMESPACE = "kplane-system"
_IMAGES = _ROOT / "deploy" / "values-dev.yaml"
"""Images of kplane, which the chart has no default for."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Twelve times as fast if PyYAML was built with libyaml."""

_VALUES = sorted((Path(__file__).parent / "values").glob("*.yaml"))

Manifest = dict[str, Any]


class Refused(Exception):
    """Error message of helm."""


@dataclass(frozen=True)
class Rendered:
    """Manifests of the chart for a set of values."""

    text: str

    @cached_property
    def _documents(self) -> str:
        return json.dumps([manifest for manifest in yaml.load_all(self.text, _LOADER) if manifest])

    @property
    def manifests(self) -> list[Manifest]:
        """Copies of the manifests, which tests may change."""
        manifests: list[Manifest] = json.loads(self._documents)
        return manifests

    def one(self, kind: str, name: str) -> Manifest:
        (manifest,) = [item for item in self.manifests if item["kind"] == kind and item["metadata"]["name"] == name]
        return manifest

    def names(self, kind: str) -> list[str]:
        return sorted(item["metadata"]["name"] for item in self.manifests if item["kind"] == kind)

    def pod_templates(self) -> dict[str, Manifest]:
        """Return the pod templates by kind and name of the object that has them."""
        templates = {}
        for item in self.manifests:
            match item["kind"]:
                case "Deployment" | "Job":
                    template = item["spec"]["template"]
                case "StatefulSet":
                    template = item["spec"]["template"]
                    claims = [claim["metadata"]["name"] for claim in item["spec"].get("volumeClaimTemplates", ())]
                    volumes = [{"name": name, "persistentVolumeClaim": {"claimName": f"{name}-0"}} for name in claims]
                    template["spec"]["volumes"] += volumes
                case "Pod":
                    template = {**item, "spec": {"volumes": [], **item["spec"]}}
                case "CronJob":
                    template = item["spec"]["jobTemplate"]["spec"]["template"]
                case _:
                    continue
            templates[f"{item['kind']}/{item['metadata']['name']}"] = template
        return templates


@dataclass(frozen=True)
class Chart:
    """The chart, and helm without settings of the user. Raises `refused` on an error of helm."""

    program: Path
    home: Path
    directory: Path = _ROOT / "deploy" / "chart" / "kplane"
    namespace: str = _NAMESPACE
    refused: type[Refused] = Refused
    images: Path | None = _IMAGES
    rendered: dict[tuple[str, ...], Rendered] = field(default_factory=dict)
    """Cache by arguments and values: each rendering takes a process, and most tests share a few renderings."""

    @property
    def values(self) -> dict[str, Any]:
        """Default values of the chart."""
        values: dict[str, Any] = yaml.safe_load((self.directory / "values.yaml").read_text())
        return values

    def helm(self, command: str, *args: str) -> str:
        """Run helm with the images of `make images`. Later files of values may override the images."""
        homes = {f"HELM_{kind}_HOME": str(self.home / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
        images = [f"--values={self.images}"] if self.images and str(self.directory) in args else []
        process = subprocess.run(
            [str(self.program), command, *images, *args],
            env={**os.environ, **homes},
            capture_output=True,
            text=True,
            check=False,
        )
        if process.returncode:
            raise Refused(process.stderr.strip())
        return process.stdout

    def render(
        self,
        values: Path | None = None,
        *,
        release: str = "kplane",
        settings: dict[str, Any] | None = None,
        tests: bool = False,
    ) -> Rendered:
        """Render with a file of values and with settings by dotted names. `tests` includes the hooks of `helm test`."""
        flags = [f"--values={values}"] if values else []
        flags += [f"--set-json={name}={json.dumps(value)}" for name, value in (settings or {}).items()]
        command = ("template", release, str(self.directory), f"--namespace={self.namespace}", *flags)
        command = command if tests else (*command, "--skip-tests")
        key = (*command, values.read_text() if values else "")
        if key not in self.rendered:
            self.rendered[key] = Rendered(self.helm(*command))
        return self.rendered[key]


def end(process: subprocess.Popen[bytes]) -> None:
    """Terminate a program, and kill it after 60 s."""
    process.terminate()
    try:
        process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise


@dataclass
class Etcd:
    """Member of an etcd without TLS. Its data directory is `<volume>/data`, as in the chart."""

    program: Path
    volume: Path
    name: str
    client_url: str
    peer_url: str
    metrics_url: str
    token: str = "kplane-etcd"
    process: subprocess.Popen[bytes] | None = None

    def start(self, cluster: str | None = None) -> None:
        arguments = [
            f"--name={self.name}",
            f"--data-dir={self.volume}/data",
            f"--listen-client-urls={self.client_url}",
            f"--advertise-client-urls={self.client_url}",
            f"--listen-peer-urls={self.peer_url}",
            f"--initial-advertise-peer-urls={self.peer_url}",
            f"--initial-cluster={cluster or f'{self.name}={self.peer_url}'}",
            f"--initial-cluster-token={self.token}",
            f"--listen-metrics-urls={self.metrics_url}",
            "--unsafe-no-fsync",
            "--log-level=error",
        ]
        self.process = subprocess.Popen([str(self.program), *arguments])

    def stop(self) -> None:
        if self.process is not None:
            end(self.process)
            self.process = None

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def wait_listening(self) -> None:
        """Wait until the member accepts connections: gRPC pauses for a second after a refused connection."""
        host, port = self.client_url.removeprefix("http://").split(":")
        deadline = time.monotonic() + 60
        while self.process is not None and self.process.poll() is None:
            try:
                socket.create_connection((host, int(port))).close()
            except ConnectionRefusedError:
                assert time.monotonic() < deadline, f"{self.name} does not listen"
                time.sleep(0.01)
            else:
                return

    def ctl(self, *args: str) -> str:
        """Run etcdctl once the member is ready."""
        self.wait_listening()
        etcdctl = self.program.with_name("etcdctl")
        command = [str(etcdctl), f"--endpoints={self.client_url}", "--dial-timeout=60s", "--command-timeout=60s", *args]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def metrics(self) -> str:
        """Return the text that Prometheus scrapes. Raises OSError before the member is ready."""
        with urllib.request.urlopen(f"{self.metrics_url}/readyz"):
            pass
        with urllib.request.urlopen(f"{self.metrics_url}/metrics") as answer:
            text: str = answer.read().decode()
            return text


@pytest.fixture
def etcds(binaries: Any, tmp_path: Path, hold_port: Callable[[], int]) -> Iterator[list[Etcd]]:
    """Three members that are not started, each with a volume."""
    members = [
        Etcd(
            binaries.path("etcd"),
            tmp_path / f"volume-{i}",
            name=f"member-{i}",
            client_url=f"http://127.0.0.1:{hold_port()}",
            peer_url=f"http://127.0.0.1:{hold_port()}",
            metrics_url=f"http://127.0.0.1:{hold_port()}",
        )
        for i in range(3)
    ]
    for member in members:
        member.volume.mkdir()
    yield members
    for member in members:
        member.kill()


@pytest.fixture
def etcd(etcds: list[Etcd]) -> Etcd:
    """A running etcd with a single member."""
    etcds[0].start()
    return etcds[0]


@pytest.fixture(scope="session")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Chart:
    from kplane.binaries.programs import resolve

    return Chart(resolve(programs=("helm",)).path("helm"), tmp_path_factory.mktemp("helm"))


@pytest.fixture(params=_VALUES, ids=lambda path: path.stem)
def values_file(request: pytest.FixtureRequest) -> Path:
    """Each file of values."""
    path: Path = request.param
    return path


@pytest.fixture(scope="session")
def everything_on() -> Path:
    """File of values that differ from nearly all defaults."""
    return Path(__file__).parent / "values" / "everything-on.yaml"
