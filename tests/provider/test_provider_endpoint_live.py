"""ControlPlaneEndpoints on a real API server."""

from __future__ import annotations

import base64
import contextlib
import json
import uuid

import pytest

from kplane.provider.client.resources import CONFIG_MAPS, SECRETS
from kplane.provider.providers.kplane import ENDPOINTS, EndpointProvider, SecretTemplate

pytestmark = pytest.mark.integration


@pytest.fixture
async def endpoints(client, namespace):
    """`await endpoints(name, spec, **labels)`: create an endpoint that is deleted after the test."""
    made = []

    async def make(spec, **labels):
        name = f"e-{uuid.uuid4().hex[:8]}"
        await client.create(
            ENDPOINTS, {"metadata": {"name": name, "labels": {"test": namespace, **labels}}, "spec": spec}
        )
        made.append(name)
        return name

    yield make
    for name in made:
        with contextlib.suppress(LookupError):
            if await client.exists(ENDPOINTS, name):
                await client.delete(ENDPOINTS, name)


async def test_endpoint_is_engaged_with_its_secret_until_deletion(
    client, namespace, endpoints, service_account, eventually, caplog, telling
):
    config = await service_account([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}])
    server = config.server

    async def secret(config):
        # The server of the kubeconfig does not count.
        document = json.dumps(config.with_server("https://elsewhere.test").to_kubeconfig())
        data = {"kubeconfig": base64.b64encode(document.encode()).decode()}
        body = {"metadata": {"name": f"{name}-kubeconfig", "namespace": namespace}, "data": data}
        await client.apply(SECRETS, body, force=True)

    async def status(**fields):
        await client.patch(ENDPOINTS, name, {"status": fields}, subresource="status")

    def condition(status):
        return {
            "type": "Ready",
            "status": status,
            "reason": "Test",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }

    template = SecretTemplate("{name}-kubeconfig", namespace_scope=namespace)
    provider = EndpointProvider(client, secrets=template, label_selector=f"test={namespace}")
    async with telling(provider) as fleet:
        await endpoints({})
        await endpoints({"endpoint": "https://other.test"}, test="other")
        name = await endpoints({"endpoint": server})
        await eventually(lambda: caplog.text, lambda text: f"{name}-kubeconfig is missing" in text)
        assert fleet.names() == []
        await secret(config)
        await eventually(fleet.names, lambda names: names == [name])
        assert await fleet.get(name).client.list(CONFIG_MAPS, namespace=namespace)
        (engagement,) = fleet.engagements()

        # The status takes precedence, and an invalid endpoint keeps the engagement.
        await status(endpoint="https://127.0.0.1:1", conditions=[condition("False")])
        await client.patch(ENDPOINTS, name, {"metadata": {"annotations": {"a": "b"}}})
        await status(endpoint=f"{server}/below")
        assert not engagement.closed
        await status(conditions=[condition("True")])
        await eventually(lambda: fleet.get(name).config.server, lambda found: found == f"{server}/below")
        assert engagement.closed

        await client.delete(SECRETS, f"{name}-kubeconfig", namespace=namespace)
        await eventually(lambda: caplog.text.count(f"{name}-kubeconfig is missing"), lambda count: count > 1)
        assert fleet.names() == [name]
        await client.patch(ENDPOINTS, name, {"spec": {"endpoint": None}})
        await status(endpoint=None)
        await eventually(fleet.names, lambda names: names == [])
        await status(endpoint=server)
        await secret(config)
        await eventually(fleet.names, lambda names: names == [name])
        await client.delete(ENDPOINTS, name)
        await eventually(fleet.names, lambda names: names == [])
