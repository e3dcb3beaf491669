"""Decisions of the chart that depend on existing objects of the cluster."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kplane.embedded.handle import Handle
from kplane.embedded.kubectl import Kubectl

pytestmark = pytest.mark.integration

RELEASE = "my-kplane"
CLAIM = "data-my-kplane-etcd-0"
APART = "kplane-upgraded"
FREE = '{"metadata":{"finalizers":null}}'


@pytest.fixture
def kube(api_server: Handle) -> Kubectl:
    return api_server.kubectl


@pytest.fixture
async def claim_of_one(chart: Any, kube: Kubectl) -> AsyncIterator[None]:
    """Volume of an etcd with a single member, which its StatefulSet leaves behind."""
    async with claimed(chart, kube, CLAIM):
        yield


@pytest.fixture
async def claim_of_a_second(chart: Any, kube: Kubectl) -> AsyncIterator[None]:
    """Volume of a member that joined."""
    async with claimed(chart, kube, CLAIM.removesuffix("0") + "1"):
        yield


@contextlib.asynccontextmanager
async def claimed(chart: Any, kube: Kubectl, name: str) -> AsyncIterator[None]:
    stateful_set = chart.render(release=RELEASE).one("StatefulSet", f"{RELEASE}-etcd")
    (template,) = stateful_set["spec"]["volumeClaimTemplates"]
    metadata = {**template["metadata"], "name": name, "namespace": chart.namespace}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": template["spec"]}
    await kube.apply(json.dumps(claim))
    yield
    await kube.run("delete", "pvc", name, "-n", chart.namespace, "--wait=false")
    await kube.run("patch", "pvc", name, "-n", chart.namespace, "--type=merge", "-p", FREE)


def install(chart: Any, api_server: Handle, *settings: str, release: str = RELEASE) -> str:
    # The CRDs exist, and Helm does not own them.
    flags = ["--dry-run=server", f"--kubeconfig={api_server.admin_kubeconfig}", "--set=crds.enabled=false"]
    printed: str = chart.helm(
        "install", release, str(chart.directory), f"--namespace={chart.namespace}", *flags, *settings
    )
    return printed


@pytest.mark.usefixtures("claim_of_one")
def test_etcd_may_grow_from_one_member_to_three(chart: Any, api_server: Handle) -> None:
    """test_etcd_growth.py shows how new members join."""
    assert "kubectl rollout status" in install(chart, api_server, "--set=etcd.replicas=1")
    grown = install(chart, api_server, "--set=etcd.replicas=3,etcd.backup.accessMode=ReadWriteOnce")
    assert 'name: "my-kplane-etcd-join"' in grown


@pytest.mark.usefixtures("claim_of_one", "claim_of_a_second")
def test_etcd_may_not_shrink_to_one_member(chart: Any, api_server: Handle) -> None:
    """The remaining member would wait for a majority for ever."""
    with pytest.raises(chart.refused) as caught:
        install(chart, api_server, "--set=etcd.replicas=1")
    assert "their number can only grow. Set etcd.replicas to 3." in str(caught.value)


def test_first_installation_may_have_three_members(chart: Any, api_server: Handle) -> None:
    three = "--set=etcd.replicas=3,etcd.backup.accessMode=ReadWriteMany"
    assert "kubectl rollout status" in install(chart, api_server, three)


@pytest.fixture
async def restore(chart: Any, kube: Kubectl) -> AsyncIterator[str]:
    """Create the Job of a restore that has not ended. Return its name."""
    rendered = chart.render(release=RELEASE, settings={"etcd.restore.snapshot": "a.db"})
    (name,) = [name for name in rendered.names("Job") if "-etcd-restore-" in name]
    await kube.apply(json.dumps(rendered.one("Job", name)))
    yield name
    await kube.run("delete", "job", name, "-n", chart.namespace, "--cascade=background")


async def test_chart_refuses_to_start_etcd_during_a_restore(
    chart: Any, api_server: Handle, kube: Kubectl, restore: str
) -> None:
    """etcd would continue with the old data, beside members with restored data."""
    with pytest.raises(chart.refused) as caught:
        install(chart, api_server)
    assert f"Job {restore} has not succeeded. See kubectl logs -n {chart.namespace} job/{restore}" in str(caught.value)
    # Settings that correct the restore are accepted, and so is another release.
    assert "a Job restores b.db" in install(chart, api_server, "--set=etcd.restore.snapshot=b.db")
    assert "kubectl rollout status" in install(chart, api_server, release="other")

    success = '{"status": {"succeeded": 1}}'
    await kube.run(
        "patch", "job", restore, "-n", chart.namespace, "--subresource=status", "--type=merge", "-p", success
    )
    assert "kubectl rollout status" in install(chart, api_server)


@pytest.fixture
async def apart(chart: Any, api_server: Handle, kube: Kubectl) -> AsyncIterator[list[str]]:
    """Create a namespace for a release that is really installed. Return the flags of helm for it."""
    flags = [f"--namespace={APART}", f"--kubeconfig={api_server.admin_kubeconfig}"]
    await kube.run("create", "namespace", APART)
    yield flags
    # The API server has no controllers that run the Jobs of hooks.
    chart.helm("uninstall", RELEASE, "--no-hooks", *flags)
    claim = ("pvc", f"{RELEASE}-etcd-backup", "-n", APART)
    await kube.run("delete", *claim, "--wait=false")
    await kube.run("patch", *claim, "--type=merge", "-p", FREE)


async def test_pre_upgrade_backup_runs_only_if_etcd_runs(chart: Any, kube: Kubectl, apart: list[str]) -> None:
    """With a backup of a stopped etcd, the upgrade that starts etcd after a restore would never begin."""

    def run(command: str, *, snapshot: str = "") -> bool:
        """Run a command of helm. Return whether the release has a pre-upgrade hook."""
        settings = f"crds.enabled=false,admissionPolicy.enabled=false,etcd.restore.snapshot={snapshot}"
        chart.helm(command, RELEASE, str(chart.directory), f"--set={settings}", "--no-hooks", *apart)
        return "pre-upgrade" in chart.helm("get", "hooks", RELEASE, *apart)

    run("install")
    assert not run("upgrade", snapshot="a.db")
    (restore,) = await kube.names("jobs", "-n", APART)
    success = '{"status": {"succeeded": 1}}'
    await kube.run("patch", "job", restore, "-n", APART, "--subresource=status", "--type=merge", "-p", success)
    assert not run("upgrade")
    (backup,) = await kube.names("jobs", "-n", APART)
    assert run("upgrade")
    # An upgrade with the same settings of backups creates no further Job.
    assert await kube.names("jobs", "-n", APART) == [backup]
