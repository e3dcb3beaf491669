"""An existing API server becomes a control plane."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from kplane.embedded.handle import Handle

from .typed import Kplane

pytestmark = pytest.mark.integration


def test_control_plane_of_adopted_api_server_is_created_and_deleted(
    kplane: Kplane, api_server: Handle, kubectl_json: Callable[..., Any], environment: dict[str, str]
) -> None:
    result = kplane("adopt", "hooli", "--kubeconfig", str(api_server.admin_kubeconfig))
    assert result.stdout.splitlines() == ["controlplane/hooli created", "controlplane/hooli is Ready"]
    try:
        assert (
            "already exists"
            in kplane("adopt", "hooli", "--kubeconfig", str(api_server.admin_kubeconfig), code=1).stderr
        )
        secret = kubectl_json("get", "secret", "hooli-endpoint", "-n", "kplane-system")
        assert secret["metadata"]["labels"] == {"controlplane.kplane.dev/allow-endpoint": "true"}
        output = kplane("describe", "hooli").stdout
        assert "not run by kplane: ControlPlaneEndpoint hooli" in output
        namespaces = kplane("connect", "hooli", "--", "kubectl", "get", "namespaces", "-o", "name").stdout.split()
        assert "namespace/kplane-system" in namespaces
        assert "kplane does not run the apiserver" in kplane("logs", "hooli", code=1).stderr
    finally:
        error = kplane("delete", "hooli", "--yes").stderr
        command = "kubectl delete controlplaneendpoint hooli"
        assert command in error
        subprocess.run(command.split(), env=environment, check=True, timeout=60)


@pytest.mark.parametrize(
    ("user", "told"),
    [
        ({}, "has no credentials"),
        ({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "aws"}}, "from a program or a file"),
        ({"tokenFile": "/run/token"}, "from a program or a file"),
    ],
)
def test_adopt_refuses_credentials_it_cannot_store(
    kplane: Kplane, tmp_path: Path, user: dict[str, Any], told: str
) -> None:
    document = {
        "clusters": [{"name": "x", "cluster": {"server": "https://10.0.0.1:6443"}}],
        "users": [{"name": "x", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "current-context": "x",
    }
    (tmp_path / "theirs").write_text(yaml.safe_dump(document))
    assert told in kplane("adopt", "refused", "--kubeconfig", str(tmp_path / "theirs"), code=1).stderr
