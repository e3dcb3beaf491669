"""A management cluster with a gateway in front of its control planes."""

from __future__ import annotations

import base64
import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from kplane.api.names import GATEWAY_NAMESPACE, gateway_secret_name, kubeconfig_secret_name, management_namespace
from kplane.binaries.envoy import find_envoy
from kplane.binaries.programs import Binaries
from kplane.controlplane_operator.credentials.store import AUTHORITIES_SECRET
from kplane.controlplane_operator.kinds import CONTROL_PLANE_CLASSES as CLASSES
from kplane.embedded.__main__ import main
from kplane.embedded.cluster import ManagementCluster
from kplane.gateway.control_planes import CONTROL_PLANES
from kplane.pki.authorities import TenantAuthorities
from kplane.pki.primitives import issue_client
from kplane.provider import ApiError, Client, ClusterConfig, NotFound
from kplane.provider.client.resources import CONFIG_MAPS, NAMESPACES, SECRETS
from kplane.workloads import find_processes

_NAME = "acme"


@pytest.fixture
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="kplane-embedded-"))
    yield path
    shutil.rmtree(path)


def test_gateway_without_operators_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["--directory", str(tmp_path), "--gateway", "--no-operators"])
    assert exit_info.value.code == 2
    assert "--gateway needs the operators" in capsys.readouterr().err


async def _code(config: ClusterConfig) -> int:
    async with Client(config, field_manager="kplane") as tenant:
        try:
            await tenant.list(NAMESPACES)
        except ApiError as error:
            return error.status
        return 200


