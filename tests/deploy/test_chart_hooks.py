"""What helm runs before an upgrade and before an uninstallation."""

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
    """The objects of an event in the order in which helm makes them, by kind."""
    found = [item for item in rendered.manifests if annotations(item).get("helm.sh/hook") == event]
    return {
        item["kind"]: item for item in sorted(found, key=lambda item: int(annotations(item)["helm.sh/hook-weight"]))
    }


def annotations(item: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = item["metadata"].get("annotations", {})
    return found


def container(job: dict[str, Any]) -> dict[str, Any]:
    (found,) = job["spec"]["template"]["spec"]["containers"]
    return found


def test_a_backup_is_made_before_an_upgrade_and_fails_it(chart: Any) -> None:
    found = hooks(chart.render(), "pre-upgrade")
    assert list(found) == ["Job"]
    job = found["Job"]
    assert "helm upgrade --no-hooks upgrades without a backup" in container(job)["args"][-1]
    # Helm shows the log of the pod, which has to be there then, and soon.
    assert annotations(job)["helm.sh/hook-output-log-policy"] == "hook-failed"
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    assert job["spec"]["backoffLimit"] == 1
    scheduled = chart.render().one("CronJob", "kplane-etcd-backup")["spec"]["jobTemplate"]["spec"]
    assert container({"spec": scheduled})["args"] == container(job)["args"][:-1]
    assert scheduled["template"]["metadata"]["labels"] == job["spec"]["template"]["metadata"]["labels"]


def test_a_hook_with_keys_brings_the_rights_that_it_needs(chart: Any) -> None:
    """The release that is there may know nothing of them. They go after the hook."""
    found = hooks(chart.render(settings=KEYS), "pre-upgrade")
    assert set(found) == {
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
        "NetworkPolicy",
        "Job",
    }
    assert list(found)[-1] == "Job"
    assert {annotations(item)["helm.sh/hook-delete-policy"] for item in found.values()} == {
        "before-hook-creation,hook-succeeded"
    }
    job = found["Job"]
    account = job["spec"]["template"]["spec"]["serviceAccountName"]
    assert {item["metadata"]["name"] for item in found.values()} == {account} == {"kplane-before-upgrade"}
    lasting = chart.render(settings=KEYS)
    for kind in ("ClusterRole", "Role"):
        assert lasting.one(kind, "kplane-etcd-backup")["rules"] == found[kind]["rules"]


def test_no_backup_has_rights_without_recipients(chart: Any) -> None:
    rendered = chart.render()
    assert not [name for name in rendered.names("ServiceAccount") if "backup" in name or "upgrade" in name]
    spec = rendered.one("CronJob", "kplane-etcd-backup")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is False


@pytest.mark.parametrize(
    "settings", [{}, KEYS, {**KEYS, "etcd.backup.bucket": BUCKET}], ids=["plain", "keys", "bucket"]
)
def test_the_program_knows_its_flags(chart: Any, settings: dict[str, Any], tmp_path: Path, capsys: Any) -> None:
    """It gets as far as what is not here: a pod with its volumes."""
    asked = container(hooks(chart.render(settings=settings), "pre-upgrade")["Job"])
    assert asked["command"][:4] == ["python", "-P", "-m", "kplane.controlplane_operator.backup"]
    here = [argument.replace("/etc/", f"{tmp_path}/") for argument in (*asked["command"][4:], *asked["args"])]
    assert main(here) == 1
    told = capsys.readouterr().err
    assert told.startswith("failed to save a backup: ")
    assert "So the upgrade was not begun" in told


def test_nothing_is_saved_before_an_upgrade_that_restores(chart: Any) -> None:
    assert hooks(chart.render(settings={"etcd.restore.snapshot": "a.db"}), "pre-upgrade") == {}


def test_each_release_asks_before_it_is_uninstalled(chart: Any, values_file: Path) -> None:
    rendered = chart.render(values_file)
    found = hooks(rendered, "pre-delete")
    assert list(found) == ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Job"]
    assert container(found["Job"])["command"] == ["python", "-P", "-m", "kplane.controlplane_operator.uninstall"]
    assert found["ClusterRole"]["rules"] == [
        {"apiGroups": ["controlplane.kplane.dev"], "resources": ["controlplanes"], "verbs": ["list"]}
    ]
    assert annotations(found["Job"])["helm.sh/hook-output-log-policy"] == "hook-failed"


def test_the_manifest_for_kubectl_has_no_hooks(chart: Any) -> None:
    """kubectl would run their Jobs."""
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
def test_a_storage_that_cannot_work_is_refused(chart: Any, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(chart.refused) as caught:
        chart.render(settings=settings)
    assert says in str(caught.value)
