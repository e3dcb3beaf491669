"""Credentials that wake sleeping control planes behind a gateway, with and without an OIDC issuer."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from cryptography.hazmat.primitives.asymmetric import ec

from kplane.api.names import LAST_USED_ANNOTATION, SLEEP_REQUESTED_ANNOTATION, WAKE_REQUESTED_ANNOTATION
from kplane.binaries.envoy import find_envoy
from kplane.binaries.programs import Binaries
from kplane.controlplane_operator.kinds import CONTROL_PLANE_CLASSES
from kplane.embedded.cluster import ManagementCluster
from kplane.gateway.control_planes import CONTROL_PLANES
from kplane.pki.bootstrap_tokens import new_token, token_secret
from kplane.provider import ApiError, Client, ClusterConfig
from kplane.provider.client.resources import NAMESPACES, SECRETS, SERVICE_ACCOUNTS
from tests.controlplane_operator.integration.issuer import Issuer, running_issuer

from .behind_gateway import external_config

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(600)]

_ON_DEMAND = {"deletionPolicy": "Destroy", "virtual": {"start": "OnDemand"}}
_TOKEN_REQUEST: dict[str, Any] = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
_BOOTSTRAP_TEXT = "abcdef.0123456789abcdef"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(binaries: Binaries, namespaces_go_at_once: Callable[..., Any]) -> AsyncIterator[ManagementCluster]:
    directory = Path(tempfile.mkdtemp(prefix="kplane-embedded-"))
    async with (
        ManagementCluster(
            directory,
            binaries=binaries,
            fsync=False,
            gateway=find_envoy(),
            operator_arguments=["--awake-limit=4"],
        ) as cluster,
        namespaces_go_at_once(ClusterConfig.load(cluster.handle.admin_kubeconfig)),
    ):
        yield cluster
    shutil.rmtree(directory)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def issuer(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Issuer]:
    async with running_issuer(tmp_path_factory.mktemp("issuer")) as issuer:
        yield issuer


async def _code(config: ClusterConfig, token: str | None) -> int:
    async with Client(dataclasses.replace(config, token=token), field_manager="kplane") as tenant:
        try:
            await tenant.list(NAMESPACES)
        except ApiError as error:
            return error.status
        return 200


async def _phase(client: Client, name: str) -> tuple[str, bool]:
    """Return the phase of a control plane, and whether it has a wake-up request."""
    control_plane = await client.get(CONTROL_PLANES, name)
    has_request = WAKE_REQUESTED_ANNOTATION in (control_plane["metadata"].get("annotations") or {})
    return str(control_plane.get("status", {}).get("phase")), has_request


async def _asleep(client: Client, name: str, *, eventually: Callable[..., Any], **spec: Any) -> ClusterConfig:
    await client.create(CONTROL_PLANES, {"metadata": {"name": name}, "spec": _ON_DEMAND | spec})
    await eventually(lambda: _phase(client, name), lambda found: found[0] == "Hibernated")
    return await external_config(client, name)


async def _send_to_sleep(client: Client, name: str, *, eventually: Callable[..., Any]) -> None:
    """Remove the wake-up request of an awake control plane, and wait until it sleeps."""
    annotations = {SLEEP_REQUESTED_ANNOTATION: datetime.now(UTC).isoformat(), WAKE_REQUESTED_ANNOTATION: None}
    await client.patch(CONTROL_PLANES, name, {"metadata": {"annotations": annotations}})
    await eventually(lambda: _phase(client, name), lambda found: found == ("Hibernated", False))


async def _last_use(client: Client, name: str) -> datetime | None:
    annotations = (await client.get(CONTROL_PLANES, name))["metadata"].get("annotations") or {}
    value = annotations.get(LAST_USED_ANNOTATION)
    return datetime.fromisoformat(value) if value is not None else None


async def _token_of_deleted_secret(external: ClusterConfig) -> str:
    """Return a token that is bound to a Secret. Only the API server can know that the Secret is deleted."""
    bound = {"metadata": {"name": "bound", "namespace": "default"}, "type": "Opaque"}
    async with Client(external, field_manager="kplane") as tenant:
        created = await tenant.create(SECRETS, bound)
        reference = {"apiVersion": "v1", "kind": "Secret", "name": "bound", "uid": created["metadata"]["uid"]}
        request = _TOKEN_REQUEST | {"spec": {"boundObjectRef": reference}}
        await tenant.create(SERVICE_ACCOUNTS, {"metadata": {"name": "left", "namespace": "default"}})
        path = f"{SERVICE_ACCOUNTS.path('left', namespace='default')}/token"
        token = str((await tenant.request("POST", path, body=request))["status"]["token"])
        await tenant.delete(SECRETS, "bound", namespace="default")
    return token


@pytest.mark.asyncio(loop_scope="module")
async def test_token_of_oidc_issuer_wakes_and_foreign_signature_does_not(
    cluster: ManagementCluster, issuer: Issuer, eventually: Callable[..., Any]
) -> None:
    client, name = cluster.client, "by-oidc"
    oidc = {
        "issuerURL": issuer.url,
        "clientIDs": ["kubernetes"],
        "certificateAuthority": issuer.ca,
        "usernameClaim": "name",
        "groupsClaim": "groups",
    }
    spec = {"apiServer": {"oidc": [oidc]}, "allowedDestinations": [issuer.destination]}
    await client.create(CONTROL_PLANE_CLASSES, {"metadata": {"name": name}, "spec": spec})
    external = await _asleep(client, name, eventually=eventually, classRef={"name": name})
    claims = {"aud": "kubernetes", "name": "jane", "groups": ["people"]}
    foreign_issuer = dataclasses.replace(issuer, key=ec.generate_private_key(ec.SECP256R1()))
    for token in (foreign_issuer.token(**claims), issuer.token(**claims | {"aud": "other"})):
        assert await _code(external, token) == 401
    assert await _phase(client, name) == ("Hibernated", False)
    # The API server knows the user, who has no rights.
    assert await _code(external, issuer.token(**claims)) == 403
    await eventually(lambda: _phase(client, name), lambda found: found == ("Ready", True))
    # While the control plane is awake, its API server refuses the foreign token.
    assert await _code(external, foreign_issuer.token(**claims)) == 401
    await client.delete(CONTROL_PLANES, name)


@pytest.mark.asyncio(loop_scope="module")
async def test_existing_bootstrap_token_wakes_its_control_plane(
    cluster: ManagementCluster, eventually: Callable[..., Any]
) -> None:
    client, name = cluster.client, "joined"
    external = await _asleep(client, name, eventually=eventually)
    assert await _code(external, _BOOTSTRAP_TEXT) == 401
    token = new_token(now=datetime.now(UTC))
    async with Client(external, field_manager="kplane") as tenant:
        await tenant.create(SECRETS, token_secret(token))
    text = f"{token.id}.{token.secret}"
    await _send_to_sleep(client, name, eventually=eventually)
    assert await _code(external, f"{token.id}.{token.secret[::-1]}") == 401
    assert await _phase(client, name) == ("Hibernated", False)
    secrets = await client.list(SECRETS, namespace="kplane-gateway")
    entries = [base64.b64decode(value) for secret in secrets.items for value in (secret.get("data") or {}).values()]
    assert not any(token.secret.encode() in entry for entry in entries)
    assert await _code(external, text) == 403
    await eventually(lambda: _phase(client, name), lambda found: found == ("Ready", True))
    await client.delete(CONTROL_PLANES, name)


@pytest.mark.asyncio(loop_scope="module")
async def test_token_of_deleted_account_wakes_no_control_plane(
    cluster: ManagementCluster, eventually: Callable[..., Any]
) -> None:
    client, name = cluster.client, "orphaned"
    external = await _asleep(client, name, eventually=eventually)
    tokens = []
    async with Client(external, field_manager="kplane") as tenant:
        for account in ("kept", "deleted"):
            await tenant.create(SERVICE_ACCOUNTS, {"metadata": {"name": account, "namespace": "default"}})
            path = f"{SERVICE_ACCOUNTS.path(account, namespace='default')}/token"
            tokens.append(str((await tenant.request("POST", path, body=_TOKEN_REQUEST))["status"]["token"]))
        await tenant.delete(SERVICE_ACCOUNTS, "deleted", namespace="default")
    kept, deleted = tokens
    await _send_to_sleep(client, name, eventually=eventually)
    assert await _code(external, deleted) == 401
    assert await _phase(client, name) == ("Hibernated", False)
    # The account that is left has no rights, but its token is good.
    assert await _code(external, kept) == 403
    await eventually(lambda: _phase(client, name), lambda found: found == ("Ready", True))
    await client.delete(CONTROL_PLANES, name)


@pytest.mark.asyncio(loop_scope="module")
async def test_wake_whose_only_answer_is_401_ends_after_short_idle_time(
    cluster: ManagementCluster, eventually: Callable[..., Any]
) -> None:
    client, name = cluster.client, "refused"
    spec = {"virtual": {"idle": {"after": "2m"}}}
    await client.create(CONTROL_PLANE_CLASSES, {"metadata": {"name": name}, "spec": spec})
    external = await _asleep(client, name, eventually=eventually, classRef={"name": name})
    token = await _token_of_deleted_secret(external)
    begun = datetime.now(UTC)
    # The gateway must have seen all earlier use before the sleep, or it would count that use after the wake.
    last_use = await eventually(
        lambda: _last_use(client, name), lambda found: found is not None and found >= begun, timeout=120.0
    )
    await _send_to_sleep(client, name, eventually=eventually)
    assert await _code(external, token) == 401
    await eventually(lambda: _phase(client, name), lambda found: found == ("Ready", True))
    await eventually(lambda: _phase(client, name), lambda found: found == ("Hibernated", True), timeout=240.0)
    assert await _last_use(client, name) == last_use
    await client.delete(CONTROL_PLANES, name)


@pytest.mark.asyncio(loop_scope="module")
async def test_worthless_requests_to_five_tenants_wake_no_tenant(
    cluster: ManagementCluster, eventually: Callable[..., Any]
) -> None:
    client, names = cluster.client, [f"tenant-{number}" for number in range(5)]
    tenants = [await _asleep(client, name, eventually=eventually) for name in names]
    forged = f"{str(tenants[0].token).rpartition('.')[0]}.{'A' * 86}"
    tokens = ("x", "x" * (64 << 10), _BOOTSTRAP_TEXT, forged, None)
    codes = await asyncio.gather(*(_code(config, token) for config in tenants for token in tokens))
    assert set(codes) == {401}
    foreign_codes = await asyncio.gather(*(_code(config, tenants[0].token) for config in tenants[1:]))
    assert set(foreign_codes) == {401}
    assert [await _phase(client, name) for name in names] == [("Hibernated", False)] * 5
    assert await _code(tenants[4], tenants[4].token) == 200
    assert [await _phase(client, name) for name in names[:4]] == [("Hibernated", False)] * 4
    for name in names:
        await client.delete(CONTROL_PLANES, name)