@pytest.mark.slow
@pytest.mark.integration
async def test_gateway_serves_control_plane_until_it_is_deleted(
    directory: Path,
    binaries: Binaries,
    eventually: Callable[..., Any],
    kubectl: Callable[..., Any],
    namespaces_go_at_once: Callable[..., Any],
) -> None:
    async with (
        ManagementCluster(directory, binaries=binaries, fsync=False, gateway=find_envoy()) as cluster,
        namespaces_go_at_once(ClusterConfig.load(cluster.handle.admin_kubeconfig)),
    ):
        client, gateway_ca = cluster.client, cluster.handle.gateway_ca
        assert gateway_ca is not None

        async def secret(of: str, namespace: str) -> dict[str, bytes]:
            secret = await client.get(SECRETS, of, namespace=namespace)
            return {key: base64.b64decode(value) for key, value in secret["data"].items()}

        async def urls() -> list[str]:
            return [endpoint["url"] for endpoint in (await client.get(CONTROL_PLANES, _NAME))["status"]["endpoints"]]

        async def gone() -> bool:
            try:
                await client.get(SECRETS, gateway_secret_name(_NAME), namespace=GATEWAY_NAMESPACE)
            except NotFound:
                return True
            return False

        await client.create(CLASSES, {"metadata": {"name": "joinable"}, "spec": {"addons": ["kubeadm-join"]}})
        spec = {"deletionPolicy": "Destroy", "classRef": {"name": "joinable"}, "virtual": {"start": "Always"}}
        await client.create(CONTROL_PLANES, {"metadata": {"name": _NAME}, "spec": spec})
        published = await eventually(lambda: secret(kubeconfig_secret_name(_NAME), management_namespace(_NAME)))
        external = ClusterConfig.from_kubeconfig(published["kubeconfig-external"])
        direct = ClusterConfig.from_kubeconfig(published["kubeconfig"])
        url = f"{cluster.handle.gateway_url}/clusters/{_NAME}/control-plane"
        assert (external.server, external.ca_data) == (url, gateway_ca.read_bytes())
        assert urlsplit(direct.server).path == ""
        assert await _code(direct) == 200
        await eventually(lambda: _code(external), lambda found: found == 200)
        status = (await client.get(CONTROL_PLANES, _NAME))["status"]
        assert {each["type"]: each["url"] for each in status["endpoints"]} == {
            "Internal": direct.server,
            "External": url,
            "Join": url,
        }

        kubeconfig = directory / "published"
        kubeconfig.write_bytes(published["kubeconfig-external"])
        assert "configmaps" in await kubectl(kubeconfig, "api-resources", "--cached=false")
        await kubectl(kubeconfig, "create", "configmap", "made", "--from-literal=by=kubectl")
        assert await kubectl(kubeconfig, "get", "configmap", "made", "-o", "jsonpath={.data.by}") == "kubectl"

        # A node reads this before it has credentials.
        async with Client(direct, field_manager="kplane") as tenant:
            info = await eventually(lambda: tenant.get(CONFIG_MAPS, "cluster-info", namespace="kube-public"))
        joined_cluster = yaml.safe_load(info["data"]["kubeconfig"])["clusters"][0]["cluster"]
        assert joined_cluster["server"] == url
        joining = ClusterConfig(server=url, ca_data=base64.b64decode(joined_cluster["certificate-authority-data"]))
        async with Client(joining, field_manager="kplane") as node:
            assert await node.get(CONFIG_MAPS, "cluster-info", namespace="kube-public") == info

        keys = TenantAuthorities.from_secret(await secret(AUTHORITIES_SECRET, management_namespace(_NAME)))
        pair = issue_client(keys.client, user="admin", groups=("system:masters",))
        user = ClusterConfig(
            server=url, ca_data=external.ca_data, client_certificate=pair.certificate, client_key=pair.key
        )
        assert await _code(user) == 200

        # The operator creates a deleted gateway Secret again.
        await client.delete(SECRETS, gateway_secret_name(_NAME), namespace=GATEWAY_NAMESPACE)
        await eventually(lambda: secret(gateway_secret_name(_NAME), GATEWAY_NAMESPACE))
        await eventually(lambda: _code(user), lambda found: found == 200)

        # With endpointPolicy Own, the gateway no longer serves the control plane.
        await client.patch(CONTROL_PLANES, _NAME, {"spec": {"endpointPolicy": "Own"}})
        await eventually(lambda: _code(external), lambda found: found == 401)
        await eventually(gone)
        kubeconfigs = await eventually(
            lambda: secret(kubeconfig_secret_name(_NAME), management_namespace(_NAME)),
            lambda found: ClusterConfig.from_kubeconfig(found["kubeconfig-external"]).server == direct.server,
        )
        assert await _code(ClusterConfig.from_kubeconfig(kubeconfigs["kubeconfig-external"])) == 200
        await client.patch(CONTROL_PLANES, _NAME, {"spec": {"endpointPolicy": None}})
        await eventually(lambda: _code(external), lambda found: found == 200)

        # With endpointStyle HostName, the control plane's own CA signs the certificate for that host name.
        await client.patch(CONTROL_PLANES, _NAME, {"spec": {"endpointStyle": "HostName"}})
        address = urlsplit(str(cluster.handle.gateway_url))
        host = f"{_NAME}.localhost"
        host_kubeconfigs = await eventually(
            lambda: secret(kubeconfig_secret_name(_NAME), management_namespace(_NAME)),
            lambda found: ClusterConfig.from_kubeconfig(found["kubeconfig-external"]).tls_server_name == host,
        )
        # Not every resolver knows names below localhost.
        config = ClusterConfig.from_kubeconfig(host_kubeconfigs["kubeconfig-external"])
        assert (config.server, config.ca_data) == (address.geturl(), host_kubeconfigs["ca.crt"])
        await eventually(urls, lambda found: f"https://{host}:{address.port}" in found)
        certified = dataclasses.replace(config, token=None, client_certificate=pair.certificate, client_key=pair.key)
        for each in (config, certified):
            await eventually(lambda each=each: _code(each), lambda found: found == 200)
        await eventually(lambda: _code(external), lambda found: found == 401)
        # The gateway Secret has the address and host name, and no credentials of the API server.
        gateway_secret = await secret(gateway_secret_name(_NAME), GATEWAY_NAMESPACE)
        assert gateway_secret == {"server": direct.server.encode(), "host": host.encode()}
        await client.patch(CONTROL_PLANES, _NAME, {"spec": {"endpointStyle": None}})
        await eventually(lambda: _code(external), lambda found: found == 200)

        # The gateway also serves a dedicated control plane with endpointPolicy Gateway.
        dedicated = {"mode": "Dedicated", "deletionPolicy": "Destroy", "endpointPolicy": "Gateway"}
        await client.create(CONTROL_PLANES, {"metadata": {"name": "globex"}, "spec": dedicated})
        published = await eventually(lambda: secret(kubeconfig_secret_name("globex"), management_namespace("globex")))
        at_gateway = ClusterConfig.from_kubeconfig(published["kubeconfig-external"])
        assert at_gateway.server == f"{cluster.handle.gateway_url}/clusters/globex/control-plane"
        await eventually(lambda: _code(at_gateway), lambda found: found == 200)
        keys = TenantAuthorities.from_secret(await secret(AUTHORITIES_SECRET, management_namespace("globex")))
        pair = issue_client(keys.client, user="admin", groups=("system:masters",))
        user = ClusterConfig(
            server=at_gateway.server, ca_data=external.ca_data, client_certificate=pair.certificate, client_key=pair.key
        )
        assert await _code(user) == 200
        await client.patch(CONTROL_PLANES, "globex", {"spec": {"endpointStyle": "HostName"}})
        user = dataclasses.replace(
            user, server=address.geturl(), tls_server_name="globex.localhost", ca_data=keys.serving_trust
        )
        await eventually(lambda: _code(user), lambda found: found == 200)

        await client.delete(CONTROL_PLANES, _NAME)
        await eventually(lambda: _code(external), lambda found: found == 401)
        await eventually(gone)
    assert find_processes(directory) == []
