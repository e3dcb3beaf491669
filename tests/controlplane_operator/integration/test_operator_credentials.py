"""Published credentials: lifetime, permissions, repair and revocation."""

from __future__ import annotations

import base64
import contextlib
import functools
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from kplane.controlplane_operator.kinds import CONTROL_PLANE_CLASSES, CONTROL_PLANE_ENDPOINTS, CONTROL_PLANES
from kplane.pki.primitives import expiry
from kplane.provider import ApiError, Client, ClusterConfig, Resource
from kplane.provider.client.resources import CLUSTER_ROLES, CONFIG_MAPS, NAMESPACES, SECRETS, SERVICE_ACCOUNTS
from tests.controlplane_operator.controller_manager import running_controllers

from .conftest import owner_of

if TYPE_CHECKING:
    from pathlib import Path

    from kplane.binaries.programs import Binaries

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

Adopt = Callable[..., Awaitable[dict[str, Any]]]

_GROUP = "controlplane.kplane.dev"
_KIND = "ValidatingWebhookConfiguration"
_WEBHOOKS = Resource("admissionregistration.k8s.io/v1", _KIND, f"{_KIND.lower()}s", namespaced=False)
_AGGREGATION = "--controllers=clusterrole-aggregation-controller"


def ends(config: ClusterConfig) -> datetime:
    """Return the expiry of the token or certificate in a kubeconfig."""
    if config.client_certificate is not None:
        return expiry(config.client_certificate)
    assert config.token is not None
    claims = config.token.split(".")[1]
    return datetime.fromtimestamp(json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["exp"], UTC)


