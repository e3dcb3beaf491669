"""Orphaned components: the operator stops the components of control planes that were deleted without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kplane.components.names import apiserver_name, etcd_name, mcm_name
from kplane.controlplane_operator.gc import ComponentCollector
from kplane.controlplane_operator.kinds import CONTROL_PLANE_REGISTRATIONS, CONTROL_PLANES
from kplane.controlplane_operator.registrations.dedicated_mcm import DedicatedMcms, account_of
from kplane.controlplane_operator.registrations.identities import McmIdentities
from kplane.embedded.handle import Handle
from kplane.provider import Cache, Client, ClusterConfig, ProviderError
from kplane.provider.client.resources import NAMESPACES, SERVICE_ACCOUNTS
from kplane.workloads import Component, Lifetime, Phase, ProcessRuntime

pytestmark = pytest.mark.integration


def orphans_of(client: Client, runtime: ProcessRuntime) -> ComponentCollector:
    identities = McmIdentities(client, Cache(client))
    return ComponentCollector(client, runtime=runtime, mcms=DedicatedMcms(runtime, identities=identities))


async def test_components_without_control_plane_stop_and_keep_their_data(api_server: Handle, tmp_path: Path) -> None:
    names = [apiserver_name("ghost"), etcd_name("ghost"), apiserver_name("present")]
    async with (
        Client(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="kplane") as client,
        ProcessRuntime(tmp_path / "runtime", programs=[Path("/bin")]) as runtime,
    ):
        await client.create(CONTROL_PLANES, {"metadata": {"name": "present"}, "spec": {}})
        try:
            for name in names:
                await runtime.apply(
                    Component(name=name, program="sleep", args=("1000",), data=True, lifetime=Lifetime.BOUND)
                )
            await orphans_of(client, runtime).collect()
            assert [name for name in names if runtime.state(name).phase is not Phase.ABSENT] == names[2:]
            assert sorted(runtime.names()) == sorted(names)
        finally:
            await client.delete(CONTROL_PLANES, "present")


async def test_mcm_without_registration_is_removed_with_its_account(api_server: Handle, tmp_path: Path) -> None:
    async with (
        Client(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="kplane") as client,
        ProcessRuntime(tmp_path / "runtime", programs=[Path("/bin")]) as runtime,
    ):
        body = {"metadata": {"name": "present"}, "spec": {"controlPlaneRef": {"name": "present"}}}
        uid = (await client.create(CONTROL_PLANE_REGISTRATIONS, body))["metadata"]["uid"]
        # A deleted registration may have had the name of a present registration.
        names = [mcm_name("present", uid="uid-of-a-former-one"), mcm_name("present", uid=uid)]
        await client.create(NAMESPACES, {"metadata": {"name": "kplane-cp-present"}})
        accounts = [account_of(name) for name in names]
        try:
            for name, account in zip(names, accounts, strict=True):
                await client.create(SERVICE_ACCOUNTS, {"metadata": account._asdict()})
                await runtime.apply(Component(name=name, program="sleep", args=("1000",), lifetime=Lifetime.BOUND))
            await orphans_of(client, runtime).collect()
            assert list(runtime.names()) == names[1:]
            service_accounts = await client.list(SERVICE_ACCOUNTS, namespace="kplane-cp-present")
            assert {item["metadata"]["name"] for item in service_accounts.items} - {"default"} == {accounts[1].name}
        finally:
            await client.delete(NAMESPACES, "kplane-cp-present")
            await client.delete(CONTROL_PLANE_REGISTRATIONS, "present")


async def test_components_run_on_while_management_cluster_is_unreachable(tmp_path: Path) -> None:
    config = ClusterConfig(server="https://127.0.0.1:1", ca_data=None, token="none")
    async with (
        Client(config, timeout_seconds=2.0, field_manager="kplane") as client,
        ProcessRuntime(tmp_path / "runtime", programs=[Path("/bin")]) as runtime,
    ):
        component = Component(name=apiserver_name("a"), program="sleep", args=("1000",), lifetime=Lifetime.BOUND)
        await runtime.apply(component)
        with pytest.raises(ProviderError):
            await orphans_of(client, runtime).collect()
        assert runtime.state(component.name).phase is Phase.READY
