"""Logs and events of a cluster, collected for a failed test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kplane.testing.cluster import Cluster
from kplane.testing.logs import Log, collect, directory_name, ends


def _cluster(kubectl: Path, *, directory: Path | None = None) -> Cluster:
    return Cluster(
        name="kind",
        reason="for a test",
        kubeconfig=kubectl.parent / "kubeconfig",
        context="c",
        capabilities=frozenset(),
        kubectl_program=kubectl,
        directory=directory,
    )


def _pod(place: str, *containers: dict[str, Any], ready: bool = True, phase: str = "Running") -> dict[str, Any]:
    namespace, name = place.split("/")
    conditions = [{"type": "Ready", "status": str(ready)}]
    status = {"phase": phase, "conditions": conditions, "containerStatuses": list(containers)}
    return {"metadata": {"namespace": namespace, "name": name}, "status": status}


def _container(name: str, *, restarts: int = 0, state: str = "running") -> dict[str, Any]:
    return {"name": name, "restartCount": restarts, "state": {state: {}}}


PODS = [
    _pod("kube-system/dns", _container("dns")),
    _pod("kube-system/broken", _container("broken"), ready=False),
    _pod("widgets-a/operator", _container("operator"), _container("proxy", restarts=2)),
    _pod("widgets-a/aside", _container("aside")),
    _pod("widgets-b/good", _container("good")),
    _pod("widgets-b/new", _container("new", state="waiting"), ready=False, phase="Pending"),
    _pod("widgets-b/done", _container("done", state="terminated"), ready=False, phase="Succeeded"),
]


def test_collect_returns_events_unready_pods_and_logs_in_order(stand_ins) -> None:
    kubectl = stand_ins.write_kubectl(pods=json.dumps({"items": PODS}))
    logs = {log.name: log.text for log in collect(_cluster(kubectl), namespaces=["widgets-b", "widgets-*"], whole=True)}
    assert list(logs) == [
        "events.txt",
        # Descriptions of unready and restarted pods in all namespaces.
        "kube-system/broken/pod.txt",
        "widgets-a/operator/pod.txt",
        "widgets-b/new/pod.txt",
        # Logs of these pods first, then in the order of the patterns. Waiting containers have no log.
        "widgets-a/operator/operator.log",
        "widgets-a/operator/proxy.log",
        "widgets-a/operator/proxy.previous.log",
        "widgets-b/good/good.log",
        "widgets-b/done/done.log",
        "widgets-a/aside/aside.log",
        "pods.txt",
    ]
    assert logs["widgets-a/operator/pod.txt"].endswith("describe pod -n widgets-a operator\n")
    previous = logs["widgets-a/operator/proxy.previous.log"]
    assert previous.endswith("logs -n widgets-a operator -c proxy --tail=-1 --previous\n")


def test_collect_reads_last_25_lines_unless_whole(stand_ins) -> None:
    kubectl = stand_ins.write_kubectl(pods=json.dumps({"items": PODS}))
    logs = {log.name: log.text for log in collect(_cluster(kubectl), namespaces=["widgets-b"], whole=False)}
    assert logs["widgets-b/good/good.log"].endswith("-c good --tail=25")


def test_collect_calls_an_unreachable_cluster_once(stand_ins) -> None:
    kubectl = stand_ins.write("kubectl", 'echo "connection refused" >&2; exit 1')
    (log,) = collect(_cluster(kubectl), namespaces=["*"], whole=True)
    assert log.name == "pods.txt"
    assert "connection refused" in log.text
    assert len(stand_ins.calls("kubectl")) == 1


@pytest.mark.parametrize(("whole", "lines"), [(True, 100), (False, 25)])
def test_collect_reads_log_files_of_an_embedded_cluster(stand_ins, tmp_path: Path, whole: bool, lines: int) -> None:
    directory = tmp_path / "cluster"
    (directory / "runtime" / "etcd").mkdir(parents=True)
    (directory / "daemon.log").write_text("ready\n")
    (directory / "runtime" / "etcd" / "log").write_text("".join(f"{number}\n" for number in range(100)))
    cluster = _cluster(stand_ins.write_kubectl(), directory=directory)
    logs = {log.name: log.text.splitlines() for log in collect(cluster, namespaces=[], whole=whole)}
    assert list(logs) == ["daemon.log", "runtime/etcd.log", "events.txt"]
    assert logs["daemon.log"] == ["ready"]
    assert logs["runtime/etcd.log"] == [str(number) for number in range(100 - lines, 100)]


def test_ends_shows_12_logs_of_25_lines_and_names_the_rest() -> None:
    logs = [Log(name="silent", text=" \n"), *(Log(name=f"log-{i}", text="line\n" * 100) for i in range(14))]
    sections = ends(logs)
    assert [name for name, _ in sections] == [*(f"log-{i}" for i in range(12)), "more logs"]
    assert sections[0][1].splitlines() == ["line"] * 25
    assert sections[-1][1] == "--k8s-report-dir=DIR keeps 2 more: log-12, log-13"


@pytest.mark.parametrize(
    ("nodeid", "name"),
    [
        ("tests/test_a.py::TestB::test_c[x/../y z]", "tests-test_a.py-TestB-test_c-x-..-y-z"),
        ("../../etc::x", "..-..-etc-x"),
        ("x" * 300, "x" * 150),
    ],
)
def test_directory_name_has_no_slash_and_at_most_150_characters(nodeid: str, name: str) -> None:
    assert directory_name(nodeid) == name
    assert "/" not in name
