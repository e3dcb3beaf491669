"""A management cluster with a gateway in front of its control planes."""

from __future__ import annotations

import base64
import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kplane.api.names import GATEWAY_NAMESPACE, gateway_secret_name, kubeconfig_secret_name, management_namespace
from kplane.binaries.envoy import find_envoy
from kplane.binaries.programs import Binaries
from kplane.controlplane_operator.pki.authorities import TenantAuthorities
from kplane.controlplane_operator.pki.primitives import issue_client
from kplane.controlplane_operator.pki.store import AUTHORITIES_SECRET
from kplane.embedded.__main__ import main
from kplane.embedded.cluster import ManagementCluster
from kplane.gateway.control_planes import CONTROL_PLANES
from kplane.provider import ApiError, Client, ClusterConfig, NotFound
from kplane.provider.client.resources import NAMESPACES, SECRETS
from kplane.workloads import find_processes

_NAME = "acme"


@pytest.fixture
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="kplane-embedded-"))
    yield path
    shutil.rmtree(path)


def test_a_gateway_needs_the_operators(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--directory", str(tmp_path), "--gateway", "--no-operators"])
    assert ended.value.code == 2
    assert "--gateway needs the operators" in capsys.readouterr().err


async def _code(config: ClusterConfig) -> int:
    async with Client(config) as tenant:
        try:
            await tenant.list(NAMESPACES)
        except ApiError as error:
            return error.status
        return 200


@pytest.mark.slow
@pytest.mark.integration
async def test_a_control_plane_is_reached_as_long_as_it_is_there(
    directory: Path,
    binaries: Binaries,
    eventually: Callable[..., Any],
    namespaces_go_at_once: Callable[..., Any],
) -> None:
    async with (
        ManagementCluster(directory, binaries=binaries, fsync=False, gateway=find_envoy()) as cluster,
        namespaces_go_at_once(ClusterConfig.load(cluster.handle.admin_kubeconfig)),
    ):
        client, gateway_ca = cluster.client, cluster.handle.gateway_ca
        assert gateway_ca is not None

        async def secret(of: str, namespace: str) -> dict[str, bytes]:
            found = await client.get(SECRETS, of, namespace=namespace)
            return {key: base64.b64decode(value) for key, value in found["data"].items()}

        async def gone() -> bool:
            try:
                await client.get(SECRETS, gateway_secret_name(_NAME), namespace=GATEWAY_NAMESPACE)
            except NotFound:
                return True
            return False

        await client.create(CONTROL_PLANES, {"metadata": {"name": _NAME}, "spec": {"deletionPolicy": "Destroy"}})
        published = await eventually(lambda: secret(kubeconfig_secret_name(_NAME), management_namespace(_NAME)))
        direct = ClusterConfig.from_kubeconfig(published["kubeconfig"])
        url = f"{cluster.handle.gateway_url}/clusters/{_NAME}/control-plane"
        through = dataclasses.replace(direct, server=url, ca_data=gateway_ca.read_bytes())
        await eventually(lambda: _code(through), lambda found: found == 200)

        keys = TenantAuthorities.from_secret(await secret(AUTHORITIES_SECRET, management_namespace(_NAME)))
        pair = issue_client(keys.client, user="admin", groups=("system:masters",))
        user = ClusterConfig(
            server=url, ca_data=through.ca_data, client_certificate=pair.certificate, client_key=pair.key
        )
        assert await _code(user) == 200

        # What a user deletes of it is there again.
        await client.delete(SECRETS, gateway_secret_name(_NAME), namespace=GATEWAY_NAMESPACE)
        await eventually(lambda: secret(gateway_secret_name(_NAME), GATEWAY_NAMESPACE))
        await eventually(lambda: _code(user), lambda found: found == 200)

        await client.delete(CONTROL_PLANES, _NAME)
        await eventually(lambda: _code(through), lambda found: found == 404)
        await eventually(gone)
    assert find_processes(directory) == []
