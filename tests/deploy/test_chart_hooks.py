"""Hooks of the chart that helm runs before an upgrade and before an uninstallation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from kplane.controlplane_operator.backup.__main__ import main

pytestmark = pytest.mark.integration

KEY = "age10xrvnm6h3640jymngzm8fnd7st5wgxk6xdjuezggfpw447dh4agqds5tkt"
KEYS = {"etcd.backup.recipients": [KEY]}
BUCKET = {"url": "s3://backups/kplane", "endpoint": "https://s3.example.org", "region": "a", "credentialsSecret": "s3"}


def hooks(rendered: Any, event: str) -> dict[str, dict[str, Any]]:
    """Return the hooks of an event by kind, in the order of their weights."""
    manifests = [item for item in rendered.manifests if annotations(item).get("helm.sh/hook") == event]
    return {
        item["kind"]: item for item in sorted(manifests, key=lambda item: int(annotations(item)["helm.sh/hook-weight"]))
    }


def annotations(item: dict[str, Any]) -> dict[str, str]:
    metadata_annotations: dict[str, str] = item["metadata"].get("annotations", {})
    return metadata_annotations


def container(job: dict[str, Any]) -> dict[str, Any]:
    (container_spec,) = job["spec"]["template"]["spec"]["containers"]
    return container_spec


def test_pre_upgrade_hook_runs_the_backup_of_the_cron_job(chart: Any) -> None:
    manifests = hooks(chart.render(), "pre-upgrade")
    assert list(manifests) == ["Job"]
    job = manifests["Job"]
    assert "helm upgrade --no-hooks upgrades without a backup" in container(job)["args"][-1]
    # Helm prints the log of the failed pod, so the pod must fail soon and must not be restarted.
    assert annotations(job)["helm.sh/hook-output-log-policy"] == "hook-failed"
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    assert job["spec"]["backoffLimit"] == 1
    scheduled = chart.render().one("CronJob", "kplane-etcd-backup")["spec"]["jobTemplate"]["spec"]
    assert container({"spec": scheduled})["args"] == container(job)["args"][:-1]
    assert scheduled["template"]["metadata"]["labels"] == job["spec"]["template"]["metadata"]["labels"]


def test_pre_upgrade_hook_with_keys_creates_its_own_rbac(chart: Any) -> None:
    """The installed release may lack the RBAC objects. Helm deletes them after the hook."""
    manifests = hooks(chart.render(settings=KEYS), "pre-upgrade")
    assert set(manifests) == {
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
        "NetworkPolicy",
        "Job",
    }
    assert list(manifests)[-1] == "Job"
    assert {annotations(item)["helm.sh/hook-delete-policy"] for item in manifests.values()} == {
        "before-hook-creation,hook-succeeded"
    }
    job = manifests["Job"]
    account = job["spec"]["template"]["spec"]["serviceAccountName"]
    assert {item["metadata"]["name"] for item in manifests.values()} == {account} == {"kplane-before-upgrade"}
    lasting = chart.render(settings=KEYS)
    for kind in ("ClusterRole", "Role"):
        assert lasting.one(kind, "kplane-etcd-backup")["rules"] == manifests[kind]["rules"]


def test_backup_without_recipients_has_no_service_account(chart: Any) -> None:
    rendered = chart.render()
    assert not [name for name in rendered.names("ServiceAccount") if "backup" in name or "upgrade" in name]
    spec = rendered.one("CronJob", "kplane-etcd-backup")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is False


@pytest.mark.parametrize(
    "settings", [{}, KEYS, {**KEYS, "etcd.backup.bucket": BUCKET}], ids=["plain", "keys", "bucket"]
)
def test_backup_program_parses_the_flags_of_the_hook(
    chart: Any, settings: dict[str, Any], tmp_path: Path, capsys: Any
) -> None:
    """The program fails later, because the volumes of the pod are missing."""
    hook = container(hooks(chart.render(settings=settings), "pre-upgrade")["Job"])
    assert hook["command"][:4] == ["python", "-P", "-m", "kplane.controlplane_operator.backup"]
    arguments = [argument.replace("/etc/", f"{tmp_path}/") for argument in (*hook["command"][4:], *hook["args"])]
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("failed to save a backup: ")
    assert "So the upgrade was not begun" in error


def test_upgrade_that_restores_has_no_pre_upgrade_hook(chart: Any) -> None:
    assert hooks(chart.render(settings={"etcd.restore.snapshot": "a.db"}), "pre-upgrade") == {}


def test_pre_delete_hook_lists_control_planes_in_every_release(chart: Any, values_file: Path) -> None:
    rendered = chart.render(values_file)
    manifests = hooks(rendered, "pre-delete")
    assert list(manifests) == ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Job"]
    assert container(manifests["Job"])["command"] == ["python", "-P", "-m", "kplane.controlplane_operator.uninstall"]
    assert manifests["ClusterRole"]["rules"] == [
        {"apiGroups": ["controlplane.kplane.dev"], "resources": ["controlplanes"], "verbs": ["list"]}
    ]
    assert annotations(manifests["Job"])["helm.sh/hook-output-log-policy"] == "hook-failed"


def test_install_manifest_has_no_hooks(chart: Any) -> None:
    """kubectl would create the Jobs of the hooks."""
    text = (Path(__file__).parents[2] / "deploy" / "install.yaml").read_text()
    assert not [item for item in yaml.safe_load_all(text) if item and "helm.sh/hook" in annotations(item)]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"etcd.backup.bucket": BUCKET}, "etcd.backup.recipients is empty: what leaves the cluster is encrypted"),
        ({**KEYS, "etcd.backup.bucket.url": "s3://a"}, "etcd.backup.bucket.credentialsSecret is empty"),
        ({"etcd.backup.bucket.region": "a"}, "etcd.backup.bucket.url is empty"),
        ({"etcd.backup.recipients": ["age1x"]}, "at '/etcd/backup/recipients/0'"),
        ({"etcd.backup.bucket.url": "https://a"}, "at '/etcd/backup/bucket/url'"),
        ({"etcd.backup.bucket.endpoint": "http://a"}, "at '/etcd/backup/bucket/endpoint'"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_chart_refuses_invalid_settings_of_backup_storage(chart: Any, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(chart.refused) as caught:
        chart.render(settings=settings)
    assert says in str(caught.value)