async def metrics(field: Any) -> dict[str, float]:
    async with aiohttp.ClientSession() as session, session.get(f"{field.url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


async def delete(field: Any, name: str) -> None:
    await field.client.delete(CONTROL_PLANES, name)
    await field.gone(CONTROL_PLANES, name)


@pytest.mark.parametrize("model", ["token", pytest.param("x509", marks=pytest.mark.slow)])
async def test_lifetime_of_credentials_follows_the_class(field: Any, adopt: Adopt, model: str) -> None:
    name = f"aged-{model}"
    await field.create("ControlPlaneClass", name, deletionPolicy="Destroy", auth={"model": model, "lifetime": "2h"})
    # Client certificates need the CA of the API server, which kplane lacks for an adopted API server.
    create = adopt if model == "token" else functools.partial(field.create, "ControlPlane")
    await create(name, classRef={"name": name})
    await field.becomes("ControlPlane", name, "Reconciled")

    async def lifetime() -> float:
        config = await field.tenant(name)
        status = (await field.get("ControlPlane", name))["status"]
        # The API server reads the clock twice: for the token, and for the expiry in its response.
        assert abs(datetime.fromisoformat(status["credentialsExpireAt"]) - ends(config)) <= timedelta(seconds=2)
        metric = (await metrics(field))[
            f'kplane_credentials_expiry_seconds{{control_plane="{name}",secret="kubeconfig"}}'
        ]
        seconds = (ends(config) - datetime.now(UTC)).total_seconds()
        assert metric == pytest.approx(seconds, abs=5)
        async with Client(config, field_manager="kplane") as tenant:
            await tenant.list(NAMESPACES)
        return seconds

    # The first credentials age while the operator creates the rest of the control plane.
    assert await field.eventually(lifetime) == pytest.approx(7200, abs=300)
    # After a change to a shorter or longer lifetime the operator issues new credentials. Status and metric follow.
    for text, seconds in (("10m", 600), ("8760h", 8760 * 3600)):
        await field.client.patch(CONTROL_PLANE_CLASSES, name, {"spec": {"auth": {"lifetime": text}}})
        await field.eventually(lifetime, lambda found, seconds=seconds: abs(found - seconds) < 60)
    await delete(field, name)

    async def left() -> list[str]:
        return [series for series in await metrics(field) if f'"{name}"' in series]

    await field.eventually(left, lambda found: found == [])


@pytest.mark.parametrize("mode", ["Virtual", pytest.param("Dedicated", marks=pytest.mark.slow)])
async def test_credentials_are_renewed_despite_a_failing_tenant_webhook(field: Any, mode: str) -> None:
    name = f"hooked-{mode.lower()}"
    await field.create("ControlPlaneClass", name, deletionPolicy="Destroy", auth={"lifetime": "2h"})
    await field.create("ControlPlane", name, mode=mode, classRef={"name": name})
    await field.becomes("ControlPlane", name, "Reconciled")
    before = await field.tenant(name)
    rule = {"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"], "operations": ["*"]}
    webhook = {
        "name": "gate.example.org",
        "rules": [rule],
        "clientConfig": {"url": "https://127.0.0.1:9/"},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    async with Client(before, field_manager="kplane") as tenant:
        await tenant.create(_WEBHOOKS, {"metadata": {"name": "gate"}, "webhooks": [webhook]})
        body = {"metadata": {"name": "a", "namespace": "default"}}

        async def closed() -> bool:
            with pytest.raises(ApiError, match="gate"):
                await tenant.apply(CONFIG_MAPS, body, force=True)
            return True

        await field.eventually(closed)
        await field.client.patch(CONTROL_PLANE_CLASSES, name, {"spec": {"auth": {"lifetime": "96h"}}})
        after = await field.eventually(lambda: field.tenant(name), lambda found: found.token != before.token)
        assert ends(after) - datetime.now(UTC) > timedelta(hours=95)
        async with Client(after, field_manager="kplane") as renewed:
            await renewed.list(NAMESPACES)
        control_plane = await field.becomes("ControlPlane", name, "WebhookRefused")
        (message,) = [
            condition["message"] for condition in control_plane["status"]["conditions"] if condition["type"] == "Ready"
        ]
        assert 'failed calling webhook "gate.example.org"' in message
        await tenant.delete(_WEBHOOKS, "gate")
        await field.becomes("ControlPlane", name, "Reconciled")
    await delete(field, name)


async def test_metrics_count_bootstraps_and_deleted_keys(field: Any) -> None:
    before = await field.eventually(lambda: metrics(field))
    await field.create("ControlPlane", "measured", deletionPolicy="Destroy")
    await field.becomes("ControlPlane", "measured", "Reconciled")
    await delete(field, "measured")

    def is_counted(after: dict[str, float]) -> bool:
        return after["kplane_deleted_keys_total"] - before["kplane_deleted_keys_total"] > 100

    after = await field.eventually(lambda: metrics(field), is_counted)
    assert after["kplane_bootstrap_seconds_count"] == before["kplane_bootstrap_seconds_count"] + 1
    assert after["kplane_bootstrap_seconds_sum"] > before["kplane_bootstrap_seconds_sum"]


async def other_token(config: ClusterConfig) -> str:
    """Return a valid token of the control plane for another identity than the operator's."""
    async with Client(config, field_manager="kplane") as tenant:
        await tenant.apply(SERVICE_ACCOUNTS, {"metadata": {"name": "other", "namespace": "default"}}, force=True)
        path = "/api/v1/namespaces/default/serviceaccounts/other/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        answer = await tenant.request("POST", path, body=body)
    return str(answer["status"]["token"])


async def test_changes_of_published_secrets_are_reverted(field: Any, adopt: Adopt) -> None:
    await adopt("mended")
    control_plane = await field.becomes("ControlPlane", "mended", "Reconciled")
    namespace = "kplane-cp-mended"

    async def read(name: str) -> dict[str, Any]:
        secret: dict[str, Any] = await field.client.get(SECRETS, name, namespace=namespace)
        return secret

    async def patch(name: str, body: dict[str, Any]) -> None:
        await field.client.patch(SECRETS, name, body, namespace=namespace)

    async def mended(name: str, secret: str, *, since: str) -> dict[str, Any]:
        """Wait until the operator has rewritten the Secret with its own credentials."""

        async def good() -> dict[str, Any]:
            actual = await read(name)
            assert actual["metadata"]["resourceVersion"] != since
            assert actual["metadata"]["labels"][f"{_GROUP}/name"] == "mended"
            assert [owner["name"] for owner in actual["metadata"]["ownerReferences"]] == ["mended"]
            assert set(actual["data"]) == set(whole["data"])
            assert actual["type"] == "Opaque"
            assert not actual.get("immutable")
            async with Client(await field.tenant("mended", secret=secret), field_manager="kplane") as tenant:
                await tenant.list(SECRETS)
            return actual

        return dict(await field.eventually(good))

    for secret in ("kubeconfigSecretRef", "controllersSecretRef"):
        name = control_plane["status"][secret]["name"]
        whole = await read(name)
        stranger = json.dumps(
            ClusterConfig(
                server=control_plane["status"]["endpoint"],
                ca_data=(await field.tenant("mended")).ca_data,
                token=await other_token(await field.tenant("mended")),
            ).to_kubeconfig()
        )
        edits: list[dict[str, Any]] = [
            {"data": {"kubeconfig": "Z2FyYmFnZQ=="}},
            {"data": {"kubeconfig": base64.b64encode(stranger.encode()).decode()}},
            {"data": None},
            {"metadata": {"labels": None}},
            {"metadata": {"ownerReferences": None}},
            {"metadata": {"annotations": {f"{_GROUP}/expires-at": "2099-01-01T00:00:00+00:00"}}},
            {"data": {"ca.crt": None}, "immutable": True},
        ]
        for edit in edits:
            await patch(name, edit)
            current = await mended(name, secret, since="")
            assert current["data"].keys() == whole["data"].keys()
        await field.client.delete(SECRETS, name, namespace=namespace)
        await mended(name, secret, since=whole["metadata"]["resourceVersion"])
        # A user may create a Secret of another type first, which the operator cannot repair by an update.
        await field.client.delete(SECRETS, name, namespace=namespace)
        with contextlib.suppress(Exception):
            body = {"metadata": {"name": name, "namespace": namespace}, "type": "kplane.dev/other"}
            await field.client.create(SECRETS, body)
        await mended(name, secret, since="")


async def may(client: Client, verb: str, resource: str, *, group: str = "", namespace: str = "default") -> bool:
    attributes = {"verb": verb, "resource": resource, "group": group, "namespace": namespace}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = await client.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=review)
    return bool(answer["status"]["allowed"])


