"""Tokens, joining nodes, and the names of the Go project, on a real management cluster."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import yaml

from .typed import Kplane

pytestmark = pytest.mark.integration


def claims(token: str) -> dict[str, object]:
    payload = token.split(".")[1]
    content: dict[str, object] = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return content


def whoami(kplane: Kplane, config: dict[str, object], file: Path) -> str:
    file.write_text(yaml.safe_dump(config))
    command = ["kubectl", "auth", "whoami", f"--kubeconfig={file}"]
    result = subprocess.run(command, env=kplane.environment, capture_output=True, text=True, check=True, timeout=60)
    return result.stdout


def test_token_is_published_or_issued_with_duration(kplane: Kplane, small: str, tmp_path: Path) -> None:
    kplane("create", "trusted", "--class", small)
    try:
        published = kplane("token", "trusted").stdout.strip()
        assert published in kplane("kubeconfig", "trusted", "--static").stdout
        # The control plane sleeps, and no gateway wakes sleeping control planes: the command does.
        issued = kplane("token", "trusted", "--duration", "15m").stdout.strip()
        assert issued != published
        assert claims(issued)["sub"] == claims(published)["sub"]
        assert 800 < int(str(claims(issued)["exp"])) - time.time() < 1000
        config = yaml.safe_load(kplane("kubeconfig", "trusted", "--static").stdout)
        config["users"][0]["user"] = {"token": issued}
        assert "controlplane-admin" in whoami(kplane, config, tmp_path / "issued")
        assert "is no time" in kplane("token", "trusted", "--duration", "soon", code=2).stderr
        assert "kubeadm-join" in kplane("join-token", "trusted", code=1).stderr
    finally:
        kplane("delete", "trusted", "--yes")


def test_join_token_prints_working_join_commands(
    kplane: Kplane, with_class: Callable[..., AbstractContextManager[str]], tmp_path: Path
) -> None:
    with with_class("joined", addons=["kubeadm-join"], virtual={"start": "Always"}) as joined:
        kplane("create", "nodes", "--class", joined)
        try:
            deadline = time.monotonic() + 60.0
            while "AddonsReady" not in (manifest := kplane("get", "nodes", "-o", "yaml").stdout) or (
                next(
                    condition
                    for condition in yaml.safe_load(manifest)["status"]["conditions"]
                    if condition["type"] == "AddonsReady"
                )["status"]
                != "True"
            ):
                assert time.monotonic() < deadline, manifest
            result = kplane("join-token", "nodes", "--ttl", "30m")
            assert "kplane register nodes" in result.stderr
            script = result.stdout.replace("kubeadm join", "echo")
            echoed = subprocess.run(["sh"], input=script, cwd=tmp_path, capture_output=True, text=True, check=True)
            option, file, token_option, token = echoed.stdout.split()
            assert (option, file, token_option) == ("--discovery-file", "discovery.conf", "--tls-bootstrap-token")
            discovery = yaml.safe_load((tmp_path / "discovery.conf").read_text())
            assert discovery["clusters"][0]["cluster"]["certificate-authority-data"]
            # The API server accepts the token.
            discovery["clusters"][0]["name"] = "tenant"
            discovery |= {
                "users": [{"name": "node", "user": {"token": token}}],
                "contexts": [{"name": "node", "context": {"cluster": "tenant", "user": "node"}}],
                "current-context": "node",
            }
            assert f"system:bootstrap:{token.partition('.')[0]}" in whoami(kplane, discovery, tmp_path / "bootstrap")
        finally:
            kplane("delete", "nodes", "--yes")


def test_commands_of_go_project_work(kplane: Kplane, environment: dict[str, str], small: str) -> None:
    path = Path(environment["KUBECONFIG"])
    former = yaml.safe_load(path.read_text())["current-context"]
    result = kplane("create", "cluster", "gopher")
    assert result.stdout.splitlines()[-1] == "kplane-gopher"
    try:
        assert yaml.safe_load(path.read_text())["current-context"] == "kplane-gopher"
        # The commands also work in the context of a control plane.
        assert "gopher" in kplane("get", "clusters").stdout
        assert kplane("config", "use-context", former).stdout == f"{former}\n"
        assert kplane("get-credentials", "gopher").stdout == "kplane-gopher\n"
        kplane("config", "use-context", former)
        assert kplane("config", "use-context", "gopher").stdout == "kplane-gopher\n"
    finally:
        kplane("config", "use-context", former)
        # Without a class, the data would be retained.
        policy = ["--type=merge", '--patch={"spec":{"deletionPolicy":"Destroy"}}']
        patch = ["kubectl", "patch", "controlplane", "gopher", *policy]
        subprocess.run(patch, env=environment, check=True, timeout=60)
        kplane("delete", "gopher", "--yes")
