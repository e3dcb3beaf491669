"""Kinds by name and objects by request, in calls of the client."""

from __future__ import annotations

import pytest

from kplane.provider import Client, ObjectKey, ProviderError, Request

WIDGET = "example.com/v1/Widget"


@pytest.fixture
async def calls(tools, fault_server):
    """A client, and the requests that it sent."""
    asked = []

    async def answer(request, writer):
        method, path = request.method, request.target.partition("?")[0]
        asked.append(f"{method} {path}")
        if path == "/apis/example.com/v1":
            found = {"resources": [{"name": "widgets", "kind": "Widget", "namespaced": True}]}
        elif path.endswith(("s", "s/status")) and method == "GET":
            found = {"metadata": {"resourceVersion": "1"}, "items": []}
        else:
            found = {"metadata": {"name": "w"}}
        writer.write(tools.http(found))

    serving = await fault_server(answer)
    async with Client(serving.config, field_manager="kplane") as client:
        yield client, asked


async def test_calls_accept_kind_name_and_discover_it_once(calls):
    client, asked = calls
    body = {"metadata": {"name": "w", "namespace": "ns"}}
    await client.get(WIDGET, "w", namespace="ns")
    await client.exists(WIDGET, "w", namespace="ns")
    await client.list(WIDGET)
    await client.create(WIDGET, body)
    await client.replace(WIDGET, body)
    await client.patch(WIDGET, "w", {}, namespace="ns", subresource="status")
    await client.json_patch(WIDGET, "w", [], namespace="ns")
    await client.apply(WIDGET, body, force=True)
    await client.delete(WIDGET, "w", namespace="ns")
    await client.delete_all(WIDGET, namespace="ns", label_selector="a=b")
    one, many = "/apis/example.com/v1/namespaces/ns/widgets/w", "/apis/example.com/v1/namespaces/ns/widgets"
    assert asked == [
        "GET /apis/example.com/v1",
        f"GET {one}",
        f"GET {one}",
        "GET /apis/example.com/v1/widgets",
        f"POST {many}",
        f"PUT {one}",
        f"PATCH {one}/status",
        f"PATCH {one}",
        f"PATCH {one}",
        f"DELETE {one}",
        f"DELETE {many}",
    ]


@pytest.mark.parametrize("key", [Request("acme", "ns", "w"), ObjectKey("ns", "w")], ids=["request", "key"])
async def test_calls_accept_references_with_namespace_and_name(calls, key):
    client, asked = calls
    await client.get("v1/ConfigMap", key)
    await client.patch("v1/ConfigMap", key, {})
    await client.delete("v1/ConfigMap", key)
    assert asked == [f"{method} /api/v1/namespaces/ns/configmaps/w" for method in ("GET", "PATCH", "DELETE")]
    with pytest.raises(ProviderError, match="has a namespace of its own"):
        await client.get("v1/ConfigMap", key, namespace="ns")


async def test_key_of_cluster_scoped_kind_has_empty_namespace(calls):
    client, asked = calls
    await client.get("v1/Node", Request("acme", "", "w"))
    assert asked == ["GET /api/v1/nodes/w"]
