"""Control planes created as copies of a template, with a real etcd and real API servers."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any, NoReturn

import pytest
import pytest_asyncio

from kplane.api import ControlPlaneClass
from kplane.api.names import management_namespace
from kplane.controlplane_operator.backends import template_making
from kplane.controlplane_operator.backends.template_making import MADE, TemplateMaker, Wanted, maker_user
from kplane.controlplane_operator.controlplanes import credentials
from kplane.controlplane_operator.credentials.store import AUTHORITIES_SECRET
from kplane.controlplane_operator.errors import TemplateFailed
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.controlplane_operator.shared_etcd.keyspace import key_prefix, template_prefix
from kplane.controlplane_operator.tenant.bootstrap import bootstrap
from kplane.data import Client as Etcd
from kplane.data import Owner, Permission, Template, claim, is_copy, owner_of, uid_of
from kplane.pki.signatures import signed_by
from kplane.provider import Client, Unreachable
from kplane.provider.client.resources import EVENTS, NAMESPACES, SECRETS, SERVICES

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

_NETWORK = "10.7.0.0/16"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def etcd(field: Any) -> AsyncIterator[Etcd]:
    async with field.handle.tenants_etcd.client() as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def born(field: Any) -> tuple[str, str]:
    """Two control planes with the same spec, created without token requests to an API server."""

    async def refuse(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError("an API server was asked for a token")

    names = ("born-one", "born-two")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(credentials, "issue_token", refuse)
        for name in names:
            await field.create("ControlPlane", name, deletionPolicy="Destroy")
        for name in names:
            await field.becomes("ControlPlane", name, "Reconciled")
    return names


async def owner(field: Any, name: str) -> Owner:
    return Owner((await field.get("ControlPlane", name))["metadata"]["uid"], name)


async def told(field: Any, name: str) -> set[str]:
    """Return the reasons of the Events about a control plane."""
    uid = (await field.get("ControlPlane", name))["metadata"]["uid"]
    events = (await field.client.list(EVENTS, namespace="default")).items
    return {event["reason"] for event in events if event["involvedObject"].get("uid") == uid}


async def everything(config: Any) -> dict[str, Any]:
    """Return all objects of all listable resources, without fields that differ between API servers."""
    result: dict[str, Any] = {}
    async with Client(config, field_manager="kplane") as client:
        groups = (await client.request("GET", "/apis"))["groups"]
        roots = ["/api/v1", *(f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups)]
        for root in roots:
            for resource in (await client.request("GET", root))["resources"]:
                if "list" not in resource["verbs"] or resource["name"] in {"leases", "events", "componentstatuses"}:
                    continue
                for obj in (await client.request("GET", f"{root}/{resource['name']}"))["items"]:
                    metadata = obj["metadata"]
                    key = f"{root}/{resource['name']}/{metadata.get('namespace', '')}/{metadata['name']}"
                    for name in ("uid", "resourceVersion", "creationTimestamp", "managedFields"):
                        metadata.pop(name, None)
                    for condition in obj.get("status", {}).get("conditions") or ():
                        condition.pop("lastTransitionTime", None)
                    result[key] = obj
    return result


async def test_new_control_plane_is_a_copy_with_its_own_uids(field: Any, born: Any, etcd: Etcd) -> None:
    system = set()
    for name in born:
        prefix = key_prefix(name)
        assert await is_copy(etcd, prefix, owner=await owner(field, name))
        assert "TemplateFailed" not in await told(field, name)
        async with Client(await field.tenant(name), field_manager="kplane") as client:
            system.add((await client.get(NAMESPACES, "kube-system"))["metadata"]["uid"])
            service = await client.get(SERVICES, "kubernetes", namespace="default")
            assert service["spec"]["clusterIP"] == "10.96.0.1"
    assert len(system) == 2


async def test_copy_contains_no_uids_of_the_template(field: Any, born: Any, etcd: Etcd) -> None:
    assert await field.get("ControlPlane", born[0])
    templates = [prefix async for prefix in _templates(etcd)]
    assert templates
    uids = set()
    for prefix in templates:
        assert await owner_of(etcd, prefix) == MADE
        for value in (await Template.read(etcd, prefix)).values.values():
            uids.add(uid_of(value))
    template_uids = {uid.encode() for uid in uids - {None} if uid}
    assert len(template_uids) > 100
    first, second = [(await Template.read(etcd, key_prefix(name))).values for name in born]
    assert not {uid_of(value) for value in first.values()} & {uid_of(value) for value in second.values()} - {None}
    for values in (first, second):
        assert len({uid_of(value) for value in values.values()}) > 100
        whole = b"\0".join(values.values())
        assert not [uid for uid in template_uids if uid in whole]
        assert b"00000000-0000-4000-8000-000000000000" not in whole


async def _templates(etcd: Etcd) -> AsyncIterator[str]:
    async for page in etcd.pages("/kplane.dev/owners/kplane.dev/templates/"):
        for item in page.items:
            yield item.key.decode().removeprefix("/kplane.dev/owners")


async def test_objects_of_copy_are_not_older_than_the_control_plane(field: Any, born: Any) -> None:
    control_plane = await field.get("ControlPlane", born[1])
    async with Client(await field.tenant(born[1]), field_manager="kplane") as client:
        for path in (
            "/api/v1/namespaces",
            "/apis/rbac.authorization.k8s.io/v1/clusterroles",
            "/apis/apiregistration.k8s.io/v1/apiservices",
        ):
            items = (await client.request("GET", path))["items"]
            assert len(items) > 3
            oldest = min(item["metadata"]["creationTimestamp"] for item in items)
            assert oldest >= control_plane["metadata"]["creationTimestamp"]


async def test_operator_signs_the_first_token(field: Any, born: Any) -> None:
    config = await field.tenant(born[0])
    secret = await field.client.get(SECRETS, AUTHORITIES_SECRET, namespace=management_namespace(born[0]))
    assert signed_by(config.token, key=base64.b64decode(secret["data"]["sa.key"]))
    body = config.token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    async with Client(config, field_manager="kplane") as client:
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        answer = await client.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body=review)
        assert answer["status"]["userInfo"]["username"] == "system:serviceaccount:kplane-system:controlplane-admin"
        assert answer["status"]["userInfo"]["uid"] == claims["kubernetes.io"]["serviceaccount"]["uid"]
        assert (await client.list(NAMESPACES)).items


async def test_bootstrapped_control_plane_has_the_same_objects_as_a_copy(
    field: Any, born: Any, etcd: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any, **__: Any) -> NoReturn:
        raise TemplateFailed("the test says so")

    name = "ordinary"
    with monkeypatch.context() as patched:
        patched.setattr(TemplateMaker, "make", fail)
        # The network is new, so it has no template, and the patch prevents a new template.
        await field.create("ControlPlaneClass", "unlucky", apiServer={"serviceCIDR": "10.96.0.0/17"})
        await field.create("ControlPlane", name, deletionPolicy="Destroy", classRef={"name": "unlucky"})
        await field.becomes("ControlPlane", name, "Reconciled")
    assert "TemplateFailed" in await told(field, name)
    prefix = key_prefix(name)
    assert not await is_copy(etcd, prefix, owner=await owner(field, name))

    async def keys(of: str) -> set[bytes]:
        return set((await Template.read(etcd, key_prefix(of))).values)

    await field.eventually(lambda: keys(name), lambda found: len(found) > 100)
    ordinary = await field.settles(lambda: keys(name))
    assert await keys(born[0]) == ordinary
    uids = [(await owner(field, control_plane)).uid for control_plane in (name, born[0])]
    bootstrapped, copy = [
        json.loads(json.dumps(await everything(await field.tenant(control_plane))).replace(uid, "UID"))
        for control_plane, uid in zip((name, born[0]), uids, strict=True)
    ]
    assert bootstrapped.keys() == copy.keys()
    differences = {key for key in bootstrapped if bootstrapped[key] != copy[key]}
    # These objects contain the network, or values of the API server: its certificates, and a date.
    date = "kube-apiserver-legacy-service-account-token-tracking"
    assert {key.rsplit("/", 1)[1] for key in differences} <= {"kubernetes", "extension-apiserver-authentication", date}


async def test_api_server_of_copy_trusts_only_its_own_cas(field: Any, born: Any) -> None:
    for name in born:
        namespace = management_namespace(name)
        secret = await field.client.get(SECRETS, AUTHORITIES_SECRET, namespace=namespace)
        async with Client(await field.tenant(name), field_manager="kplane") as client:
            config_map = await client.request(
                "GET", "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
            )
        for entry, authority in (
            ("client-ca-file", "client-ca.crt"),
            ("requestheader-client-ca-file", "front-proxy-ca.crt"),
        ):
            assert config_map["data"][entry].strip() == base64.b64decode(secret["data"][authority]).decode().strip()


@pytest.mark.slow
async def test_interrupted_template_of_a_network_is_made_again(
    field: Any, born: Any, etcd: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = []

    async def reached_late(*args: Any, **given: Any) -> None:
        attempts.append(args)
        if len(attempts) == 1:
            raise Unreachable("the Service leads nowhere yet", kind="connect")
        await bootstrap(*args, **given)

    monkeypatch.setattr(template_making, "bootstrap", reached_late)
    created_class = await field.create("ControlPlaneClass", "other-network", apiServer={"serviceCIDR": _NETWORK})
    version = (await field.get("ControlPlane", born[0]))["status"]["version"].removeprefix("v")
    desired = Wanted.of(ControlPlaneClass.model_validate(created_class), version=version, asked=None)
    prefix, attempt = template_prefix(desired.name), Owner("cut-off", "somebody")
    await claim(etcd, prefix, owner=attempt)
    await etcd.put(f"{prefix}configmaps/default/left".encode(), b"left")
    await etcd.access.add_user(maker_user(attempt))
    await etcd.access.add_role(maker_user(attempt))
    await etcd.access.grant_permission(maker_user(attempt), Permission.below(prefix))
    await etcd.access.grant_role(maker_user(attempt), maker_user(attempt))

    await field.create("ControlPlane", "networked", deletionPolicy="Destroy", classRef={"name": "other-network"})
    await field.becomes("ControlPlane", "networked", "Reconciled")
    assert len(attempts) == 2
    assert await owner_of(etcd, prefix) == MADE
    assert await etcd.access.roles_of(maker_user(attempt)) is None
    assert await etcd.get(f"{prefix}configmaps/default/left".encode()) is None
    assert await is_copy(etcd, key_prefix("networked"), owner=await owner(field, "networked"))
    async with Client(await field.tenant("networked"), field_manager="kplane") as client:
        service = await client.get(SERVICES, "kubernetes", namespace="default")
    assert service["spec"]["clusterIP"] == "10.7.0.1"
    await field.client.delete(CONTROL_PLANES, "networked")
    await field.gone(CONTROL_PLANES, "networked")
    assert await etcd.count(key_prefix("networked")) == 0
