"""Objects of a backup: each namespace with the record that allows the keys beside it."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kplane.api.names import CONTROL_PLANE_LABEL, KEY_FINGERPRINTS_ANNOTATION
from kplane.controlplane_operator.backup.objects import collect
from kplane.controlplane_operator.credentials.key_records import KeyRecord
from kplane.controlplane_operator.kinds import (
    CONTROL_PLANE_CLASSES,
    CONTROL_PLANE_ENDPOINTS,
    CONTROL_PLANE_REGISTRATIONS,
    CONTROL_PLANE_SNAPSHOTS,
    CONTROL_PLANES,
)
from kplane.pki.fingerprints import fingerprints_of
from kplane.pki.primitives import create_signing_key
from kplane.provider import Client
from kplane.provider.client.resources import NAMESPACES, SECRETS
from kplane.provider.testing import FakeCluster

KINDS = [
    CONTROL_PLANE_CLASSES,
    CONTROL_PLANES,
    CONTROL_PLANE_ENDPOINTS,
    CONTROL_PLANE_REGISTRATIONS,
    CONTROL_PLANE_SNAPSHOTS,
]
NAME, KEYS = "kplane-cp-acme", "control-plane-authorities"
OLD, NEW = {"sa.key": create_signing_key()}, {"sa.key": create_signing_key()}


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    cluster = FakeCluster("management", kinds=KINDS)
    labels = {CONTROL_PLANE_LABEL: "acme"}
    for name in ("kplane-system", NAME):
        metadata = {"name": name, "labels": labels if name == NAME else {}}
        await cluster.client.create(NAMESPACES, {"metadata": metadata})
    await cluster.client.create(SECRETS, {"metadata": {"name": "etcd", "namespace": "kplane-system"}})
    yield cluster.client
    await cluster.aclose()


async def record(client: Client, *states: dict[str, bytes]) -> None:
    annotation = KeyRecord(tuple(fingerprints_of(state) for state in states)).annotation()
    await client.patch(NAMESPACES, NAME, {"metadata": {"annotations": {KEY_FINGERPRINTS_ANNOTATION: annotation}}})


async def write_keys(client: Client, keys: dict[str, bytes]) -> None:
    data = {name: base64.b64encode(value).decode() for name, value in keys.items()}
    await client.apply(SECRETS, {"metadata": {"name": KEYS, "namespace": NAME}, "data": data}, force=True)


async def saved(client: Client) -> list[dict[str, Any]]:
    found = [found async for found in collect(client, namespace="kplane-system", etcd_secret="etcd")]
    return [obj for obj in found if NAME in {obj["metadata"]["name"], obj["metadata"].get("namespace")}]


async def test_backup_during_a_rotation_has_the_record_of_its_keys(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await record(client, OLD)
    await write_keys(client, OLD)
    listing = client.list

    async def list_then_rotate(*args: Any, **options: Any) -> Any:
        answer = await listing(*args, **options)
        if args[0] is NAMESPACES:
            await record(client, OLD, NEW)
            await write_keys(client, NEW)
            await record(client, NEW)
        return answer

    monkeypatch.setattr(client, "list", list_then_rotate)
    namespace, secret = await saved(client)
    assert (namespace["kind"], secret["kind"]) == ("Namespace", "Secret")
    key_record = KeyRecord.of(namespace)
    assert key_record is not None
    assert key_record.allows(fingerprints_of(NEW))
    assert base64.b64decode(secret["data"]["sa.key"]) == NEW["sa.key"]


async def test_backup_of_exchanged_keys_keeps_the_record_that_refuses_them(client: Client) -> None:
    await record(client, OLD)
    await write_keys(client, NEW)
    namespace, _ = await saved(client)
    key_record = KeyRecord.of(namespace)
    assert key_record is not None
    assert not key_record.allows(fingerprints_of(NEW))


async def test_backup_of_a_namespace_without_keys_has_no_secret(client: Client) -> None:
    (namespace,) = await saved(client)
    assert namespace["kind"] == "Namespace"
