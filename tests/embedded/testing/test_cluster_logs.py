"""What is gathered of a cluster for a failed test."""

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


def test_gathers_events_sick_pods_and_the_logs_of_the_namespaces_that_matter(stand_ins) -> None:
    kubectl = stand_ins.write_kubectl(pods=json.dumps({"items": PODS}))
    logs = {log.name: log.text for log in collect(_cluster(kubectl), namespaces=["widgets-b", "widgets-*"], whole=True)}
    assert list(logs) == [
        "events.txt",
        # Of every namespace, what is wrong with them.
        "kube-system/broken/pod.txt",
        "widgets-a/operator/pod.txt",
        "widgets-b/new/pod.txt",
        # Those that are not well come first, then the namespaces by the patterns. What has not begun has no log.
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


def test_asks_for_the_ends_where_nobody_keeps_more(stand_ins) -> None:
    kubectl = stand_ins.write_kubectl(pods=json.dumps({"items": PODS}))
    logs = {log.name: log.text for log in collect(_cluster(kubectl), namespaces=["widgets-b"], whole=False)}
    assert logs["widgets-b/good/good.log"].endswith("-c good --tail=25")


def test_a_cluster_that_does_not_answer_is_asked_once(stand_ins) -> None:
    kubectl = stand_ins.write("kubectl", 'echo "connection refused" >&2; exit 1')
    (log,) = collect(_cluster(kubectl), namespaces=["*"], whole=True)
    assert log.name == "pods.txt"
    assert "connection refused" in log.text
    assert len(stand_ins.calls("kubectl")) == 1


@pytest.mark.parametrize(("whole", "lines"), [(True, 100), (False, 25)])
def test_gathers_the_log_files_of_an_embedded_cluster(stand_ins, tmp_path: Path, whole: bool, lines: int) -> None:
    directory = tmp_path / "cluster"
    (directory / "runtime" / "etcd").mkdir(parents=True)
    (directory / "daemon.log").write_text("ready\n")
    (directory / "runtime" / "etcd" / "log").write_text("".join(f"{number}\n" for number in range(100)))
    cluster = _cluster(stand_ins.write_kubectl(), directory=directory)
    logs = {log.name: log.text.splitlines() for log in collect(cluster, namespaces=[], whole=whole)}
    assert list(logs) == ["daemon.log", "runtime/etcd.log", "events.txt"]
    assert logs["daemon.log"] == ["ready"]
    assert logs["runtime/etcd.log"] == [str(number) for number in range(100 - lines, 100)]


def test_shows_no_more_than_a_person_reads() -> None:
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
def test_names_directories_that_stay_where_they_belong(nodeid: str, name: str) -> None:
    assert directory_name(nodeid) == name
    assert "/" not in name
