"""What the operator publishes for the gateway: a control plane of it is reached through the gateway, and goes again."""

from __future__ import annotations

import base64
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kplane.api.names import GATEWAY_NAMESPACE, gateway_secret_name, kubeconfig_secret_name, management_namespace
from kplane.controlplane_operator.pki.authorities import TenantAuthorities
from kplane.controlplane_operator.pki.primitives import issue_client
from kplane.controlplane_operator.pki.store import AUTHORITIES_SECRET
from kplane.embedded.handle import Handle
from kplane.gateway.control_planes import CONTROL_PLANES
from kplane.provider import ApiError, Client, ClusterConfig, NotFound
from kplane.provider.client.resources import NAMESPACES, SECRETS

from .gateway_process import gateway_process

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


async def test_a_control_plane_is_reached_as_long_as_it_is_there(
    management_cluster: Handle,
    envoy: Path,
    tmp_path: Path,
    hold_port: Callable[[], int],
    eventually: Callable[..., Any],
    namespaces_go_at_once: Callable[..., Any],
) -> None:
    name = f"reached-{os.getpid()}"

    async def secret(of: str, namespace: str) -> dict[str, bytes]:
        found = await client.get(SECRETS, of, namespace=namespace)
        return {key: base64.b64decode(value) for key, value in found["data"].items()}

    async def code(config: ClusterConfig) -> int:
        async with Client(config) as tenant:
            try:
                await tenant.list(NAMESPACES)
            except ApiError as error:
                return error.status
            return 200

    async def gone() -> bool:
        try:
            await client.get(SECRETS, gateway_secret_name(name), namespace=GATEWAY_NAMESPACE)
        except NotFound:
            return True
        return False

    admin = ClusterConfig.load(management_cluster.admin_kubeconfig)
    async with (
        namespaces_go_at_once(admin),
        Client(admin) as client,
        gateway_process(management_cluster, tmp_path, envoy=envoy, hold_port=hold_port) as process,
    ):
        process.start()
        await client.create(CONTROL_PLANES, {"metadata": {"name": name}, "spec": {"deletionPolicy": "Destroy"}})
        published = await eventually(lambda: secret(kubeconfig_secret_name(name), management_namespace(name)))
        direct = ClusterConfig.from_kubeconfig(published["kubeconfig"])
        through = dataclasses.replace(direct, server=process.config(name).server, ca_data=process.ca)
        await eventually(lambda: code(through), lambda found: found == 200)

        keys = TenantAuthorities.from_secret(await secret(AUTHORITIES_SECRET, management_namespace(name)))
        pair = issue_client(keys.client, user="admin", groups=("system:masters",))
        user = process.config(name, client_certificate=pair.certificate, client_key=pair.key)
        assert await code(user) == 200

        # What a user deletes of it is there again.
        await client.delete(SECRETS, gateway_secret_name(name), namespace=GATEWAY_NAMESPACE)
        await eventually(lambda: secret(gateway_secret_name(name), GATEWAY_NAMESPACE))
        await eventually(lambda: code(user), lambda found: found == 200)

        await client.delete(CONTROL_PLANES, name)
        await eventually(lambda: code(through), lambda found: found == 404)
        await eventually(gone)
        assert process.end() == 0
