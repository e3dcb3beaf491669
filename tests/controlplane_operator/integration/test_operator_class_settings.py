"""Settings of a class on real API servers: flags, OIDC, audit log, encryption at rest, service CIDR."""

from __future__ import annotations

import itertools
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from kplane.components.names import apiserver_name
from kplane.controlplane_operator.kinds import CONTROL_PLANE_CLASSES
from kplane.pki.primitives import hosts_of
from kplane.provider import Client, ClusterConfig, Resource
from kplane.provider.client.resources import CONFIG_MAPS, SECRETS, SERVICES
from kplane.provider.errors import Unauthorized
from kplane.workloads import find_processes

from .issuer import Issuer, running_issuer

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

NAME = "set-up"
SELF_REVIEWS = Resource("authentication.k8s.io/v1", "SelfSubjectReview", "selfsubjectreviews", namespaced=False)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def issuer(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Issuer]:
    async with running_issuer(tmp_path_factory.mktemp("issuer")) as serving:
        yield serving


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tenant(field: Any, issuer: Issuer) -> AsyncIterator[Client]:
    """Administrator client of a control plane whose class sets all fields of `apiServer`."""
    api_server = {
        "extraArgs": ["--max-requests-inflight=77"],
        "serviceCIDR": "172.20.0.0/20",
        "oidc": [
            {
                "issuerURL": issuer.url,
                "clientIDs": ["kubernetes"],
                "certificateAuthority": issuer.ca,
                "usernameClaim": "name",
                "groupsClaim": "groups",
                "requiredClaims": {"team": "blue"},
            }
        ],
        "auditPolicy": {
            "omitStages": ["RequestReceived"],
            "rules": [
                {"level": "Metadata", "verbs": ["create"], "resources": [{"resources": ["configmaps"]}]},
                {"level": "None"},
            ],
        },
        "encryptedResources": ["secrets"],
        "memory": "Small",
    }
    await field.create("ControlPlaneClass", NAME, apiServer=api_server, allowedDestinations=[issuer.destination])
    await field.create("ControlPlane", NAME, classRef={"name": NAME}, deletionPolicy="Destroy")
    await field.becomes("ControlPlane", NAME, "Reconciled")
    async with Client(await field.tenant(NAME), field_manager="kplane") as client:
        yield client


async def test_service_addresses_are_from_service_cidr_of_class(field: Any, tenant: Client) -> None:
    assert (await field.get("ControlPlane", NAME))["status"]["serviceCIDR"] == "172.20.0.0/20"

    async def address() -> str:
        cluster_ip: str = (await tenant.get(SERVICES, "kubernetes", namespace="default"))["spec"]["clusterIP"]
        return cluster_ip

    assert await field.eventually(address) == "172.20.0.1"
    place = urlsplit(tenant.config.server)
    certificate = ssl.get_server_certificate((place.hostname, place.port))
    assert "172.20.0.1" in hosts_of(certificate.encode())


async def test_gogc_follows_memory_setting_of_class(field: Any, tenant: Client) -> None:
    assert await _environment(field, "GOGC") == ["25"]


@pytest.mark.slow
async def test_control_plane_keeps_service_cidr_when_its_class_changes(field: Any, tenant: Client) -> None:
    # A changed flag shows when the operator has applied the edit of the class.
    settings = {"serviceCIDR": "172.21.0.0/20", "extraArgs": ["--max-requests-inflight=78"], "memory": "Large"}
    change = {"spec": {"apiServer": settings}}
    await field.client.patch(CONTROL_PLANE_CLASSES, NAME, change)
    await field.eventually(lambda: _arguments(field), lambda found: "--max-requests-inflight=78" in found)
    assert "--service-cluster-ip-range=172.20.0.0/20" in await _arguments(field)
    assert await _environment(field, "GOGC") == ["100"]
    await field.lets_in(tenant.config)  # for the tests that follow


