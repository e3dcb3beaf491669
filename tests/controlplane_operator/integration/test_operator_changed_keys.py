"""The operator refuses replaced keys in a control plane's Secret, and a condition names the remedy."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from kplane.api.names import KEY_FINGERPRINTS_ANNOTATION, WAKE_REQUESTED_ANNOTATION
from kplane.controlplane_operator.hibernation import sleeper as sleepers
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.controlplane_operator.watch import secrets as secret_watches
from kplane.pki.primitives import create_signing_key
from kplane.provider import Client
from kplane.provider.client.resources import NAMESPACES, SECRETS

from .sleeping import ON_DEMAND, annotate, condition, now

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

_KEYS = "control-plane-authorities"
_PASSWORD = {"metadata": {"name": "password", "namespace": "default"}, "stringData": {"value": "precious"}}


@pytest.fixture(scope="module", autouse=True)
def impatience() -> Iterator[None]:
    """Do not wait for a gateway, which is absent here. Read Secrets of sleeping control planes every two seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sleepers, "_HEARD_SECONDS", 0.1)
        patch.setattr(secret_watches, "_COMPARE_SECONDS", 2.0)
        patch.setattr(secret_watches, "_READ_SECONDS", 0.0)
        yield


async def keys(field: Any, name: str) -> dict[str, str]:
    data: dict[str, str] = (await field.client.get(SECRETS, _KEYS, namespace=f"kplane-cp-{name}"))["data"]
    return data


async def replace(field: Any, name: str, entries: Mapping[str, str | None]) -> None:
    """Change entries of the Secret as a user does. Values are in base64; None removes the entry."""
    await field.client.patch(SECRETS, _KEYS, {"data": dict(entries)}, namespace=f"kplane-cp-{name}")


async def record(field: Any, name: str) -> Any:
    namespace = await field.client.get(NAMESPACES, f"kplane-cp-{name}")
    return json.loads(namespace["metadata"]["annotations"][KEY_FINGERPRINTS_ANNOTATION])


async def is_refused(field: Any, name: str, entry: str) -> dict[str, Any]:
    """Wait until the condition names the entry and the remedy, and return the control plane."""
    control_plane: dict[str, Any] = await field.becomes("ControlPlane", name, "KeysChanged")
    ready = condition(control_plane, "Ready")
    assert (ready["status"], control_plane["status"]["phase"]) == ("False", "Failed")
    assert f"Secret kplane-cp-{name}/{_KEYS} has another {entry} than before; restore the Secret" in ready["message"]
    assert KEY_FINGERPRINTS_ANNOTATION in ready["message"]
    return control_plane


def encoded(key: bytes) -> str:
    return base64.b64encode(key).decode()


async def test_replaced_encryption_key_is_refused_and_secrets_stay_readable(field: Any) -> None:
    await field.create("ControlPlaneClass", "encrypted", apiServer={"encryptedResources": ["secrets"]})
    await field.create("ControlPlane", "enc", classRef={"name": "encrypted"}, deletionPolicy="Destroy")
    status = (await field.becomes("ControlPlane", "enc", "Reconciled"))["status"]
    assert await record(field, "enc") == [status["keyFingerprints"]]
    before = await keys(field, "enc")
    async with Client(await field.tenant("enc"), field_manager="kplane") as tenant:
        await tenant.create(SECRETS, dict(_PASSWORD))
        await replace(field, "enc", {"encryption.key": encoded(secrets.token_bytes(32))})
        await is_refused(field, "enc", "encryption.key")
        assert (await tenant.get(SECRETS, "password", namespace="default"))["data"]
        await replace(field, "enc", {"encryption.key": before["encryption.key"]})
        await field.becomes("ControlPlane", "enc", "Reconciled")
        assert (await tenant.get(SECRETS, "password", namespace="default"))["data"]
    assert await record(field, "enc") == [status["keyFingerprints"]]


async def test_replaced_signing_key_is_unused_until_a_user_accepts_it(field: Any) -> None:
    await field.create("ControlPlane", "tokens", deletionPolicy="Destroy")
    await field.becomes("ControlPlane", "tokens", "Reconciled")
    user = await field.tenant("tokens")
    await replace(field, "tokens", {"sa.key": encoded(create_signing_key())})
    await is_refused(field, "tokens", "sa.key")
    async with Client(user, field_manager="kplane") as tenant:
        assert (await tenant.list(NAMESPACES)).items

    body = {"metadata": {"annotations": {KEY_FINGERPRINTS_ANNOTATION: None}}}
    await field.client.patch(NAMESPACES, "kplane-cp-tokens", body)
    control_plane = await field.becomes("ControlPlane", "tokens", "Reconciled")
    assert await record(field, "tokens") == [control_plane["status"]["keyFingerprints"]]
    await field.lets_in(await field.tenant("tokens"))


async def test_hibernated_control_plane_wakes_after_lost_key_is_restored(field: Any) -> None:
    await field.create("ControlPlane", "dozer", **ON_DEMAND)
    await field.becomes("ControlPlane", "dozer", "Hibernated")
    before = await keys(field, "dozer")
    await replace(field, "dozer", {"sa.key": None})
    control_plane = await field.becomes("ControlPlane", "dozer", "KeysUnusable")
    assert "it has no entry sa.key; restore it" in condition(control_plane, "Ready")["message"]
    assert control_plane["status"]["phase"] == "Failed", "by which the gateway knows"
    await annotate(field, "dozer", **{WAKE_REQUESTED_ANNOTATION: now()})
    await replace(field, "dozer", {"sa.key": encoded(create_signing_key())})
    await is_refused(field, "dozer", "sa.key")
    await replace(field, "dozer", {"sa.key": before["sa.key"]})
    await field.becomes("ControlPlane", "dozer", "Reconciled")
    await field.lets_in(await field.tenant("dozer"))


@pytest.mark.slow
async def test_retained_data_are_not_adopted_with_replaced_keys(field: Any) -> None:
    await field.create("ControlPlane", "heir", deletionPolicy="Retain")
    await field.becomes("ControlPlane", "heir", "Reconciled")
    before, recorded = await keys(field, "heir"), await record(field, "heir")
    await field.client.delete(CONTROL_PLANES, "heir")
    await field.gone(CONTROL_PLANES, "heir")
    assert await record(field, "heir") == recorded
    await replace(field, "heir", {"encryption.key": encoded(secrets.token_bytes(32))})
    namespace = await field.client.get(NAMESPACES, "kplane-cp-heir")
    token = namespace["metadata"]["annotations"]["controlplane.kplane.dev/adoption-token"]
    metadata = {"name": "heir", "annotations": {"controlplane.kplane.dev/adopt": token}}
    await field.client.create(CONTROL_PLANES, {"metadata": metadata, "spec": {"deletionPolicy": "Destroy"}})
    await is_refused(field, "heir", "encryption.key")
    await replace(field, "heir", {"encryption.key": before["encryption.key"]})
    await field.becomes("ControlPlane", "heir", "Reconciled")


async def test_control_plane_with_replaced_keys_can_be_deleted(field: Any) -> None:
    await field.create("ControlPlane", "doomed", deletionPolicy="Destroy")
    await field.becomes("ControlPlane", "doomed", "Reconciled")
    await replace(field, "doomed", {"sa.key": encoded(create_signing_key())})
    await is_refused(field, "doomed", "sa.key")
    await field.client.delete(CONTROL_PLANES, "doomed")
    await field.gone(CONTROL_PLANES, "doomed")
    await field.gone(NAMESPACES, "kplane-cp-doomed")
