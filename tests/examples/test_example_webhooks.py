"""Example of webhooks: a real API server calls its program."""

from __future__ import annotations

import uuid

import pytest
import yaml

from kplane.provider import Invalid
from kplane.provider.client.resources import CONFIG_MAPS, NAMESPACES

from .conftest import EXAMPLES

pytestmark = pytest.mark.integration


@pytest.fixture
async def namespace(client):
    """Namespace with the label that the manifest selects."""
    name = f"shop-{uuid.uuid4().hex[:8]}"
    await client.create(NAMESPACES, {"metadata": {"name": name, "labels": {"shop": "yes"}}})
    yield name
    await client.delete(NAMESPACES, name)


@pytest.fixture
async def port(client, hold_port):
    """Apply the manifest with a port of this test. Return the port, on which the program must listen."""
    port = hold_port()
    text = (EXAMPLES / "webhooks.yaml").read_text().replace("127.0.0.1:9443", f"127.0.0.1:{port}")
    configurations = list(yaml.safe_load_all(text))
    for configuration in configurations:
        await client.apply(f"{configuration['apiVersion']}/{configuration['kind']}", configuration, force=True)
    yield port
    for configuration in configurations:
        await client.delete(f"{configuration['apiVersion']}/{configuration['kind']}", configuration["metadata"]["name"])


async def test_webhooks_require_a_price_and_set_an_owner(client, namespace, port, api_server, running, eventually):
    async def refusal():
        try:
            await client.create(CONFIG_MAPS, {"metadata": {"generateName": "x-"}}, namespace=namespace)
        except Invalid as error:
            return str(error)
        return None

    async with running("webhooks.py", KUBECONFIG=api_server.admin_kubeconfig, PORT=port):
        assert "data.price is missing: add it" in await eventually(refusal)
        priced = {"metadata": {"name": "tea"}, "data": {"price": "3"}}
        created = await client.create(CONFIG_MAPS, priced, namespace=namespace)
        assert created["metadata"]["annotations"]["shop/owner"]
