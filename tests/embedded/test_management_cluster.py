"""The management cluster as a library, with real programs."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kplane.binaries.programs import Binaries
from kplane.embedded.cluster import ManagementCluster
from kplane.embedded.errors import DirectoryInUse, KubectlFailed
from kplane.embedded.handle import Handle
from kplane.embedded.kubectl import Kubectl
from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import NAMESPACES
from kplane.provider.errors import Unauthorized
from kplane.workloads import find_processes

pytestmark = pytest.mark.integration


@pytest.fixture
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="kplane-embedded-"))
    yield path
    shutil.rmtree(path)


async def test_restart_in_same_directory_keeps_data_and_credentials(directory: Path, binaries: Binaries) -> None:
    async with ManagementCluster(directory, binaries=binaries, operators=False, fsync=False) as cluster:
        await cluster.handle.kubectl.run("create", "namespace", "kept")
        earlier = directory / "earlier.kubeconfig"
        shutil.copy(cluster.handle.admin_kubeconfig, earlier)
    assert find_processes(directory) == []

    async with ManagementCluster(directory, binaries=binaries, operators=False, fsync=False) as cluster:
        with_earlier_credentials = Kubectl(program=binaries.path("kubectl"), kubeconfig=earlier)
        assert "kept" in await with_earlier_credentials.names("namespaces")
        assert "kept" in await cluster.handle.kubectl.names("namespaces")
    assert find_processes(directory) == []


@pytest.mark.slow
async def test_two_clusters_run_at_once_and_share_neither_data_nor_ca(directory: Path, binaries: Binaries) -> None:
    async with contextlib.AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(
                ManagementCluster(directory / name, binaries=binaries, operators=False, fsync=False)
            )
            for name in ("first", "second")
        ]
        await first.handle.kubectl.run("create", "namespace", "only-first")
        assert "only-first" not in await second.handle.kubectl.names("namespaces")
        with pytest.raises(KubectlFailed, match=r"certificate signed by unknown authority|x509"):
            await first.handle.kubectl.run("get", "namespaces", f"--server={second.handle.server}")
    assert find_processes(directory) == []


async def test_start_in_a_directory_in_use_is_refused(api_server: Handle, binaries: Binaries) -> None:
    with pytest.raises(DirectoryInUse, match="already"):
        await ManagementCluster(api_server.directory, binaries=binaries, operators=False).__aenter__()
    assert "default" in await api_server.kubectl.names("namespaces")


async def test_cluster_serves_kplane_kinds_and_credentials_are_private(api_server: Handle) -> None:
    for kind in ("controlplanes", "controlplaneclasses", "controlplaneendpoints", "controlplaneregistrations"):
        assert await api_server.kubectl.items(kind) == []
    directory = api_server.directory / "credentials"
    files = [file for pattern in ("*.key", "*.kubeconfig") for file in directory.rglob(pattern) if file.is_file()]
    assert len(files) >= 10
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


async def test_namespace_gets_service_account_and_ca_and_is_deleted(api_server: Handle, eventually) -> None:
    kubectl = api_server.kubectl
    await kubectl.run("create", "namespace", "short-lived")
    await eventually(lambda: kubectl.names("serviceaccounts", "-n", "short-lived"), lambda names: "default" in names)
    await eventually(
        lambda: kubectl.names("configmaps", "-n", "short-lived"), lambda names: "kube-root-ca.crt" in names
    )
    await kubectl.run("delete", "namespace", "short-lived", "--timeout=120s")
    assert "short-lived" not in await kubectl.names("namespaces")


async def test_tenants_etcd_has_authentication_enabled(api_server: Handle) -> None:
    async with api_server.tenants_etcd.client() as etcd:
        assert (await etcd.access.status()).enabled


async def test_request_without_credentials_is_unauthorized(api_server: Handle) -> None:
    administrator = ClusterConfig.load(api_server.admin_kubeconfig)
    async with Client(
        ClusterConfig(server=api_server.server, ca_data=administrator.ca_data), field_manager="kplane"
    ) as anonymous:
        with pytest.raises(Unauthorized):
            await anonymous.list(NAMESPACES)
