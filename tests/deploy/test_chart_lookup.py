"""What the chart refuses because of what is in the cluster already."""

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
    """The volume of an etcd with one member, as its StatefulSet leaves it behind."""
    async with claimed(chart, kube, CLAIM):
        yield


@pytest.fixture
async def claim_of_a_second(chart: Any, kube: Kubectl) -> AsyncIterator[None]:
    """The volume of a member that joined."""
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
    # CRDs are there already, and not Helm's.
    flags = ["--dry-run=server", f"--kubeconfig={api_server.admin_kubeconfig}", "--set=crds.enabled=false"]
    printed: str = chart.helm(
        "install", release, str(chart.directory), f"--namespace={chart.namespace}", *flags, *settings
    )
    return printed


@pytest.mark.usefixtures("claim_of_one")
def test_the_number_of_members_grows(chart: Any, api_server: Handle) -> None:
    """How the new ones join is in test_etcd_growth.py."""
    assert "kubectl rollout status" in install(chart, api_server, "--set=etcd.replicas=1")
    grown = install(chart, api_server, "--set=etcd.replicas=3,etcd.backup.accessMode=ReadWriteOnce")
    assert 'name: "my-kplane-etcd-join"' in grown


@pytest.mark.usefixtures("claim_of_one", "claim_of_a_second")
def test_the_number_of_members_does_not_shrink(chart: Any, api_server: Handle) -> None:
    """The one that is left would wait for a majority for ever."""
    with pytest.raises(chart.refused) as caught:
        install(chart, api_server, "--set=etcd.replicas=1")
    assert "their number can only grow. Set etcd.replicas to 3." in str(caught.value)


def test_the_number_of_members_is_free_at_the_first_installation(chart: Any, api_server: Handle) -> None:
    three = "--set=etcd.replicas=3,etcd.backup.accessMode=ReadWriteMany"
    assert "kubectl rollout status" in install(chart, api_server, three)


@pytest.fixture
async def restore(chart: Any, kube: Kubectl) -> AsyncIterator[str]:
    """The Job of a restore, which has only begun; its name."""
    rendered = chart.render(release=RELEASE, settings={"etcd.restore.snapshot": "a.db"})
    (name,) = [name for name in rendered.names("Job") if "-etcd-restore-" in name]
    await kube.apply(json.dumps(rendered.one("Job", name)))
    yield name
    await kube.run("delete", "job", name, "-n", chart.namespace, "--cascade=background")


async def test_etcd_does_not_start_before_its_restore_has_ended(
    chart: Any, api_server: Handle, kube: Kubectl, restore: str
) -> None:
    """It would go on with the old data, beside members that have the new ones."""
    with pytest.raises(chart.refused) as caught:
        install(chart, api_server)
    assert f"Job {restore} has not succeeded. See kubectl logs -n {chart.namespace} job/{restore}" in str(caught.value)
    # What corrects the restore is let through, and so is another release.
    assert "a Job restores b.db" in install(chart, api_server, "--set=etcd.restore.snapshot=b.db")
    assert "kubectl rollout status" in install(chart, api_server, release="other")

    done = '{"status": {"succeeded": 1}}'
    await kube.run("patch", "job", restore, "-n", chart.namespace, "--subresource=status", "--type=merge", "-p", done)
    assert "kubectl rollout status" in install(chart, api_server)


@pytest.fixture
async def apart(chart: Any, api_server: Handle, kube: Kubectl) -> AsyncIterator[list[str]]:
    """A namespace for a release that is really installed: the end of helm's commands there."""
    flags = [f"--namespace={APART}", f"--kubeconfig={api_server.admin_kubeconfig}"]
    await kube.run("create", "namespace", APART)
    yield flags
    # Nothing runs the Jobs of hooks here.
    chart.helm("uninstall", RELEASE, "--no-hooks", *flags)
    claim = ("pvc", f"{RELEASE}-etcd-backup", "-n", APART)
    await kube.run("delete", *claim, "--wait=false")
    await kube.run("patch", *claim, "--type=merge", "-p", FREE)


async def test_a_backup_is_made_before_an_upgrade_if_etcd_runs(chart: Any, kube: Kubectl, apart: list[str]) -> None:
    """Not while a restore has stopped it: the upgrade that starts it again would never begin."""

    def run(command: str, *, snapshot: str = "") -> bool:
        """Tell whether a backup would be made before."""
        settings = f"crds.enabled=false,admissionPolicy.enabled=false,etcd.restore.snapshot={snapshot}"
        chart.helm(command, RELEASE, str(chart.directory), f"--set={settings}", "--no-hooks", *apart)
        return "pre-upgrade" in chart.helm("get", "hooks", RELEASE, *apart)

    run("install")
    assert not run("upgrade", snapshot="a.db")
    (restore,) = await kube.names("jobs", "-n", APART)
    done = '{"status": {"succeeded": 1}}'
    await kube.run("patch", "job", restore, "-n", APART, "--subresource=status", "--type=merge", "-p", done)
    assert not run("upgrade")
    (backup,) = await kube.names("jobs", "-n", APART)
    assert run("upgrade")
    # What changes nothing about backups makes no other one afterwards.
    assert await kube.names("jobs", "-n", APART) == [backup]
