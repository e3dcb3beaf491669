"""Programs of kplane as pods: discovery, requests through the proxy, and logs."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from kplane.api import ControlPlaneRegistration
from kplane.cli.programs import Program
from kplane.cli.programs.pods import Pods, instance_line, pod_problem
from kplane.mcm.describe.kinds import InstanceKind
from kplane.provider import Client, NotFound, Unreachable

from .api_server import refusal, serving

READY = {"conditions": [{"type": "Ready", "status": "True"}], "phase": "Running"}


def serving_at(port: int, *, name: str) -> dict[str, Any]:
    return {"name": name, "ports": [{"name": "http", "containerPort": port}]}


# The containers of the chart. The controller of the gateway is a sidecar.
SPECS = {
    "operator": {"containers": [serving_at(8080, name="operator")]},
    "mcm": {"containers": [serving_at(8081, name="mcm")]},
    "etcd": {"containers": [{"name": "etcd", "ports": [{"name": "client", "containerPort": 2379}]}]},
    "etcd-backup": {"containers": [{"name": "backup"}]},
    "gateway": {
        "initContainers": [{**serving_at(8082, name="controller"), "restartPolicy": "Always"}],
        "containers": [{"name": "envoy", "ports": [{"name": "https", "containerPort": 8443}]}],
    },
}


def pod(name: str, component: str, *, namespace: str = "kplane", status: Any = None, **labels: str) -> dict[str, Any]:
    metadata = {
        "name": name,
        "namespace": namespace,
        "labels": {
            "app.kubernetes.io/part-of": "kplane",
            "app.kubernetes.io/component": component,
            "app.kubernetes.io/version": "0.1.0",
            **labels,
        },
    }
    ready = READY if status is None else status
    return {"metadata": metadata, "spec": copy.deepcopy(SPECS[component]), "status": ready}


def selected(pods: Sequence[dict[str, Any]], request: web.Request) -> list[dict[str, Any]]:
    labels = dict(item.split("=") for item in request.query.get("labelSelector", "").split(",") if item)
    return [item for item in pods if labels.items() <= item["metadata"]["labels"].items()]


class Cluster:
    """Pods with their logs and answers."""

    def __init__(self) -> None:
        self.pods = [
            pod("mcm-0", "mcm"),
            pod("operator-1", "operator"),
            pod("etcd-0", "etcd"),
            pod("x", "etcd-backup"),
            pod("gateway-1", "gateway"),
            pod("unrelated", "operator", **{"app.kubernetes.io/part-of": "other"}),
        ]
        self.logs = {
            ("mcm-0", "mcm"): ["[acme] I1126 first", "[globex] E1126 other", "[acme] second", "last"],
            ("gateway-1", "controller"): ["routes written"],
            ("gateway-1", "envoy"): ["warning"],
            ("etcd-0", "etcd"): ["applied"],
        }
        self.everywhere = True
        self.more: asyncio.Queue[str] = asyncio.Queue()
        """Lines that arrive while a log is followed. An empty line ends the log."""
        self.metrics: Any = None
        self.asked: list[str] = []
        self.readyz = ""

    def routes(self) -> Any:
        return {
            "/api/v1/pods": self.list_all,
            "/api/v1/namespaces/{namespace}/pods": self.list,
            "/api/v1/namespaces/{namespace}/pods/{name}/log": self.log,
            "/api/v1/namespaces/{namespace}/pods/{name}/proxy/{path:.*}": self.proxy,
            "/apis/metrics.k8s.io/v1beta1/pods": self.measured,
        }

    async def list_all(self, request: web.Request) -> web.Response:
        if not self.everywhere:
            return refusal(403, "Forbidden")
        return web.json_response({"metadata": {}, "items": selected(self.pods, request)})

    async def list(self, request: web.Request) -> web.Response:
        namespace = request.match_info["namespace"]
        pods = [item for item in self.pods if item["metadata"]["namespace"] == namespace]
        return web.json_response({"metadata": {}, "items": selected(pods, request)})

    async def log(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        (target,) = [item for item in self.pods if item["metadata"]["name"] == name]
        containers = [item["name"] for item in target["spec"]["containers"]]
        # The log of a single container is read without a container name, even if there are sidecars.
        container = request.query.get("container", containers[0] if len(containers) == 1 else "")
        response = web.StreamResponse()
        await response.prepare(request)
        tail = int(request.query.get("tailLines", 100))
        for line in self.logs[name, container][-tail:]:
            await response.write(f"{line}\n".encode())
        while "follow" in request.query and (line := await self.more.get()):
            await response.write(f"{line}\n".encode())
        return response

    async def proxy(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        if request.match_info["path"] == "dropped":
            await asyncio.sleep(30.0)
        if request.match_info["path"] == "readyz":
            return web.Response(status=503, text=self.readyz)
        if request.match_info["path"] == "broken":
            return web.Response(status=503, text="not ready")
        return web.Response(text="ok\n")

    async def measured(self, request: web.Request) -> web.Response:
        return web.json_response(self.metrics) if self.metrics is not None else refusal(404, "NotFound")


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest_asyncio.fixture
async def client(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Client]:
    async with serving(cluster.routes(), tmp_path) as client:
        yield client


async def programs_of(client: Client) -> Pods:
    pods = await Pods.of(client)
    assert pods is not None
    return pods


async def test_programs_are_found_in_their_namespace(client: Client, cluster: Cluster) -> None:
    programs = await programs_of(client)
    assert programs.place == "pods in namespace kplane"
    replicas = [
        (replica.program, replica.name, replica.problem, replica.version) for replica in await programs.replicas()
    ]
    assert replicas == [
        (Program.OPERATOR, "operator-1", "", "0.1.0"),
        (Program.MCM, "mcm-0", "", "0.1.0"),
        (Program.GATEWAY, "gateway-1", "", "0.1.0"),
        (Program.ETCD, "etcd-0", "", ""),
    ]


async def test_problem_of_running_pod_has_its_failed_checks(client: Client, cluster: Cluster) -> None:
    cluster.readyz = "[+]caches ok\n[-]envoy 128 of 128 inotify instances are used; raise the limit\n"
    conditions = [{"type": "Ready", "status": "False"}]
    cluster.pods = [
        pod("operator-1", "operator"),
        pod("gateway-1", "gateway", status={"phase": "Running", "conditions": conditions}),
        pod("gateway-2", "gateway", status={"phase": "Pending", "conditions": conditions}),
    ]
    problems = {replica.name: replica.problem for replica in await (await programs_of(client)).replicas()}
    assert problems == {
        "operator-1": "",
        "gateway-1": "it is Running and not ready; envoy 128 of 128 inotify instances are used; raise the limit",
        "gateway-2": "it is Pending and not ready",
    }
    assert cluster.asked == ["/api/v1/namespaces/kplane/pods/gateway-1:8082/proxy/readyz"]


async def test_user_without_cluster_rights_finds_pods_in_kplane_system(client: Client, cluster: Cluster) -> None:
    cluster.everywhere = False
    assert await Pods.of(client) is None
    cluster.pods = [pod("mcm-0", "mcm", namespace="kplane-system")]
    assert (await programs_of(client)).place == "pods in namespace kplane-system"


async def test_programs_are_asked_through_the_proxy(client: Client, cluster: Cluster) -> None:
    programs = await programs_of(client)
    operator, mcm, gateway, etcd = await programs.replicas()
    assert await programs.ask(mcm, "/clusters") == "ok\n"
    assert await programs.ask(gateway, "/metrics") == "ok\n"
    assert cluster.asked == [
        "/api/v1/namespaces/kplane/pods/mcm-0:8081/proxy/clusters",
        "/api/v1/namespaces/kplane/pods/gateway-1:8082/proxy/metrics",
    ]
    with pytest.raises(Exception, match="not ready"):
        await programs.ask(operator, "/broken")
    with pytest.raises(NotFound, match="no port http"):
        await programs.ask(etcd, "/metrics")


async def test_logs_are_read_line_by_line(client: Client, cluster: Cluster) -> None:
    programs = await programs_of(client)
    _, mcm, gateway, etcd = await programs.replicas()
    assert [line async for line in programs.log(mcm).lines(last=2, follow=False)] == ["[acme] second", "last"]
    assert [line async for line in programs.log(gateway).lines(last=None, follow=False)] == ["routes written"]
    assert [line async for line in programs.log(etcd).lines(last=None, follow=False)] == ["applied"]


async def test_ask_times_out_if_pod_does_not_answer(
    client: Client, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kplane.cli.programs.pods._ASK_SECONDS", 0.2)
    programs = await programs_of(client)
    operator = (await programs.replicas())[0]
    with pytest.raises(Unreachable, match="in time"):
        await programs.ask(operator, "/dropped")


async def test_instance_log_has_only_lines_of_the_instance(client: Client, cluster: Cluster) -> None:
    spec = {"controlPlaneRef": {"name": "acme"}}
    acme = ControlPlaneRegistration.model_validate({"metadata": {"name": "acme"}, "spec": spec})
    programs = await programs_of(client)
    (log,) = await programs.instance_logs(acme, kind=InstanceKind.CONTROLLERS)
    assert (log.note, "mcm.instanceLogs" in log.silence) == ("", True)
    assert [line async for line in log.lines(last=1, follow=False)] == ["second"]
    cluster.more.put_nowait("")
    assert [line async for line in log.lines(last=None, follow=True)] == ["I1126 first", "second"]


async def test_following_starts_with_last_lines_of_instance(client: Client, cluster: Cluster) -> None:
    programs = await programs_of(client)
    spec, services = {"controlPlaneRef": {"name": "acme"}}, ["Controllers", "Scheduler"]
    acme = ControlPlaneRegistration.model_validate(
        {"metadata": {"name": "acme"}, "spec": spec, "status": {"services": services}}
    )
    (log,) = await programs.instance_logs(acme, kind=InstanceKind.SCHEDULER)
    assert "controllers and scheduler" in log.note
    async with asyncio.timeout(20), contextlib.aclosing(log.lines(last=1, follow=True)) as lines:
        assert await anext(lines) == "second"
        cluster.more.put_nowait("[acme] third")
        cluster.more.put_nowait("[globex] other")
        cluster.more.put_nowait("[acme] fourth")
        assert [await anext(lines), await anext(lines)] == ["third", "fourth"]
        cluster.more.put_nowait("")
        assert [line async for line in lines] == []


async def test_memory_comes_from_the_metrics_server(client: Client, cluster: Cluster) -> None:
    programs = await programs_of(client)
    assert await programs.memory() == {}

    def used(component: str, *sizes: str) -> dict[str, Any]:
        labels = {"controlplane.kplane.dev/component": component}
        return {"metadata": {"labels": labels}, "containers": [{"usage": {"memory": size}} for size in sizes]}

    cluster.metrics = {
        "items": [used("apiserver-acme", "2Mi"), used("apiserver-acme", "1Mi"), used("etcd-acme", "1Ki")]
    }
    assert await programs.memory() == {"apiserver-acme": 3 << 20, "etcd-acme": 1024}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("[acme] E1126 failed", "E1126 failed"),
        ("[acme-2] E1126 failed", None),
        ('{"cluster": "acme", "logger": "kube-controller-manager", "message": "m"}', "m"),
        ('{"cluster": "acme", "logger": "kplane.mcm.instance", "message": "started"}', "mcm: started"),
        ('{"cluster": "globex", "logger": "kube-controller-manager", "message": "m"}', None),
        ("{broken", None),
        ("plain", None),
    ],
)
def test_instance_line_is_selected_by_control_plane_name(line: str, told: str | None) -> None:
    assert instance_line(line, "acme") == told


def waiting(reason: str, message: str = "", **last: Any) -> dict[str, Any]:
    state = {"name": "mcm", "state": {"waiting": {"reason": reason, "message": message}}, **last}
    return {"phase": "Pending", "containerStatuses": [state]}


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (READY, ""),
        ({}, "it is Pending and not ready"),
        (waiting("ErrImagePull", "no\nsuch image"), "container mcm waits: ErrImagePull: no such image"),
        (
            waiting("CrashLoopBackOff", lastState={"terminated": {"reason": "Error", "message": "bad flag"}}),
            "container mcm waits: CrashLoopBackOff; it ended before: Error: bad flag",
        ),
        (
            {"containerStatuses": [{"name": "mcm", "ready": False, "state": {"terminated": {"reason": "OOMKilled"}}}]},
            "container mcm ended: OOMKilled",
        ),
        (
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
                ]
            },
            "it is not scheduled: Unschedulable: no room",
        ),
    ],
)
def test_pod_problem_names_cause_of_unready_pod(status: dict[str, Any], told: str) -> None:
    assert pod_problem({"status": status}) == told
