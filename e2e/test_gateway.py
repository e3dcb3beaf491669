"""Control planes that sleep behind kplane's gateway: first answers, CronJobs, and a restart of the gateway."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from kubernetes import client as official
from kubernetes import config as official_config

from e2e.curl import Curl
from e2e.installation import ROOT
from e2e.kplane_gateway import Gateway, as_pods, as_processes
from e2e.kubectl import Object
from e2e.platform import Platform
from e2e.tenant import Tenant
from e2e.waiting import eventually

_SLEEP_REQUESTED: Final = "controlplane.kplane.dev/sleep-requested"
_WAKE_REQUESTED: Final = "controlplane.kplane.dev/wake-requested"
_AHEAD: Final = timedelta(seconds=10)
"""A control plane wakes so long before its CronJob is due."""
_LATE: Final = timedelta(seconds=5)
_IDLE: Final = "2m"
_HARMLESS: Final = "The manifest file is empty, ignoring."
"""What kube-controller-manager says of a file that it is not given."""


@pytest.fixture(scope="module")
def gateway(k8s: Any, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """kplane's gateway: that of the chart, or that of a second embedded cluster."""
    if "pods" not in k8s.capabilities:
        running = as_processes()
    else:
        request.getfixturevalue("installation")
        kubectl, helm = request.getfixturevalue("kubectl"), request.getfixturevalue("helm")
        running = as_pods(k8s, kubectl=kubectl, helm=helm, directory=tmp_path_factory.mktemp("gateway"))
    with running as made:
        yield made


