"""Control planes that sleep behind a gateway, and the first request to each."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from kubernetes import config as official_config
from kubernetes.client import CoreV1Api

from kplane.api.names import WAKE_REQUESTED_ANNOTATION, management_namespace
from kplane.binaries.programs import Binaries
from kplane.controlplane_operator.credentials.store import AUTHORITIES_SECRET
from kplane.embedded.cluster import ManagementCluster
from kplane.gateway.control_planes import CONTROL_PLANES
from kplane.pki.kubeconfig import render_kubeconfig
from kplane.pki.primitives import create_signing_key, issue_client
from kplane.pki.signatures import sign_claims
from kplane.provider import ApiError, Client, ClusterConfig, Event, Informer, Unreachable
from kplane.provider.client.resources import CONFIG_MAPS, NAMESPACES, SECRETS

from .behind_gateway import certified_config, external_config, gateway_cluster

_SLEEPER = "globex"
_NAMED = "umbrella"
_KEYLESS = "vehement"
_ON_DEMAND = {"deletionPolicy": "Destroy", "virtual": {"start": "OnDemand"}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(binaries: Binaries, namespaces_go_at_once: Callable[..., Any]) -> AsyncIterator[ManagementCluster]:
    async with gateway_cluster(binaries, namespaces_go_at_once) as cluster:
        yield cluster


async def _code(config: ClusterConfig) -> int:
    async with Client(config, field_manager="kplane") as tenant:
        try:
            await tenant.list(NAMESPACES)
        except ApiError as error:
            return error.status
        return 200


async def _refusal(config: ClusterConfig) -> str:
    """Return the error message of a request, which is sent once. Clients such as kubectl would retry it."""
    async with Client(config, field_manager="kplane") as tenant:
        try:
            await tenant.list(NAMESPACES)
        except ApiError as error:
            return str(error)
        return ""


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.asyncio(loop_scope="module")
async def test_first_request_wakes_control_plane_and_gets_its_answer(
    cluster: ManagementCluster, eventually: Callable[..., Any], kubectl: Callable[..., Any], tmp_path: Path
) -> None:
    client = cluster.client
    wake_requests: set[str | None] = set()

    async def phase() -> str:
        control_plane = await client.get(CONTROL_PLANES, _SLEEPER)
        if value := control_plane["metadata"].get("annotations", {}).get(WAKE_REQUESTED_ANNOTATION):
            wake_requests.add(value)
        return str(control_plane.get("status", {}).get("phase"))

    await client.create(CONTROL_PLANES, {"metadata": {"name": _SLEEPER}, "spec": _ON_DEMAND})
    await eventually(phase, lambda found: found == "Hibernated")
    external = await external_config(client, _SLEEPER)
    administrator, authorities = await certified_config(client, _SLEEPER)
    kubeconfig = tmp_path / "kubeconfig"
    assert external.ca_data is not None
    kubeconfig.write_bytes(
        render_kubeconfig(server=external.server, ca=external.ca_data, user="me", token=external.token)
    )

    forged = sign_claims({"iss": "https://kubernetes.default.svc.cluster.local"}, key=create_signing_key())
    anonymous = dataclasses.replace(external, token=None)
    assert await _code(anonymous) == 401
    stranger = issue_client(authorities.front_proxy, user="admin", groups=("system:masters",))
    credentials = {"client_certificate": stranger.certificate, "client_key": stranger.key}
    for client_config in (dataclasses.replace(external, token=forged), dataclasses.replace(anonymous, **credentials)):
        assert await _code(client_config) == 401
    unknown = dataclasses.replace(external, server=f"{cluster.handle.gateway_url}/clusters/initech/control-plane")
    assert await _code(unknown) == 401
    assert (await phase(), wake_requests) == ("Hibernated", set())

    def official() -> list[str]:
        api = CoreV1Api(official_config.new_client_from_config(str(kubeconfig)))
        return [namespace.metadata.name for namespace in api.list_namespace().items]

    def note(event: Event) -> None:
        wake_requests.add(event.object["metadata"].get("annotations", {}).get(WAKE_REQUESTED_ANNOTATION))

    informer = Informer(client, CONTROL_PLANES, name=_SLEEPER)
    informer.add_handler(note)
    informer.start()
    await informer.wait_synced()
    try:
        *refusals, listed, named = await asyncio.gather(
            *(_refusal(config) for config in (external, administrator) for _ in range(9)),
            kubectl(kubeconfig, "get", "namespaces", "-o", "name"),
            asyncio.to_thread(official),
        )
    finally:
        await informer.aclose()
    assert refusals == [""] * 18
    assert "namespace/kube-system" in listed
    assert "kube-system" in named
    await eventually(phase, lambda found: found == "Ready")
    assert len(wake_requests - {None}) == 1
    await client.delete(CONTROL_PLANES, _SLEEPER)
    await eventually(lambda: _code(external), lambda found: found == 401)


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(600)
@pytest.mark.asyncio(loop_scope="module")
async def test_changes_of_other_control_planes_keep_streams_open(
    cluster: ManagementCluster, eventually: Callable[..., Any]
) -> None:
    client, created, stop = cluster.client, list[str](), asyncio.Event()
    eventually = partial(eventually, timeout=240.0)
    others = [[f"other-{number}-{index}" for index in range(10)] for number in range(2)]
    await client.create(CONTROL_PLANES, {"metadata": {"name": "steady"}, "spec": _ON_DEMAND})
    external = await eventually(lambda: external_config(client, "steady"))
    await eventually(lambda: _code(external), lambda code: code == 200)

    async def phases(names: list[str]) -> set[str]:
        control_planes = {item["metadata"]["name"]: item for item in (await client.list(CONTROL_PLANES)).items}
        return {str(control_planes[name].get("status", {}).get("phase")) for name in names if name in control_planes}

    async def come_and_go(names: list[str]) -> None:
        for name in names:
            await client.create(CONTROL_PLANES, {"metadata": {"name": name}, "spec": _ON_DEMAND})
        await eventually(lambda: phases(names), lambda found: found == {"Hibernated"})
        external = await external_config(client, names[0])
        await eventually(lambda: _code(external), lambda code: code == 200)
        for name in names:
            await client.delete(CONTROL_PLANES, name)
        await eventually(lambda: phases(names), lambda found: not found)

    async with Client(external, field_manager="kplane") as tenant:
        informer = Informer(tenant, CONFIG_MAPS, namespace="default")
        informer.start()
        await informer.wait_synced()

        async def load() -> None:
            while not stop.is_set():
                name = f"made-{len(created)}"
                await tenant.create(CONFIG_MAPS, {"metadata": {"name": name, "namespace": "default"}})
                created.append(name)

        loading = asyncio.create_task(load())
        try:
            for names in others:
                await come_and_go(names)
        finally:
            stop.set()
        await loading
        await eventually(lambda: informer.get(created[-1], namespace="default"))
        assert not any(informer.restarts.values())
        await informer.aclose()
    assert len(created) > 10
    await client.delete(CONTROL_PLANES, "steady")


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.asyncio(loop_scope="module")
async def test_first_connection_to_host_name_wakes_control_plane(
    cluster: ManagementCluster, eventually: Callable[..., Any], kubectl: Callable[..., Any], tmp_path: Path
) -> None:
    client = cluster.client

    async def phase() -> str:
        control_plane = await client.get(CONTROL_PLANES, _NAMED)
        return str(control_plane.get("status", {}).get("phase"))

    spec = {"deletionPolicy": "Destroy", "virtual": {"start": "OnDemand"}, "endpointStyle": "HostName"}
    await client.create(CONTROL_PLANES, {"metadata": {"name": _NAMED}, "spec": spec})
    await eventually(phase, lambda found: found == "Hibernated")
    user, _ = await certified_config(client, _NAMED)
    # Not every resolver knows names below localhost.
    assert (user.server, user.tls_server_name) == (cluster.handle.gateway_url, f"{_NAMED}.localhost")
    unknown = dataclasses.replace(user, tls_server_name="hooli.localhost")
    with pytest.raises(Unreachable):
        await _code(unknown)
    assert await phase() == "Hibernated"
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(user.to_kubeconfig()))
    # The gateway closes connections to a host name until it has the route, and kubectl does not retry.
    await eventually(lambda: _code(user), lambda code: code == 200)
    assert "namespace/kube-system" in await kubectl(kubeconfig, "get", "namespaces", "-o", "name")
    await eventually(phase, lambda found: found == "Ready")
    async with Client(user, field_manager="kplane") as tenant:
        discovery = await tenant.request("GET", "/.well-known/openid-configuration")
    port = urlsplit(cluster.handle.gateway_url).port
    assert discovery["jwks_uri"] == f"https://{_NAMED}.localhost:{port}/openid/v1/jwks"
    await client.delete(CONTROL_PLANES, _NAMED)


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.asyncio(loop_scope="module")
async def test_request_gets_the_reason_if_a_key_was_lost_during_sleep(
    cluster: ManagementCluster, eventually: Callable[..., Any]
) -> None:
    client = cluster.client

    async def phase() -> str:
        return str((await client.get(CONTROL_PLANES, _KEYLESS)).get("status", {}).get("phase"))

    await client.create(CONTROL_PLANES, {"metadata": {"name": _KEYLESS}, "spec": _ON_DEMAND})
    await eventually(phase, lambda found: found == "Hibernated")
    external = await external_config(client, _KEYLESS)
    lost = {"data": {"sa.key": None}}
    await client.patch(SECRETS, AUTHORITIES_SECRET, lost, namespace=management_namespace(_KEYLESS))
    async with asyncio.timeout(15):
        refusal = await _refusal(external)
    assert "no entry sa.key" in refusal
    await client.delete(CONTROL_PLANES, _KEYLESS)
