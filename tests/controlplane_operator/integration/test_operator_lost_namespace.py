"""A user deletes the namespace of a control plane: the tenant keeps its keys, data and users."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from kplane.api.names import PROTECTION_FINALIZER, saved_keys_name
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.provider import Client, NotFound
from kplane.provider.client.resources import CONFIG_MAPS, NAMESPACES, SECRETS

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("unguarded")]

_GROUP = "controlplane.kplane.dev"
_KEYS = "control-plane-authorities"
_NOTE = {"metadata": {"name": "note", "namespace": "default"}, "data": {"of": "the tenant"}}
_HOLD = "test.kplane.dev/hold"


async def keys_of(field: Any, name: str) -> dict[str, Any]:
    secret: dict[str, Any] = await field.client.get(SECRETS, _KEYS, namespace=f"kplane-cp-{name}")
    return secret


async def ready(field: Any, name: str) -> dict[str, Any]:
    conditions = (await field.get("ControlPlane", name))["status"]["conditions"]
    return next((item for item in conditions if item["type"] == "Ready"), {})


async def saved(field: Any, name: str) -> bool:
    uid = (await field.get("ControlPlane", name))["metadata"]["uid"]
    try:
        await field.client.get(SECRETS, saved_keys_name(uid), namespace="kplane-system")
    except NotFound:
        return False
    return True


async def hold(field: Any, name: str) -> None:
    """Create an object in the namespace that keeps the namespace Terminating until `let_go`."""
    metadata = {"name": "held", "namespace": f"kplane-cp-{name}", "finalizers": [_HOLD]}
    await field.client.create(CONFIG_MAPS, {"metadata": metadata})


async def let_go(field: Any, name: str) -> None:
    body = {"metadata": {"finalizers": None}}
    await field.client.patch(CONFIG_MAPS, "held", body, namespace=f"kplane-cp-{name}")


async def delete_namespace(field: Any, name: str) -> str:
    """Delete the namespace of a control plane as a user does, and return its uid."""
    namespace = await field.client.get(NAMESPACES, f"kplane-cp-{name}")
    await field.client.delete(NAMESPACES, f"kplane-cp-{name}")
    uid: str = namespace["metadata"]["uid"]
    return uid


async def made_anew(field: Any, name: str, *, former: str) -> str:
    """Wait until the control plane has a new namespace, and return the uid of the namespace."""

    async def current() -> tuple[str, str]:
        status = (await field.get("ControlPlane", name))["status"]
        return status.get("namespaceUID", ""), (await ready(field, name)).get("reason", "")

    uid, _ = await field.eventually(
        current, lambda found: found[0] not in ("", former) and found[1] == "Reconciled", timeout=120.0
    )
    assert uid == (await field.client.get(NAMESPACES, f"kplane-cp-{name}"))["metadata"]["uid"]
    return str(uid)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["Virtual", "Dedicated"])
async def test_tenant_survives_deletion_of_its_namespace(field: Any, mode: str) -> None:
    name = f"lost-{mode.lower()}"
    await field.create("ControlPlane", name, mode=mode, deletionPolicy="Destroy")
    status = (await field.becomes("ControlPlane", name, "Reconciled"))["status"]
    keys, user = (await keys_of(field, name)), await field.tenant(name)
    assert PROTECTION_FINALIZER in keys["metadata"]["finalizers"]
    async with Client(user, field_manager="kplane") as tenant:
        await tenant.create(CONFIG_MAPS, dict(_NOTE))

    await hold(field, name)
    former = await delete_namespace(field, name)
    assert status["namespaceUID"] == former
    lost_status = (await field.becomes("ControlPlane", name, "NamespaceDeleted"))["status"]
    assert lost_status["phase"] == "Unavailable"
    message = (await ready(field, name))["message"]
    assert f"a user deleted namespace kplane-cp-{name}" in message
    assert "the operator makes it anew and puts the keys back" in message
    await field.eventually(lambda: saved(field, name))

    await let_go(field, name)
    await made_anew(field, name, former=former)
    assert (await keys_of(field, name))["data"] == keys["data"]
    assert PROTECTION_FINALIZER in (await keys_of(field, name))["metadata"]["finalizers"]
    for config in (user, await field.tenant(name)):
        async with Client(config, field_manager="kplane") as tenant:
            assert (await tenant.get(CONFIG_MAPS, "note", namespace="default"))["data"] == _NOTE["data"]
    await field.eventually(lambda: saved(field, name), lambda left: not left)

    # The deletion of the control plane deletes the new namespace too.
    await field.client.delete(CONTROL_PLANES, name)
    await field.gone(CONTROL_PLANES, name)
    await field.gone(NAMESPACES, f"kplane-cp-{name}")


@pytest.mark.slow
async def test_recreated_namespace_of_a_user_is_not_taken_over(field: Any) -> None:
    """The namespace has copies of the labels and annotations of kplane's namespace."""
    await field.create("ControlPlane", "usurped", deletionPolicy="Destroy")
    uid = (await field.becomes("ControlPlane", "usurped", "Reconciled"))["metadata"]["uid"]
    keys = await keys_of(field, "usurped")
    pause = {"metadata": {"annotations": {f"{_GROUP}/paused": "true"}}}
    await field.client.patch(CONTROL_PLANES, "usurped", pause)
    await field.becomes("ControlPlane", "usurped", "Reconciled")
    before = await field.client.get(NAMESPACES, "kplane-cp-usurped")
    former = await delete_namespace(field, "usurped")
    await field.client.patch(SECRETS, _KEYS, {"metadata": {"finalizers": None}}, namespace="kplane-cp-usurped")
    await field.gone(NAMESPACES, "kplane-cp-usurped")
    copied = {key: before["metadata"][key] for key in ("name", "labels", "annotations")}
    await field.client.create(NAMESPACES, {"metadata": copied})

    await field.client.patch(CONTROL_PLANES, "usurped", {"metadata": {"annotations": {f"{_GROUP}/paused": None}}})
    await field.becomes("ControlPlane", "usurped", "NamespaceConflict")
    message = (await ready(field, "usurped"))["message"]
    assert "delete that namespace, and the operator makes its own one anew" in message
    assert (await field.client.list(SECRETS, namespace="kplane-cp-usurped")).items == []

    # The remedy of the message, with keys from a backup.
    await field.client.delete(NAMESPACES, "kplane-cp-usurped")
    await field.becomes("ControlPlane", "usurped", "Failed")
    metadata = {
        "name": _KEYS,
        "namespace": "kplane-cp-usurped",
        "labels": keys["metadata"]["labels"],
        "annotations": {f"{_GROUP}/uid": uid},
    }
    await field.client.create(SECRETS, {"metadata": metadata, "data": keys["data"]})
    await made_anew(field, "usurped", former=former)
    await field.eventually(lambda: saved(field, "usurped"), lambda left: not left)


