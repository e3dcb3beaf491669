"""Sleeping control planes behind kplane's gateway: first answers, CronJobs, restarts and kills."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from kubernetes import client as official
from kubernetes import config as official_config

from e2e.containers import Containers
from e2e.curl import Curl
from e2e.installation import NAMESPACE, ROOT
from e2e.kplane_gateway import Gateway
from e2e.kubectl import Object
from e2e.nodes import Nodes
from e2e.platform import Platform, condition
from e2e.tenant import Tenant
from e2e.waiting import eventually
from e2e.writer import RETRIES, writing

_SLEEP_REQUESTED: Final = "controlplane.kplane.dev/sleep-requested"
_WAKE_REQUESTED: Final = "controlplane.kplane.dev/wake-requested"
_AHEAD: Final = timedelta(seconds=10)
"""Time between the wake of a control plane and its due CronJob."""
_LATE: Final = timedelta(seconds=5)
_IDLE: Final = "2m"
_ANSWER_SECONDS: Final = 100.0
_HARMLESS: Final = "The manifest file is empty, ignoring."
"""Log line of kube-controller-manager for an optional file that is not set."""


@pytest.fixture(scope="module")
def platform(gateway_platform: Platform) -> Platform:
    """The platform behind the gateway."""
    return gateway_platform


def _sleeper(platform: Platform, stem: str, **spec: Any) -> Tenant:
    """Create a sleeping control plane."""
    name = platform.name(stem)
    platform.create("ControlPlane", name, deletionPolicy="Destroy", virtual={"start": "OnDemand"}, **spec)
    _wait_phase(platform, name, "Hibernated")
    tenant = platform.tenant(name)
    # A request without credentials does not wake the control plane.
    assert Curl.of(tenant, anonymous=True)("/version")[0] == 401
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
    return {namespace["metadata"]["name"] for namespace in json.loads(body)["items"]}


def _proxy(tenant: Tenant, _: Path) -> set[str]:
    """Run `kubectl proxy`, and list the namespaces through it without credentials."""
    command = [tenant.kubectl.program, f"--kubeconfig={tenant.kubectl.kubeconfig}", "proxy", "--port=0"]
    process = subprocess.Popen([*command, "--append-server-path"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        with urllib.request.urlopen(f"http://{address}/api/v1/namespaces", timeout=_ANSWER_SECONDS) as answer:
            return {namespace["metadata"]["name"] for namespace in json.load(answer)["items"]}
    finally:
        process.kill()
        process.communicate()


def _python(tenant: Tenant, _: Path) -> set[str]:
    settings: Any = official.Configuration()
    load: Any = official_config.load_kube_config
    load(str(tenant.kubectl.kubeconfig), client_configuration=settings)
    settings.retries = False
    with official.ApiClient(settings) as client:
        namespaces: Any = official.CoreV1Api(client).list_namespace()
    return {namespace.metadata.name for namespace in namespaces.items}


def _controllers(tenant: Tenant, directory: Path) -> set[str]:
    """Run a kube-controller-manager, which is a client of the Go library, until ServiceAccount `default` exists."""
    result = subprocess.run(
        [sys.executable, "-P", "-m", "kplane.binaries", "kube-controller-manager"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    log = directory / "log"
    program = Path(result.stdout.split()[-1], "kube-controller-manager")
    command = [str(program), "--leader-elect=false", "--secure-port=0"]
    command += [f"--kubeconfig={tenant.kubectl.kubeconfig}", "--controllers=serviceaccount-controller"]
    with log.open("wb") as log_file:
        process = subprocess.Popen(command, stdout=log_file, stderr=log_file)
    try:
        # The log shows progress without a further request, which could be the request that wakes.
        eventually("controllers at work", log.read_text, lambda said: "Caches are synced" in said)
        tenant.wait_account("default")
    finally:
        process.kill()
        process.wait()
    errors = re.findall(r"^[EF]\d{4} .*", log.read_text(), re.MULTILINE)
    assert [error for error in errors if not error.endswith(_HARMLESS)] == []
    return tenant.kubectl.names("namespaces")


@pytest.mark.parametrize(
    "client", [_kubectl, _curl, _proxy, _python, _controllers], ids=lambda found: found.__name__[1:]
)
def test_first_request_of_client_wakes_control_plane_and_succeeds(
    platform: Platform, tmp_path: Path, client: Callable[[Tenant, Path], set[str]]
) -> None:
    """A client needs no knowledge of sleep, and no retries."""
    tenant = _sleeper(platform, client.__name__.strip("_"))
    assert client(tenant, tmp_path) >= {"default", "kube-system"}
    control_plane = _wait_phase(platform, tenant.name, "Ready")
    assert _WAKE_REQUESTED in control_plane["metadata"]["annotations"]
    # The node has room for only a few API servers.
    platform.delete("ControlPlane", tenant.name)


@pytest.fixture(scope="module")
def dozer(platform: Platform) -> Tenant:
    """A control plane that has served a client, and falls asleep after its idle time."""
    name = platform.name("drowsy")
    platform.create("ControlPlaneClass", name, virtual={"idle": {"after": _IDLE}})
    tenant = _sleeper(platform, "dozer", classRef={"name": name})
    tenant.keep("before", "the sleep")
    return tenant


@pytest.mark.usefixtures("dozer")  # the control plane becomes idle meanwhile
def test_sleeping_control_plane_wakes_in_time_for_its_cron_job(platform: Platform) -> None:
    """The control plane wakes 10 seconds earlier without a request, and controllers create the Job."""
    tenant = _sleeper(platform, "nightly")
    name = tenant.name
    platform.create("ControlPlaneRegistration", name, controlPlaneRef={"name": name}, services=["Controllers"])
    tenant.wait_account("default")
    # Late enough for the sleep: a CronJob that is due within a minute keeps the control plane awake.
    due = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(minutes=3)
    tenant.kubectl.apply(_cron_job(due))
    platform.kubectl("annotate", "controlplane", name, f"{_SLEEP_REQUESTED}={datetime.now(UTC).isoformat()}")
    asleep = _wait_phase(platform, name, "Hibernated")
    assert datetime.fromisoformat(asleep["status"]["hibernation"]["nextWake"]) == due - _AHEAD

    awake = _wait_phase(platform, name, "Ready", timeout_seconds=300)
    jobs = eventually("a Job", lambda: tenant.kubectl.items("jobs", "-n", "default"))
    created = datetime.fromisoformat(jobs[0]["metadata"]["creationTimestamp"])
    assert due <= created <= due + _LATE
    # No client has woken the control plane.
    assert awake["metadata"]["annotations"][_WAKE_REQUESTED] == asleep["metadata"]["annotations"][_WAKE_REQUESTED]


def test_idle_control_plane_sleeps_again_and_wakes_on_request(platform: Platform, dozer: Tenant) -> None:
    """The gateway reports use of the control plane to the operator. The next request wakes the control plane again."""
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


def test_gateway_restart_loses_no_write_of_retrying_client(platform: Platform, gateway: Gateway) -> None:
    """Each write is answered, and each acknowledged object exists."""
    tenant = _sleeper(platform, "written")
    with writing(tenant, *RETRIES) as written:
        gateway.restart()
    assert set(written) <= tenant.kubectl.names("configmaps", "-n", "default")


@pytest.fixture(scope="module")
def survivor(platform: Platform) -> Tenant:
    """A control plane with controllers, whose programs are killed."""
    tenant = _sleeper(platform, "survivor")
    name = tenant.name
    platform.create("ControlPlaneRegistration", name, controlPlaneRef={"name": name}, services=["Controllers"])
    return tenant


def _asleep(platform: Platform, name: str) -> bool:
    """Return whether a control plane sleeps. Request sleep again if a failed inspection after a kill kept it awake."""
    control_plane = platform.get("ControlPlane", name)
    if condition(control_plane, "Hibernated").get("reason") == "KeptAwake":
        _ask_to_sleep(platform, name)
    return bool(control_plane["status"]["phase"] == "Hibernated")


def _ask_to_sleep(platform: Platform, name: str) -> None:
    now = datetime.now(UTC).isoformat()
    platform.kubectl("annotate", "controlplane", name, "--overwrite", f"{_SLEEP_REQUESTED}={now}")


def _is_written(tenant: Tenant, key: str) -> bool:
    tenant.keep(key, "kept")
    return True


@pytest.mark.k8s_needs("images")
@pytest.mark.parametrize(
    ("asleep", "awake"),
    [("operator", "operator"), ("mcm", "controller"), ("envoy", "envoy"), ("kube-apiserver", "kube-apiserver")],
)
def test_kills_during_sleep_and_wake_lose_no_data(
    platform: Platform, survivor: Tenant, nodes: Nodes, asleep: str, awake: str
) -> None:
    """Containers are killed (-9) while the API server ends, and while it starts. tests/embedded covers each step."""
    name, curl = survivor.name, Curl.of(survivor)
    namespace, api_server = f"kplane-cp-{name}", Containers(nodes, f"kplane-cp-{name}", "kube-apiserver")
    containers = {
        program: Containers(nodes, namespace if program == api_server.name else NAMESPACE, program)
        for program in (asleep, awake)
    }
    key = f"before-the-kill-of-{asleep}"
    eventually("a write", lambda: _is_written(survivor, key))
    _wait_phase(platform, name, "Ready")
    with api_server.never_two():
        _ask_to_sleep(platform, name)
        eventually("it falls asleep", lambda: "hibernation" in platform.get("ControlPlane", name)["status"])
        containers[asleep].kill()
        eventually("it sleeps", lambda: _asleep(platform, name), timeout_seconds=240)
        eventually("no API server", lambda: not api_server.running())

        with ThreadPoolExecutor(1) as reader:
            path = f"/api/v1/namespaces/default/configmaps/kept-{key}"
            reading = reader.submit(curl, path, *RETRIES, "--fail")
            eventually("it wakes", lambda: platform.get("ControlPlane", name)["status"]["phase"] != "Hibernated")
            containers[awake].kill()
            status, body = reading.result()
        assert (status, json.loads(body)["data"]) == (200, {"value": "kept"})
        eventually("it is awake", lambda: "hibernation" not in platform.get("ControlPlane", name)["status"])
        eventually("one API server", lambda: len(api_server.running()) == 1)
