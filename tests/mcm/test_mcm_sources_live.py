"""Endpoints as a source and selectors of registrations, on a real management cluster and real control planes."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kplane.mcm.reasons import Reason
from kplane.mcm.status.reporter import StatusReporter
from kplane.provider import Client, Cluster, ClusterConfig
from kplane.provider.cache.informer import Informer
from kplane.provider.client.resources import EVENTS, NAMESPACES, SECRETS
from kplane.provider.providers.kplane import ENDPOINTS, REGISTRATIONS

from .control_planes import works

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("mcm"), pytest.mark.timeout(300)]

Eventually = Callable[..., Any]


@pytest.fixture
async def admin(api_server: Any) -> AsyncIterator[Client]:
    async with Client(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="kplane") as client:
        yield client


async def test_labelled_endpoint_has_an_instance_and_stays_unchanged(
    mcm_of: Any, api_server: Any, admin: Client, tenants: Any, eventually: Eventually
) -> None:
    stem = uuid.uuid4().hex[:8]
    names, namespace = {"one": f"one-{stem}", "two": f"two-{stem}"}, f"fleet-{stem}"
    written = {}
    await admin.create(NAMESPACES, {"metadata": {"name": namespace}})
    for key, name in names.items():
        data = {k: base64.b64encode(v).decode() for k, v in tenants[key].controllers_secret().items()}
        await admin.create(SECRETS, {"metadata": {"name": f"{name}-keys", "namespace": namespace}, "data": data})
        labels = {"fleet": stem if key == "one" else "another"}
        spec = {"endpoint": tenants[key].server}
        body = {"metadata": {"name": name, "labels": labels}, "spec": spec}
        written[key] = await admin.create(ENDPOINTS, body)
    mcm = mcm_of(api_server.admin_kubeconfig)
    mcm.start(
        "--cluster-source=controlplaneendpoint",
        "--cluster-kubeconfig-secret-template={name}-keys",
        f"--cluster-namespace-scope={namespace}",
        f"--cluster-selector=fleet={stem}",
    )
    try:

        async def states() -> dict[str, str]:
            with contextlib.suppress(OSError):
                return {name: summary["state"] for name, summary in (await asyncio.to_thread(mcm.clusters)).items()}
            return {}

        await eventually(states, lambda found: found == {names["one"]: "Ready"})
        async with Client(tenants["one"].config, field_manager="kplane") as tenant:
            await works(tenant, eventually)
        assert await admin.get(ENDPOINTS, names["one"]) == written["one"]

        # An instance ends when its endpoint loses the label, and starts when its endpoint gets the label.
        await admin.patch(ENDPOINTS, names["two"], {"metadata": {"labels": {"fleet": stem}}})
        await admin.patch(ENDPOINTS, names["one"], {"metadata": {"labels": {"fleet": None}}})
        await eventually(states, lambda found: found == {names["two"]: "Ready"})

        async def told() -> list[str]:
            events = (await admin.list(EVENTS, namespace="default")).items
            ours = [
                event for event in events if event["involvedObject"].get("uid") == written["one"]["metadata"]["uid"]
            ]
            assert all(event["involvedObject"]["kind"] == "ControlPlaneEndpoint" for event in ours)
            return sorted(event["reason"] for event in ours)

        # After a slow start there may be more Events.
        await eventually(told, lambda found: {"InstanceEnded", "InstanceStarted"} <= set(found))
    finally:
        for name in names.values():
            await admin.delete(ENDPOINTS, name)
        await admin.delete(NAMESPACES, namespace)


async def test_older_of_two_endpoints_of_an_api_server_has_the_instance(
    mcm_of: Any, api_server: Any, admin: Client, tenants: Any, eventually: Eventually
) -> None:
    stem = uuid.uuid4().hex[:8]
    names, namespace = [f"one-{stem}", f"two-{stem}", f"bare-{stem}"], f"fleet-{stem}"
    await admin.create(NAMESPACES, {"metadata": {"name": namespace}})
    data = {k: base64.b64encode(v).decode() for k, v in tenants["one"].controllers_secret().items()}
    # The endpoint without credentials is the oldest, and does not block the others.
    for name in reversed(names):
        if not name.startswith("bare"):
            await admin.create(SECRETS, {"metadata": {"name": f"{name}-keys", "namespace": namespace}, "data": data})
        spec = {"endpoint": f"{tenants['one'].server}/"}
        endpoint = await admin.create(ENDPOINTS, {"metadata": {"name": name, "labels": {"fleet": stem}}, "spec": spec})
        # Of two endpoints of the same second, neither is older.
        over = datetime.fromisoformat(endpoint["metadata"]["creationTimestamp"]) + timedelta(seconds=1)
        await eventually(lambda over=over: datetime.now(UTC) >= over)
    younger, older, _ = names
    mcm = mcm_of(api_server.admin_kubeconfig)
    mcm.start(
        "--cluster-source=controlplaneendpoint",
        "--cluster-kubeconfig-secret-template={name}-keys",
        f"--cluster-namespace-scope={namespace}",
        f"--cluster-selector=fleet={stem}",
    )
    try:

        async def states() -> dict[str, str]:
            with contextlib.suppress(OSError):
                return {name: summary["state"] for name, summary in (await asyncio.to_thread(mcm.clusters)).items()}
            return {}

        async def warnings() -> list[str]:
            events = (await admin.list(EVENTS, namespace="default")).items
            ours = [event for event in events if event["involvedObject"].get("name") == younger]
            return [event["message"] for event in ours if event["reason"] == "InstanceCannotStart"]

        await eventually(states, lambda found: found == {older: "Ready"})
        await eventually(warnings, lambda found: any(told.startswith(f"{older}, which is older") for told in found))
        await admin.delete(ENDPOINTS, older)
        await eventually(states, lambda found: found == {younger: "Ready"})
    finally:
        for name in names:
            if await admin.exists(ENDPOINTS, name):
                await admin.delete(ENDPOINTS, name)
        await admin.delete(NAMESPACES, namespace)


@pytest.mark.parametrize("gone", [False, True], ids=["there", "gone"])
async def test_end_is_reported_to_a_registration_that_lost_its_label(
    api_server: Any, admin: Client, eventually: Eventually, gone: bool
) -> None:
    """The watch shows such a registration as deleted. The operator waits for the end of the instance in its status."""
    name = f"left-{uuid.uuid4().hex[:8]}"
    spec = {"controlPlaneRef": {"name": name}, "services": ["Controllers"]}
    body = {"metadata": {"name": name, "labels": {"reports": name}}, "spec": spec}
    await admin.create(REGISTRATIONS, body)
    await admin.patch(REGISTRATIONS, name, {"status": {"ready": True, "controlPlaneUID": "u"}}, subresource="status")
    async with Client(ClusterConfig.load(api_server.mcm_kubeconfig), field_manager="kplane") as client:
        mirror = Informer(client, REGISTRATIONS, label_selector=f"reports={name}")
        task = asyncio.create_task(mirror.run())
        try:
            await eventually(lambda: mirror.get(name))
            reports = StatusReporter(client, registration=mirror.get)
            config = ClusterConfig(server="https://127.0.0.1:1", token="t")
            async with reports.running():
                await reports.announce(Cluster(name, config=config, attributes={"controlPlaneUID": "u"}))
                reports.update(name, Reason.INSTANCE_RUNNING)
                if gone:
                    await admin.delete(REGISTRATIONS, name)
                else:
                    await admin.patch(REGISTRATIONS, name, {"metadata": {"labels": {"reports": None}}})
                await eventually(lambda: mirror.get(name) is None)
                await reports.end(name)
            if gone:
                assert not await admin.exists(REGISTRATIONS, name)
                return
            status = (await admin.get(REGISTRATIONS, name))["status"]
            assert "instance" not in status
            assert [condition["reason"] for condition in status["conditions"]] == ["Ended"]
        finally:
            task.cancel()
            await asyncio.wait([task])
            if not gone:
                await admin.delete(REGISTRATIONS, name)