@pytest.mark.slow
async def test_deleted_keys_are_restored(field: Any) -> None:
    await field.create("ControlPlane", "unkeyed", deletionPolicy="Destroy")
    await field.becomes("ControlPlane", "unkeyed", "Reconciled")
    keys = await keys_of(field, "unkeyed")
    await field.client.delete(SECRETS, _KEYS, namespace="kplane-cp-unkeyed")

    async def again() -> dict[str, Any]:
        with contextlib.suppress(NotFound):
            return await keys_of(field, "unkeyed")
        return {"metadata": {}}

    restored = await field.eventually(
        again, lambda seen: seen["metadata"].get("uid") not in (None, keys["metadata"]["uid"])
    )
    assert restored["data"] == keys["data"]
    await field.eventually(lambda: saved(field, "unkeyed"), lambda left: not left)
    await field.becomes("ControlPlane", "unkeyed", "Reconciled")


@pytest.mark.slow
async def test_retained_data_keep_keys_if_namespace_was_deleted_first(field: Any) -> None:
    await field.create("ControlPlane", "hasty", deletionPolicy="Retain")
    await field.becomes("ControlPlane", "hasty", "Reconciled")
    keys = await keys_of(field, "hasty")
    await hold(field, "hasty")
    former = await delete_namespace(field, "hasty")
    await field.client.delete(CONTROL_PLANES, "hasty")

    async def deleting() -> str:
        return str((await ready(field, "hasty")).get("message", ""))

    await field.eventually(deleting, lambda said: "a user deleted namespace kplane-cp-hasty" in said)
    await let_go(field, "hasty")
    await field.gone(CONTROL_PLANES, "hasty")
    record = await field.client.get(NAMESPACES, "kplane-cp-hasty")
    assert record["metadata"]["uid"] != former
    assert record["metadata"]["labels"][f"{_GROUP}/retained"] == "true"
    retained = await keys_of(field, "hasty")
    assert retained["data"] == keys["data"]
    # No control plane uses the keys any more, so a deletion of their namespace is intended.
    assert "finalizers" not in retained["metadata"]
    await field.client.delete(NAMESPACES, "kplane-cp-hasty")
    await field.gone(NAMESPACES, "kplane-cp-hasty")
    async with field.handle.tenants_etcd.client() as etcd:
        await etcd.delete_prefix("/clusters/hasty/")