@pytest.fixture(scope="module")
def platform(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """The platform behind the gateway."""
    made = Platform(gateway.kubectl, prefix="behind", directory=tmp_path_factory.mktemp("behind"))
    try:
        yield made
    finally:
        made.clean_up()


def _sleeper(platform: Platform, stem: str, **spec: Any) -> Tenant:
    """Create a control plane that sleeps, and wait until the gateway knows it."""
    name = platform.name(stem)
    platform.create("ControlPlane", name, deletionPolicy="Destroy", virtual={"start": "OnDemand"}, **spec)
    _wait_phase(platform, name, "Hibernated")
    tenant = platform.tenant(name)
    # A request without credentials wakes nothing.
    stranger = Curl.of(tenant, anonymous=True)
    eventually(f"{name} at the gateway", lambda: stranger("/version")[0], lambda status: status == 401)
    return tenant


def _wait_phase(platform: Platform, name: str, phase: str, *, timeout_seconds: float = 120.0) -> Object:
    return eventually(
        f"{name} {phase}",
        lambda: platform.get("ControlPlane", name),
        lambda found: found.get("status", {}).get("phase") == phase,
        timeout_seconds=timeout_seconds,
    )


def _kubectl(tenant: Tenant, _: Path) -> set[str]:
    return tenant.kubectl.names("namespaces")


def _curl(tenant: Tenant, _: Path) -> set[str]:
    status, body = Curl.of(tenant)("/api/v1/namespaces")
    assert status == 200, body
    return {each["metadata"]["name"] for each in json.loads(body)["items"]}


def _python(tenant: Tenant, _: Path) -> set[str]:
    settings: Any = official.Configuration()
    load: Any = official_config.load_kube_config
    load(str(tenant.kubectl.kubeconfig), client_configuration=settings)
    settings.retries = False
    with official.ApiClient(settings) as client:
        found: Any = official.CoreV1Api(client).list_namespace()
    return {each.metadata.name for each in found.items}


def _controllers(tenant: Tenant, directory: Path) -> set[str]:
    """Run a kube-controller-manager, which is a client of the Go library, until it has done its work."""
    found = subprocess.run(
        [sys.executable, "-m", "kplane.binaries", "kube-controller-manager"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    log = directory / "log"
    program = Path(found.stdout.split()[-1], "kube-controller-manager")
    command = [str(program), "--leader-elect=false", "--secure-port=0"]
    command += [f"--kubeconfig={tenant.kubectl.kubeconfig}", "--controllers=serviceaccount-controller"]
    with log.open("wb") as written:
        running = subprocess.Popen(command, stdout=written, stderr=written)
    try:
        # Through the log, because another request would be the one that wakes.
        eventually("controllers at work", log.read_text, lambda said: "Caches are synced" in said)
        tenant.wait_account("default")
    finally:
        running.kill()
        running.wait()
    errors = re.findall(r"^[EF]\d{4} .*", log.read_text(), re.MULTILINE)
    assert [error for error in errors if not error.endswith(_HARMLESS)] == []
    return tenant.kubectl.names("namespaces")


@pytest.mark.parametrize("client", [_kubectl, _curl, _python, _controllers], ids=lambda found: found.__name__[1:])
def test_the_first_answer_of_a_control_plane_that_sleeps_is_the_right_one(
    platform: Platform, tmp_path: Path, client: Callable[[Tenant, Path], set[str]]
) -> None:
    """No client has to know about sleep, or how to retry."""
    tenant = _sleeper(platform, client.__name__.strip("_"))
    assert client(tenant, tmp_path) >= {"default", "kube-system"}
    woken = _wait_phase(platform, tenant.name, "Ready")
    assert _WAKE_REQUESTED in woken["metadata"]["annotations"]


@pytest.fixture(scope="module")
def dozer(platform: Platform) -> Tenant:
    """A control plane that had a client once, and falls asleep when it is idle."""
    name = platform.name("drowsy")
    platform.create("ControlPlaneClass", name, virtual={"idle": {"after": _IDLE}})
    tenant = _sleeper(platform, "dozer", classRef={"name": name})
    tenant.keep("before", "the sleep")
    return tenant


@pytest.mark.usefixtures("dozer")  # it gets idle meanwhile
def test_a_cron_job_of_a_control_plane_that_sleeps_fires_in_time(platform: Platform) -> None:
    """The control plane wakes by itself a little earlier, and controllers create the Job."""
    tenant = _sleeper(platform, "nightly")
    name = tenant.name
    platform.create("ControlPlaneRegistration", name, controlPlaneRef={"name": name}, services=["Controllers"])
    tenant.wait_account("default")
    # Late enough that it can sleep until then: what is due within a minute keeps it awake.
    due = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(minutes=3)
    tenant.kubectl.apply(_cron_job(due))
    platform.kubectl("annotate", "controlplane", name, f"{_SLEEP_REQUESTED}={datetime.now(UTC).isoformat()}")
    asleep = _wait_phase(platform, name, "Hibernated")
    assert datetime.fromisoformat(asleep["status"]["hibernation"]["nextWake"]) == due - _AHEAD

    awake = _wait_phase(platform, name, "Ready", timeout_seconds=300)
    jobs = eventually("a Job", lambda: tenant.kubectl.items("jobs", "-n", "default"))
    created = datetime.fromisoformat(jobs[0]["metadata"]["creationTimestamp"])
    assert due <= created <= due + _LATE
    # No client has woken it.
    assert awake["metadata"]["annotations"][_WAKE_REQUESTED] == asleep["metadata"]["annotations"][_WAKE_REQUESTED]


def test_a_control_plane_sleeps_again_when_it_is_idle(platform: Platform, dozer: Tenant) -> None:
    """The gateway reports its use, so that the operator knows the end of it. The next request wakes it again."""
    asleep = _wait_phase(platform, dozer.name, "Hibernated", timeout_seconds=300)
    assert asleep["status"]["hibernation"]["reason"] == "Idle"
    assert dozer.kept("before") == "the sleep"


def _cron_job(due: datetime) -> Object:
    container = {"name": "main", "image": "web:1"}
    pod = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "nightly", "namespace": "default"},
        "spec": {
            "schedule": f"{due.minute} {due.hour} * * *",
            "timeZone": "Etc/UTC",
            "jobTemplate": {"spec": {"template": pod}},
        },
    }


@contextmanager
def _writing(tenant: Tenant) -> Iterator[list[str]]:
    """Write ConfigMaps one after the other with retries, and yield the names of those that were written."""
    curl, written, end = Curl.of(tenant), list[str](), threading.Event()
    failures: list[str] = []
    options = ["--retry", "60", "--retry-delay", "1", "--retry-all-errors", "--retry-max-time", "120"]
    options += ["--request", "PATCH", "--header", "Content-Type: application/apply-patch+yaml"]

    def write() -> None:
        for number in itertools.count(1):
            name = f"written-{number}"
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
            path = f"/api/v1/namespaces/default/configmaps/{name}?fieldManager=e2e"
            try:
                status, said = curl(path, *options, "--data", json.dumps(body))
            except AssertionError as error:
                failures.append(str(error))
                return
            if status not in {200, 201}:
                failures.append(said)
                return
            written.append(name)
            if end.is_set():
                return

    thread = threading.Thread(target=write)
    thread.start()
    try:
        eventually("the first ConfigMap", lambda: written or failures)
        yield written
        before = len(written)
        eventually("one ConfigMap more", lambda: len(written) > before or failures)
    finally:
        end.set()
        thread.join()
    assert failures == []


def test_a_restart_of_the_gateway_loses_no_request_of_a_client_that_retries(
    platform: Platform, gateway: Gateway
) -> None:
    """Each write that was answered is there, and each write is answered."""
    tenant = _sleeper(platform, "written")
    with _writing(tenant) as written:
        gateway.restart()
    assert set(written) <= tenant.kubectl.names("configmaps", "-n", "default")
