"""`kplane` against a real management cluster."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from .typed import Kplane

pytestmark = pytest.mark.integration


def eventually_said(kplane: Kplane, *args: str, word: str) -> str:
    """Repeat the command until its output contains `word`, for at most 30 s."""
    deadline = time.monotonic() + 30.0
    while word not in (output := kplane(*args).stdout):
        assert time.monotonic() < deadline, output
    return output


def test_commands_cover_lifecycle_of_control_plane(kplane: Kplane, small: str) -> None:
    assert "there is no ControlPlane typed" in kplane("get", "typed", code=3).stderr
    error = kplane("create", "typed", "--fake-nodes", "3", code=1).stderr
    assert "start one with `kplane up --fake-nodes`" in error
    result = kplane("create", "typed", "--class", small)
    assert result.stdout.splitlines() == ["controlplane/typed created", "controlplane/typed is Hibernated"]
    assert "already exists" in kplane("create", "typed", code=1).stderr
    assert kplane("wake", "typed").stdout == "controlplane/typed is awake\n"

    head, *rows = kplane("list").stdout.splitlines()
    assert head.split() == ["NAME", "MODE", "PHASE", "READY", "AGE"]
    assert ["typed", "Virtual", "Ready", "True"] in [row.split()[:4] for row in rows]
    assert "controlplane/typed" in kplane("list", "-o", "name").stdout.split()
    assert json.loads(kplane("get", "typed", "-o", "json").stdout)["kind"] == "ControlPlane"
    assert yaml.safe_load(kplane("get", "typed", "-o", "yaml").stdout)["spec"]["classRef"] == {"name": small}
    assert small in kplane("get", "typed", "-o", "wide").stdout

    namespaces = kplane("connect", "typed", "--", "kubectl", "get", "namespaces", "-o", "name").stdout.split()
    assert "namespace/kube-system" in namespaces
    assert kplane("connect", "typed", "--", "echo", "a", "--", "b").stdout == "a -- b\n"
    assert kplane("connect", "typed", "--", "kubectl", "get", "nonsense", code=1).stderr
    # Commands of kplane find the management cluster from the context of a control plane.
    assert "controlplane/typed" in kplane("connect", "typed", "--", "kplane", "list", "-o", "name").stdout.split()
    assert "no program missing" in kplane("connect", "typed", "--", "missing", code=127).stderr
    static = yaml.safe_load(kplane("kubeconfig", "typed", "--static").stdout)
    assert "exec" not in static["users"][0]["user"]

    output = kplane("describe", "typed").stdout
    assert output.startswith("typed  Ready")
    assert f"class         {small}" in output
    assert "kplane register typed" in output
    kplane("register", "typed")
    assert "registration  typed" in kplane("describe", "typed").stdout
    kplane("unregister", "typed")

    assert kplane("sleep", "typed").stdout == "controlplane/typed sleeps\n"
    assert "its first request wakes it" in kplane("describe", "typed").stdout

    kplane("pause", "typed")
    assert "kplane resume typed" in eventually_said(kplane, "describe", "typed", word="paused")
    kplane("resume", "typed")

    error = kplane("delete", "typed", code=1).stderr
    assert "all its data" in error
    assert "pass --yes" in error
    assert kplane("delete", "typed", "--yes").stdout == "controlplane/typed deleted\n"


def test_sleep_fails_with_cause_that_keeps_control_plane_awake(kplane: Kplane, small: str) -> None:
    kplane("create", "busy", "--class", small)
    kplane("wake", "busy")
    kplane("connect", "busy", "--", "kubectl", "create", "job", "one", "--image=none")
    begun = time.monotonic()
    output = kplane("sleep", "busy", code=1).stderr
    assert "busy does not sleep: kept awake, because Job default/one runs" in output
    # An old cause also counts as an answer, after a delay in which the operator may name another cause.
    assert "Job default/one runs" in kplane("sleep", "busy", code=1).stderr
    assert time.monotonic() - begun < 100
    assert "there is no ControlPlane nosuch" in kplane("connect", "nosuch", "--", "true", code=3).stderr
    kplane("delete", "busy", "--yes")


def test_merged_kubeconfig_stays_valid(kplane: Kplane, small: str, environment: dict[str, str], planted: Path) -> None:
    config = Path(environment["KUBECONFIG"])
    credentials = Path(environment["XDG_CACHE_HOME"], "kplane", "credentials")
    shutil.rmtree(credentials, ignore_errors=True)
    kplane("create", "merged", "--class", small)
    kplane("wake", "merged")
    (former_context,) = [entry["name"] for entry in yaml.safe_load(config.read_text())["contexts"]]
    assert kplane("kubeconfig", "merged", "--merge").stdout == "kplane-merged\n"
    try:
        kubectl = ["kubectl", "get", "--raw", "/version"]
        subprocess.run(kubectl, env=environment, cwd=planted, capture_output=True, check=True, timeout=60)
        # If the management cluster is unreachable, the cached credential is used.
        alone = planted / "alone"
        alone.write_text(config.read_text().replace(str(config), str(planted / "absent")))
        elsewhere = environment | {"KUBECONFIG": str(alone)}
        subprocess.run(kubectl, env=elsewhere, capture_output=True, check=True, timeout=60)
        # After a refused credential, kubectl asks again, and the next command has a new credential.
        credential = next(path for path in credentials.iterdir() if path.suffix == "")
        credential.write_text(credential.read_text().replace('"token": "', '"token": "refused-'))
        subprocess.run(kubectl, env=environment, capture_output=True, check=False, timeout=60)
        subprocess.run(kubectl, env=environment, capture_output=True, check=True, timeout=60)
        assert "refused-" not in credential.read_text()
        # The current context is the control plane's, and leads to the management cluster.
        assert "merged" in kplane("get", "merged").stdout
        assert "has no kind ControlPlane" in kplane("get", "merged", "--context", "kplane-merged", code=1).stderr
    finally:
        subprocess.run(["kubectl", "config", "use-context", former_context], env=environment, check=True, timeout=60)
        kplane("delete", "merged", "--yes")
    assert not credential.exists()


def test_move_plan_names_size_and_blockers(kplane: Kplane, small: str) -> None:
    kplane("create", "planned", "--class", small)
    planned = kplane("move", "planned", "--to", "Dedicated", "--plan", code=1).stdout
    assert "keys" in planned.splitlines()[0]
    assert "install the gateway" in planned
    assert "give one of --to" in kplane("move", "planned", code=2).stderr
    assert (
        "does not move yet: this operator has no gateway"
        in kplane("move", "planned", "--to", "Dedicated", code=1).stderr
    )
    kplane("move", "planned", "--abort", "--no-wait")
    kplane("delete", "planned", "--yes")


def test_snapshot_is_created_and_restore_needs_identity(kplane: Kplane, small: str) -> None:
    kplane("create", "saved", "--class", small)
    assert "saved-1 completed" in kplane("backup", "create", "saved", "--snapshot", "saved-1").stdout
    assert kplane("backup", "list", "saved").stdout.splitlines()[1].split()[:3] == ["saved-1", "saved", "Completed"]
    assert "--identity-secret" in kplane("create", "again", "--from", "saved-1", code=1).stderr
    assert "name the snapshot by --from" in kplane("create", "again", "--identity-secret", "key", code=1).stderr
    kplane("create", "again", "--from", "saved-1", "--identity-secret", "key", "--class", small, "--no-wait")
    source = json.loads(kplane("get", "again", "-o", "json").stdout)["spec"]["source"]
    assert (source["snapshotRef"], source["identitySecretRef"]) == ({"name": "saved-1"}, {"name": "key"})
    kplane("delete", "again", "--yes")
    kplane("backup", "delete", "saved-1")
    kplane("delete", "saved", "--yes")


def test_missing_kubeconfig_has_its_own_exit_code(kplane: Kplane, tmp_path: Path) -> None:
    assert "set KUBECONFIG" in kplane("list", code=5, KUBECONFIG=str(tmp_path / "missing")).stderr
