"""Runs examples/sharded with three replicas on the kind cluster, and kills a replica."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.installation import images
from e2e.kubectl import Kubectl
from e2e.waiting import eventually

pytestmark = pytest.mark.k8s_needs("pods", "images")

_EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "sharded"
_CLUSTERS = [f"sharded-fleet-{number}" for number in range(12)]


@pytest.fixture
def example(k8s: Any, kubectl: Kubectl) -> Iterator[None]:
    """Deploy the example: its program from a ConfigMap, in an image that has the package."""
    operator, *_ = images()
    k8s.load_images(operator)
    objects = list(yaml.safe_load_all((_EXAMPLE / "deployment.yaml").read_text()))
    program = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "program", "namespace": "sharded"}}
    objects.insert(1, {**program, "data": {"sharded.py": (_EXAMPLE / "sharded.py").read_text()}})
    pod = objects[-1]["spec"]["template"]["spec"]
    pod["volumes"] = [{"name": "program", "configMap": {"name": "program"}}]
    pod["containers"][0] |= {
        "image": operator,
        "command": ["/opt/kplane/bin/python", "/app/sharded.py"],
        "volumeMounts": [{"name": "program", "mountPath": "/app"}],
    }
    try:
        kubectl.apply(*objects)
        kubectl("-n", "sharded", "rollout", "status", "deployment/sharded", "--timeout=120s")
        yield
    finally:
        kubectl("delete", "namespace", "sharded", *_CLUSTERS, "--ignore-not-found", "--wait=false")
        for kind in ("clusterrole", "clusterrolebinding"):
            kubectl("delete", kind, "sharded", "--ignore-not-found")


@pytest.mark.usefixtures("example")
def test_clusters_move_to_other_replicas_after_a_replica_is_killed(kubectl: Kubectl) -> None:
    for name in _CLUSTERS:
        labels = {"demo": "fleet"}
        kubectl.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}},
            _greeting(name, "first"),
        )
    replicas = _seen_everywhere(kubectl, "first")
    pods = kubectl.names("pods", "--namespace=sharded")
    assert set(replicas.values()) <= pods
    assert len(set(replicas.values())) > 1, "one replica has all clusters"

    victim = next(iter(replicas.values()))
    kubectl("-n", "sharded", "delete", "pod", victim, "--grace-period=0", "--force")
    for name in _CLUSTERS:
        kubectl.apply(_greeting(name, "second"))
    _seen_everywhere(kubectl, "second")
    # By now the kubelet has ended the containers of the killed Pod.
    for name in _CLUSTERS:
        kubectl.apply(_greeting(name, "third"))
    assert victim not in _seen_everywhere(kubectl, "third").values()


def _greeting(namespace: str, text: str) -> Mapping[str, Any]:
    metadata = {"name": "greeting", "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"text": text}}


def _seen_everywhere(kubectl: Kubectl, text: str) -> dict[str, str]:
    description = f"each ConfigMap to be stamped with {text!r}"
    return eventually(description, lambda: _replicas(kubectl, text), lambda found: len(found) == len(_CLUSTERS))


def _replicas(kubectl: Kubectl, text: str) -> dict[str, str]:
    """Return the replicas that have seen this text, by namespace."""
    config_maps = json.loads(
        kubectl("get", "configmaps", "-A", "--field-selector=metadata.name=greeting", "-o", "json")
    )
    annotations_by_namespace = (
        (config_map["metadata"]["namespace"], config_map["metadata"].get("annotations", {}))
        for config_map in config_maps["items"]
    )
    return {
        name: annotations["demo/replica"]
        for name, annotations in annotations_by_namespace
        if annotations.get("demo/seen") == text
    }