async def test_oidc_users_authenticate_with_prefix_and_required_claims(
    field: Any, tenant: Client, issuer: Issuer
) -> None:
    async def who(**claims: Any) -> dict[str, Any] | None:
        config = ClusterConfig(
            server=tenant.config.server,
            ca_data=tenant.config.ca_data,
            token=issuer.token(**{"aud": "kubernetes", "sub": "7", "name": "ada", "team": "blue"} | claims),
        )
        async with Client(config, field_manager="kplane") as client:
            try:
                review = await client.create(SELF_REVIEWS, {})
            except Unauthorized:
                return None
        info: dict[str, Any] = review["status"]["userInfo"]
        return info

    # The API server loads the issuer's keys in the background.
    user = await field.eventually(lambda: who(groups=["system:masters"]))
    assert user["username"] == "oidc:ada"
    assert set(user["groups"]) == {"oidc:system:masters", "system:authenticated"}
    assert await who(team="red") is None
    assert await who(aud="another") is None


async def test_secrets_are_encrypted_in_etcd_and_config_maps_are_not(field: Any, tenant: Client) -> None:
    encrypted = await keep(field, tenant, name="hidden")
    assert encrypted.startswith(b"k8s:enc:secretbox:v1:kplane:")
    assert b"sesame" not in encrypted
    await tenant.create(CONFIG_MAPS, {"metadata": {"name": "open", "namespace": "default"}, "data": {"word": "sesame"}})
    assert b"sesame" in await stored(field, f"/clusters/{NAME}/configmaps/default/open")


async def keep(field: Any, tenant: Client, *, name: str) -> bytes:
    """Create a Secret in the control plane, and return its value in etcd."""
    body = {"metadata": {"name": name, "namespace": "default"}, "stringData": {"word": "sesame"}}
    await tenant.create(SECRETS, body)
    return await stored(field, f"/clusters/{NAME}/secrets/default/{name}")


async def stored(field: Any, key: str) -> bytes:
    async with field.handle.tenants_etcd.client() as etcd:
        pair = await etcd.get(key.encode())
    assert pair is not None
    value: bytes = pair.value
    return value


async def test_audit_log_has_events_that_the_policy_selects(field: Any, tenant: Client) -> None:
    await tenant.create(CONFIG_MAPS, {"metadata": {"name": "audited", "namespace": "default"}})

    async def audited() -> list[dict[str, Any]]:
        lines = (field.state / apiserver_name(NAME) / "log").read_text().splitlines()
        events = [json.loads(line) for line in lines if line.startswith('{"kind":"Event"')]
        return [event for event in events if event["objectRef"].get("name") == "audited"]

    [event] = await field.eventually(audited)
    assert (event["verb"], event["objectRef"]["resource"], event["level"]) == ("create", "configmaps", "Metadata")


@pytest.mark.slow  # kube-apiserver reloads the encryption configuration once a minute
async def test_secrets_stay_readable_after_class_ends_encryption(field: Any, tenant: Client) -> None:
    await keep(field, tenant, name="earlier")
    await field.client.patch(CONTROL_PLANE_CLASSES, NAME, {"spec": {"apiServer": {"encryptedResources": []}}})
    numbers = itertools.count()

    async def is_plain() -> bool:
        return b"sesame" in await keep(field, tenant, name=f"plain-{next(numbers)}")

    await field.eventually(is_plain, timeout=120.0)
    assert (await tenant.get(SECRETS, "earlier", namespace="default"))["data"]["word"]


async def _environment(field: Any, name: str) -> list[str]:
    pids = find_processes(field.state / apiserver_name(NAME))
    variables = [variable for pid in pids for variable in Path(f"/proc/{pid}/environ").read_text().split("\0")]
    return [variable.removeprefix(f"{name}=") for variable in variables if variable.startswith(f"{name}=")]


async def _arguments(field: Any) -> list[str]:
    pids = find_processes(field.state / apiserver_name(NAME))
    return [argument for pid in pids for argument in Path(f"/proc/{pid}/cmdline").read_text().split("\0")]
