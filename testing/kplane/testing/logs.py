"""Collects logs, events and pods that are not ready, for the report of a failed test."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from kplane.embedded.errors import KubectlFailed
from kplane.testing.cluster import Cluster

__all__ = ["Log", "collect", "directory_name", "ends"]

_TAIL_LINES: Final = 25
_SHOWN_AT_MOST: Final = 12
_KUBECTL_SECONDS: Final = 15.0
_NAME_AT_MOST: Final = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A text for the report of a failed test."""

    name: str
    """Path in the directory of the test."""
    text: str


def collect(cluster: Cluster, *, namespaces: Sequence[str], whole: bool) -> Iterator[Log]:
    """Read the logs, the most useful logs first. A log that cannot be read contains the error instead.

    `namespaces` are patterns of the namespaces whose pods' logs are read. Without `whole`, read only the ends.
    """
    if cluster.directory is not None:
        yield from _of_files(cluster.directory, whole=whole)
        yield _said(cluster, "events", "-A", name="events.txt", whole=whole)
    else:
        yield from _of_pods(cluster, namespaces=namespaces, whole=whole)


def ends(logs: Sequence[Log]) -> list[tuple[str, str]]:
    """Make sections of a test report from the ends of the first logs that are not empty."""
    shown = [log for log in logs if log.text.strip()]
    sections = [(log.name, _tail(log.text)) for log in shown[:_SHOWN_AT_MOST]]
    if left := [log.name for log in shown[_SHOWN_AT_MOST:]]:
        sections.append(("more logs", f"--k8s-report-dir=DIR keeps {len(left)} more: {', '.join(left)}"))
    return sections


def directory_name(nodeid: str) -> str:
    """Make the name of a directory from the id of a test."""
    return re.sub(r"[^\w.=-]+", "-", nodeid).strip("-")[-_NAME_AT_MOST:]


def _of_files(directory: Path, *, whole: bool) -> Iterator[Log]:
    from kplane.embedded.daemon import tail
    from kplane.embedded.handle import log_files

    for file in log_files(directory):
        name = file.relative_to(directory)
        stem = str(name.parent) if name.name == "log" else str(name.with_suffix(""))
        text = file.read_text(errors="replace") if whole else tail(file, lines=_TAIL_LINES)
        yield Log(name=f"{stem}.log", text=text)


def _of_pods(cluster: Cluster, *, namespaces: Sequence[str], whole: bool) -> Iterator[Log]:
    try:
        pods = json.loads(cluster.kubectl("get", "pods", "-A", "-o=json", timeout_seconds=_KUBECTL_SECONDS))["items"]
    except KubectlFailed as error:
        # Each further request would take as long to fail.
        yield Log(name="pods.txt", text=str(error))
        return
    yield _said(cluster, "events", "-A", name="events.txt", whole=whole)
    unready = [pod for pod in pods if not _is_well(pod)]
    for pod in unready:
        namespace, name = _place(pod)
        yield _said(cluster, "describe", "pod", "-n", namespace, name, name=f"{namespace}/{name}/pod.txt", whole=True)
    ranked = [(_is_well(pod), rank, pod) for pod in pods if (rank := _rank(pod, namespaces)) is not None]
    # Unhealthy pods first, then in the order of the patterns.
    for _, _, pod in sorted(ranked, key=lambda each: each[:2]):
        yield from _of_containers(cluster, pod, whole=whole)
    yield _said(cluster, "get", "pods", "-A", "-o=wide", name="pods.txt", whole=whole)


def _of_containers(cluster: Cluster, pod: Mapping[str, Any], *, whole: bool) -> Iterator[Log]:
    namespace, name = _place(pod)
    status = pod.get("status", {})
    for container in [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]:
        if "waiting" in container.get("state", {}) and not container.get("restartCount"):
            continue
        command = ("logs", "-n", namespace, name, "-c", container["name"], f"--tail={-1 if whole else _TAIL_LINES}")
        file = f"{namespace}/{name}/{container['name']}"
        yield _said(cluster, *command, name=f"{file}.log", whole=whole)
        if container.get("restartCount"):
            yield _said(cluster, *command, "--previous", name=f"{file}.previous.log", whole=whole)


def _said(cluster: Cluster, *args: str, name: str, whole: bool) -> Log:
    try:
        text = cluster.kubectl(*args, timeout_seconds=_KUBECTL_SECONDS)
    except KubectlFailed as error:
        text = str(error)
    return Log(name=name, text=text if whole else _tail(text))


def _is_well(pod: Mapping[str, Any]) -> bool:
    status = pod.get("status", {})
    if status.get("phase") == "Succeeded":
        return True
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", ()))
    return ready and not any(c.get("restartCount") for c in status.get("containerStatuses", ()))


def _rank(pod: Mapping[str, Any], patterns: Sequence[str]) -> int | None:
    namespace, _ = _place(pod)
    return next((rank for rank, pattern in enumerate(patterns) if fnmatchcase(namespace, pattern)), None)


def _place(pod: Mapping[str, Any]) -> tuple[str, str]:
    return pod["metadata"]["namespace"], pod["metadata"]["name"]


def _tail(text: str) -> str:
    return "\n".join(text.splitlines()[-_TAIL_LINES:])
