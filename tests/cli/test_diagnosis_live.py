"""The doctor and the support bundle on a real management cluster."""

from __future__ import annotations

import base64
import json
import os
import signal
import stat
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kplane.embedded.handle import Handle
from kplane.workloads import find_processes

from .typed import Kplane

pytestmark = pytest.mark.integration

_PUBLIC = {
    "ca.crt",
    "tls.crt",
    "client-ca.crt",
    "signing-ca.crt",
    "sa.pub",
    "server",
    "host",
    "limits.json",
    "authentication.json",
    "namespace",
}
"""Keys of Secrets with values that are no secrets."""


def findings(kplane: Kplane, *, code: int = 0) -> list[dict[str, str]]:
    items: list[dict[str, str]] = json.loads(kplane("doctor", "-o", "json", code=code).stdout)["findings"]
    return items


def of(found: list[dict[str, str]], *checks: str) -> list[dict[str, str]]:
    return [finding for finding in found if finding["check"] in checks]


def test_doctor_finds_no_problem_in_healthy_cluster(kplane: Kplane) -> None:
    report = json.loads(kplane("doctor", "-o", "json").stdout)
    assert len(report["checks"]) > 15
    # Other tests may have left data behind, and the limits of this machine may be low.
    allowed = {"leftovers", "open-files", "inotify"}
    assert [finding for finding in report["findings"] if finding["check"] not in allowed] == []


def test_doctor_names_problems_with_repair_commands(kplane: Kplane, small: str) -> None:
    kplane("create", "sick", "--class", "missing-class", "--no-wait")
    kplane("register", "well")
    try:
        deadline = time.monotonic() + 30.0
        while not of(problems := findings(kplane, code=1), "not-ready") or not of(problems, "registrations"):
            assert time.monotonic() < deadline, problems
        (sick,) = of(problems, "not-ready")
        assert (sick["object"], sick["command"]) == ("ControlPlane sick", "kubectl get controlplaneclasses")
        assert "ClassNotFound" in sick["problem"]
        (registration,) = of(problems, "registrations")
        assert registration["object"] == "ControlPlaneRegistration well"
        text = kplane("doctor", code=1).stdout
        assert "error: ControlPlane sick: Ready is False (ClassNotFound)" in text
        assert "\n  kubectl get controlplaneclasses\n" in text
    finally:
        kplane("unregister", "well")
        kplane("delete", "sick", "--yes")


def test_doctor_reports_mcm_that_does_not_answer(kplane: Kplane, management_cluster: Handle) -> None:
    (pid, *_) = find_processes(management_cluster.directory / "runtime" / "mcm")
    os.kill(pid, signal.SIGSTOP)
    try:
        (problem,) = of(findings(kplane, code=1), "programs")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert problem["object"] == "mcm mcm"
    assert problem["command"] == f"tail -n 20 {management_cluster.directory / 'runtime' / 'mcm' / 'log'}"


def test_doctor_names_missing_rights_of_user(
    kplane: Kplane, kubectl_json: Callable[..., Any], environment: dict[str, str], tmp_path: Path
) -> None:
    role = ("--verb=get,list,watch", "--resource=controlplanes.controlplane.kplane.dev")
    kubectl_json("create", "serviceaccount", "reader", "-n", "default")
    kubectl_json("create", "clusterrole", "reader", *role)
    kubectl_json("create", "clusterrolebinding", "reader", "--clusterrole=reader", "--serviceaccount=default:reader")
    try:
        config = kubectl_json("config", "view", "--raw", "--flatten")
        token = kubectl_json("create", "token", "reader", "-n", "default")["status"]["token"]
        config["users"][0]["user"] = {"token": token}
        (tmp_path / "config").write_text(json.dumps(config))
        output = kplane("doctor", "-o", "json", KUBECONFIG=str(tmp_path / "config")).stdout
    finally:
        for kind in ("clusterrole", "clusterrolebinding", "serviceaccount"):
            subprocess.run(["kubectl", "delete", kind, "reader"], env=environment, check=True, timeout=60)
    rights = of(json.loads(output)["findings"], "rights")
    assert {"secrets", "controlplaneregistrations"} <= {finding["object"] for finding in rights}
    assert all("--user=system:serviceaccount:default:reader" in finding["command"] for finding in rights)
    assert all(finding["severity"] == "warning" for finding in rights)


def test_support_bundle_contains_no_secret_of_the_cluster(
    kplane: Kplane, small: str, kubectl_json: Callable[..., Any], tmp_path: Path
) -> None:
    kplane("create", "bundled", "--class", small)
    kplane("wake", "bundled")
    kplane("register", "bundled")
    file = tmp_path / "bundle.tar.gz"
    try:
        result = kplane("support-bundle", "--file", str(file))
        assert result.stdout == f"{file}\n"
        assert "File exists" in kplane("support-bundle", "--file", str(file), code=1).stderr
        secrets = kubectl_json("get", "secrets", "-A")["items"]
        static = kplane("kubeconfig", "bundled", "--static").stdout
    finally:
        kplane("unregister", "bundled")
        kplane("delete", "bundled", "--yes")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with tarfile.open(file) as archive:
        content = {
            name.partition("/")[2]: extracted.read().decode()
            for name in archive.getnames()
            if (extracted := archive.extractfile(name)) is not None
        }
    assert {
        "versions.json",
        "doctor.json",
        "objects/controlplanes.json",
        "objects/leases.json",
        "programs/controlplane-operator/log.txt",
        "programs/controlplane-operator/readyz.txt",
        "programs/mcm/clusters.txt",
    } <= content.keys()
    assert [name for name in content if name.endswith("failed.txt")] == []
    assert "bundled" in content["objects/controlplanes.json"]
    text = "\n".join(content.values())
    values = [
        (
            f"{item['metadata']['namespace']}/{item['metadata']['name']}",
            key,
            base64.b64decode(value).decode(errors="replace"),
        )
        for item in secrets
        for key, value in (item.get("data") or {}).items()
        if key not in _PUBLIC
    ]
    assert len(values) > 5
    for secret, key, value in values:
        for form in (value.strip(), json.dumps(value)[1:-1], base64.b64encode(value.encode()).decode()):
            assert len(form) < 8 or form not in text, (secret, key)
    (token,) = [line.split()[1] for line in static.splitlines() if line.split()[:1] == ["token:"]]
    assert token not in text
    assert "PRIVATE KEY" not in text
