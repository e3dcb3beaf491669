"""Control planes that sleep behind a gateway, and the first request that each gets."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from kubernetes import config as official_config
from kubernetes.client import CoreV1Api

from kplane.api.names import (
    WAKE_REQUESTED_ANNOTATION,
    kubeconfig_secret_name,
    management_namespace,
)
from kplane.binaries.envoy import find_envoy
from kplane.binaries.programs import Binaries
from kplane.controlplane_operator.pki.authorities import TenantAuthorities
from kplane.controlplane_operator.pki.kubeconfig import render_kubeconfig
from kplane.controlplane_operator.pki.primitives import create_signing_key, issue_client
from kplane.controlplane_operator.pki.signatures import sign_claims
from kplane.controlplane_operator.pki.store import AUTHORITIES_SECRET
from kplane.embedded.cluster import ManagementCluster
from kplane.gateway.control_planes import CONTROL_PLANES
from kplane.provider import ApiError, Client, ClusterConfig, Event, Informer
from kplane.provider.client.resources import NAMESPACES, SECRETS
from kplane.workloads import find_processes

_SLEEPER = "globex"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(binaries: Binaries, namespaces_go_at_once: Callable[..., Any]) -> AsyncIterator[ManagementCluster]:
    directory = Path(tempfile.mkdtemp(prefix="kplane-embedded-"))
    async with (
        ManagementCluster(directory, binaries=binaries, fsync=False, gateway=find_envoy()) as made,
        namespaces_go_at_once(ClusterConfig.load(made.handle.admin_kubeconfig)),
    ):
        yield made
        # Shown if a test has failed.
        for log in ("runtime/kplane-gateway/log", "gateway/runtime/envoy/log"):
            sys.stdout.write((directory / log).read_text()[-8000:])
    assert find_processes(directory) == []
    shutil.rmtree(directory)


async def _code(config: ClusterConfig) -> int:
    async with Client(config) as tenant:
        try:
            await tenant.list(NAMESPACES)
        except ApiError as error:
            return error.status
        return 200


async def _refusal(config: ClusterConfig) -> str:
    """Return what the answer to one request says against it; kubectl and others would send it again."""
    async with Client(config) as tenant:
        try:
            await tenant.list(NAMESPACES)
        except ApiError as error:
            return str(error)
        return ""


async def _secret(client: Client, name: str, namespace: str) -> dict[str, bytes]:
    found = await client.get(SECRETS, name, namespace=namespace)
    return {key: base64.b64decode(value) for key, value in found["data"].items()}


async def _through(cluster: ManagementCluster, name: str) -> ClusterConfig:
    """Return how a user with the published kubeconfig reaches a control plane through the gateway."""
    published = await _secret(cluster.client, kubeconfig_secret_name(name), management_namespace(name))
    return ClusterConfig.from_kubeconfig(published["kubeconfig-external"])


async def _administrator(cluster: ManagementCluster, name: str) -> tuple[ClusterConfig, TenantAuthorities]:
    """Return how a user with a client certificate reaches a control plane, and its keys."""
    through = await _through(cluster, name)
    keys = await _secret(cluster.client, AUTHORITIES_SECRET, management_namespace(name))
    authorities = TenantAuthorities.from_secret(keys)
    pair = issue_client(authorities.client, user="admin", groups=("system:masters",))
    user = dataclasses.replace(through, token=None, client_certificate=pair.certificate, client_key=pair.key)
    return user, authorities


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.asyncio(loop_scope="module")
async def test_the_first_request_wakes_a_control_plane_and_is_answered(
    cluster: ManagementCluster, eventually: Callable[..., Any], kubectl: Callable[..., Any], tmp_path: Path
) -> None:
    client = cluster.client
    asked: set[str | None] = set()

    async def phase() -> str:
        found = await client.get(CONTROL_PLANES, _SLEEPER)
        if value := found["metadata"].get("annotations", {}).get(WAKE_REQUESTED_ANNOTATION):
            asked.add(value)
        return str(found.get("status", {}).get("phase"))

    spec = {"deletionPolicy": "Destroy", "virtual": {"start": "OnDemand"}}
    await client.create(CONTROL_PLANES, {"metadata": {"name": _SLEEPER}, "spec": spec})
    await eventually(phase, lambda found: found == "Hibernated")
    through = await _through(cluster, _SLEEPER)
    administrator, authorities = await _administrator(cluster, _SLEEPER)
    kubeconfig = tmp_path / "kubeconfig"
    assert through.ca_data is not None
    kubeconfig.write_bytes(render_kubeconfig(server=through.server, ca=through.ca_data, user="me", token=through.token))

    # Until the gateway knows it, it has no such path.
    forged = sign_claims({"iss": "https://kubernetes.default.svc.cluster.local"}, key=create_signing_key())
    nobody = dataclasses.replace(through, token=None)
    await eventually(lambda: _code(nobody), lambda code: code == 401)
    stranger = issue_client(authorities.front_proxy, user="admin", groups=("system:masters",))
    credentials = {"client_certificate": stranger.certificate, "client_key": stranger.key}
    for refused in (dataclasses.replace(through, token=forged), dataclasses.replace(nobody, **credentials)):
        assert await _code(refused) == 401
    unknown = dataclasses.replace(through, server=f"{cluster.handle.gateway_url}/clusters/initech/control-plane")
    assert await _code(unknown) == 404
    assert (await phase(), asked) == ("Hibernated", set())

    def official() -> list[str]:
        api = CoreV1Api(official_config.new_client_from_config(str(kubeconfig)))
        return [each.metadata.name for each in api.list_namespace().items]

    def note(event: Event) -> None:
        asked.add(event.object["metadata"].get("annotations", {}).get(WAKE_REQUESTED_ANNOTATION))

    informer = Informer(client, CONTROL_PLANES, name=_SLEEPER)
    informer.add_handler(note)
    informer.start()
    await informer.wait_synced()
    try:
        *refusals, listed, named = await asyncio.gather(
            *(_refusal(config) for config in (through, administrator) for _ in range(9)),
            kubectl(kubeconfig, "get", "namespaces", "-o", "name"),
            asyncio.to_thread(official),
        )
    finally:
        await informer.aclose()
    assert refusals == [""] * 18
    assert "namespace/kube-system" in listed
    assert "kube-system" in named
    await eventually(phase, lambda found: found == "Ready")
    assert len(asked - {None}) == 1
    await client.delete(CONTROL_PLANES, _SLEEPER)
    await eventually(lambda: _code(through), lambda found: found == 404)