_ASKED = (
    ("list", "pods", ""),
    ("get", "secrets", ""),
    ("create", "pods", ""),
    ("create", "rolebindings", "rbac.authorization.k8s.io"),
    ("delete", "nodes", ""),
    ("get", "widgets", "acme.example"),
)
_ALLOWED = {
    "cluster-admin": {"list pods", "get secrets", "create pods", "create rolebindings", "delete nodes", "get widgets"},
    "admin": {"list pods", "get secrets", "create pods", "create rolebindings"},
    "edit": {"list pods", "get secrets", "create pods"},
    "view": {"list pods"},
    "acme:auditor": {"get widgets"},
}


@pytest.mark.parametrize("model", ["token", pytest.param("x509", marks=pytest.mark.slow)])
async def test_permissions_of_kubeconfig_follow_default_role_of_class(
    field: Any, model: str, binaries: Binaries, tmp_path: Path
) -> None:
    name = f"role-{model}"
    auth = {"model": model, "defaultRole": "cluster-admin"}
    await field.create("ControlPlaneClass", name, deletionPolicy="Destroy", auth=auth)
    await field.create("ControlPlane", name, classRef={"name": name})
    await field.becomes("ControlPlane", name, "Reconciled")
    controllers = await field.tenant(name, secret="controllersSecretRef")
    config = await field.tenant(name)
    async with (
        Client(controllers, field_manager="kplane") as inside,
        Client(config, field_manager="kplane") as administrator,
        # This controller fills ClusterRoles admin, edit and view. mcm runs it for tenants.
        running_controllers(controllers, _AGGREGATION, binaries=binaries, directory=tmp_path),
    ):
        rules = [{"apiGroups": ["acme.example"], "resources": ["widgets"], "verbs": ["get"]}]
        await inside.create(CLUSTER_ROLES, {"metadata": {"name": "acme:auditor"}, "rules": rules})

        async def allowed() -> set[str]:
            return {
                f"{verb} {resource}"
                for verb, resource, group in _ASKED
                if await may(administrator, verb, resource, group=group)
            }

        # A change of the role removes the permissions of the former role, and keeps the credentials.
        for role in (*_ALLOWED, "cluster-admin"):
            await field.client.patch(CONTROL_PLANE_CLASSES, name, {"spec": {"auth": {"defaultRole": role}}})
            await field.eventually(allowed, lambda found, role=role: found == _ALLOWED[role])
        assert await field.tenant(name) == config

        # A change of the model likewise removes the permissions of the former identity.
        other_model = "x509" if model == "token" else "token"
        await field.client.patch(CONTROL_PLANE_CLASSES, name, {"spec": {"auth": {"model": other_model}}})
        await field.eventually(allowed, lambda found: found == set())

        async def let_in() -> bool:
            return not await field.refuses(await field.tenant(name))

        await field.eventually(let_in)


async def test_deletion_revokes_credentials_at_an_adopted_api_server(field: Any, adopt: Adopt, tenant: Any) -> None:
    host = await owner_of(tenant.administrator)
    for policy in ("Retain", "Destroy"):
        name = f"guest-{policy.lower()}"
        await adopt(name, at=host, deletionPolicy=policy)
        await field.becomes("ControlPlane", name, "Reconciled")
        secrets = ("kubeconfigSecretRef", "controllersSecretRef")
        published = [await field.tenant(name, secret=secret) for secret in secrets]
        await field.lets_in(*published)
        await delete(field, name)
        for config in published:
            # The API server caches the authentication of a token for ten seconds, but the token has no permissions.
            await field.eventually(lambda config=config: field.refuses(config))
        assert not await field.refuses(host)
        await field.client.delete(CONTROL_PLANE_ENDPOINTS, name)


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_credentials_of_destroyed_control_plane_fail_at_its_successor(field: Any) -> None:
    for model in ("token", "x509"):
        await field.create("ControlPlaneClass", model, deletionPolicy="Destroy", auth={"model": model})
    former: list[ClusterConfig] = []
    for model in ("x509", "token", "x509"):
        await field.create("ControlPlane", "phoenix", classRef={"name": model})
        await field.becomes("ControlPlane", "phoenix", "Reconciled")
        present = await field.tenant("phoenix")
        for config in former:
            outsider = ClusterConfig(
                server=present.server,
                ca_data=present.ca_data,
                token=config.token,
                client_certificate=config.client_certificate,
                client_key=config.client_key,
            )
            assert await field.refuses(outsider)
        former += [present, await field.tenant("phoenix", secret="controllersSecretRef")]
        await delete(field, "phoenix")
    assert datetime.now(UTC) + timedelta(hours=68) < min(ends(config) for config in former)
