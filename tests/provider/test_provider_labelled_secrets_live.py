"""Secrets with a label on a real API server."""

from __future__ import annotations

import asyncio
import base64

import pytest

from kplane.provider import Client, Informer
from kplane.provider.client.resources import SECRETS
from kplane.provider.errors import KubeconfigError
from kplane.provider.providers._support.labelled import LabelledSecrets

pytestmark = pytest.mark.integration


def secret(name, namespace, value, labels=(("use", "yes"),)):
    data = {"value": base64.b64encode(value.encode()).decode()}
    return {"metadata": {"name": name, "namespace": namespace, "labels": dict(labels)}, "data": data}


async def test_labelled_secrets_are_read_on_demand_and_once_per_change(client, namespace, eventually):
    read = []

    class Counting(Client):
        async def get(self, resource, name, **options):
            read.append(name)
            return await super().get(resource, name, **options)

    changes = []
    async with Counting(client.config, field_manager="kplane") as counting:
        secrets = LabelledSecrets(counting, label_selector="use=yes", namespace=namespace)
        await client.create(SECRETS, secret("a", namespace, "one"))
        await client.create(SECRETS, secret("b", namespace, "unread"))
        await client.create(SECRETS, secret("c", namespace, "unlabelled", labels=()))
        task = asyncio.create_task(secrets.run(lambda *at: changes.append(at)))
        await eventually(secrets.synced.is_set)
        assert sorted(changes) == [(namespace, "a"), (namespace, "b")]
        for _ in range(2):
            assert await secrets.values(namespace, "a") == {"value": b"one"}
        assert read == ["a"]
        with pytest.raises(KubeconfigError, match=f"{namespace}/c is missing, or has no label 'use=yes'"):
            await secrets.values(namespace, "c")

        await client.apply(SECRETS, secret("a", namespace, "two"), force=True)
        await eventually(lambda: changes, lambda found: len(found) == 3)
        assert await secrets.values(namespace, "a") == {"value": b"two"}
        await client.patch(SECRETS, "a", {"metadata": {"labels": {"use": None}}}, namespace=namespace)
        await eventually(lambda: changes, lambda found: len(found) == 4)
        with pytest.raises(KubeconfigError, match="is missing, or has no label"):
            await secrets.values(namespace, "a")
        assert read == ["a", "a"]
        task.cancel()
        await asyncio.wait([task])


async def test_metadata_informer_stores_no_data(client, namespace, eventually):
    await client.create(SECRETS, secret("a", namespace, "one"))
    informer = Informer(client, SECRETS, namespace=namespace, label_selector="use=yes", metadata_only=True)
    task = asyncio.create_task(informer.run())
    await eventually(informer.synced.is_set)
    await client.create(SECRETS, secret("b", namespace, "two"))
    await eventually(lambda: informer.list(), lambda found: len(found) == 2)
    for found in informer.list():
        assert set(found) <= {"apiVersion", "kind", "metadata"}
        assert "managedFields" not in found["metadata"]
    task.cancel()
    await asyncio.wait([task])
