"""Fixtures: a management cluster and the command `kplane`."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from kplane.embedded.handle import Handle

from .planted import planted
from .typed import Kplane, own_environment

__all__ = ["planted"]

Apply = Callable[..., AbstractContextManager[str]]


@pytest.fixture(scope="module")
def environment(management_cluster: Handle, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return own_environment(tmp_path_factory.mktemp("home"), management_cluster)


@pytest.fixture(scope="module")
def kplane(environment: dict[str, str]) -> Kplane:
    return Kplane(environment)


@pytest.fixture(scope="module")
def with_class(management_cluster: Handle) -> Apply:
    """`with with_class(name, **spec)` creates a ControlPlaneClass for the block."""
    kubectl = [str(management_cluster.kubectl_program), f"--kubeconfig={management_cluster.admin_kubeconfig}"]

    @contextlib.contextmanager
    def made(name: str, **spec: Any) -> Iterator[str]:
        body = {
            "apiVersion": "controlplane.kplane.dev/v1alpha1",
            "kind": "ControlPlaneClass",
            "metadata": {"name": name},
            "spec": {"deletionPolicy": "Destroy", **spec},
        }
        subprocess.run([*kubectl, "apply", "-f", "-"], input=json.dumps(body), text=True, check=True, timeout=60)
        yield name
        subprocess.run([*kubectl, "delete", "controlplaneclass", name], check=True, timeout=60)

    return made


@pytest.fixture(scope="module")
def small(with_class: Apply) -> Iterator[str]:
    with with_class("typed", virtual={"start": "OnDemand"}) as name:
        yield name


@pytest.fixture(scope="module")
def kubectl_json(management_cluster: Handle) -> Callable[..., Any]:
    """`kubectl_json(*args)` returns the object that kubectl prints, as administrator of the management cluster."""
    command = [str(management_cluster.kubectl_program), f"--kubeconfig={management_cluster.admin_kubeconfig}"]

    def run(*args: str) -> Any:
        result = subprocess.run([*command, *args, "-o", "json"], capture_output=True, text=True, check=True, timeout=60)
        return json.loads(result.stdout)

    return run
