"""A tenant's kube-apiserver, whose etcd user may access its prefix only: data, restarts, renewals, authentication."""

from __future__ import annotations

import asyncio
import datetime as dt
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from kplane.components.api_server import READY
from kplane.controlplane_operator.backends.readiness import BOOTSTRAP_CHECKS, READY_WITHOUT_BOOTSTRAP_CHECKS
from kplane.controlplane_operator.tenant.bootstrap import ADMIN_ACCOUNT, Subject, bootstrap
from kplane.controlplane_operator.tenant.tokens import request_token
from kplane.pki.authorities import CONTROLLERS_USER
from kplane.pki.primitives import issue_serving
from kplane.provider import ApiError, Client, ClusterConfig, Resource
from kplane.provider.client.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    EVENTS,
    NAMESPACES,
    PODS,
    ROLE_BINDINGS,
    SERVICE_ACCOUNTS,
)
from kplane.provider.errors import Unauthorized
from kplane.workloads import Address, File, ProcessRuntime

pytestmark = pytest.mark.integration

Start = Callable[..., Awaitable[Any]]
Ready = Callable[..., Awaitable[object]]

_CUPS = Resource("shop.example/v1", "Cup", "cups", namespaced=True)
_CRD = {
    "metadata": {"name": "cups.shop.example"},
    "spec": {
        "group": "shop.example",
        "names": {"kind": "Cup", "plural": "cups"},
        "scope": "Namespaced",
        "versions": [
            {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
        ],
    },
}
_BINDING = {
    "metadata": {"name": "keeper", "namespace": "shop"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    "subjects": [{"kind": "ServiceAccount", "name": "keeper", "namespace": "shop"}],
}
_POD = {
    "serviceAccountName": "keeper",
    "priorityClassName": "system-node-critical",
    "containers": [{"name": "cup", "image": "cup"}],
}
_BEGUN_WITH = (
    CLUSTER_ROLES,
    CLUSTER_ROLE_BINDINGS,
    Resource("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses", namespaced=False),
)


def _event(name: str) -> dict[str, Any]:
    involved = {"kind": "Pod", "name": "pod", "namespace": "shop"}
    return {"metadata": {"name": name}, "involvedObject": involved, "reason": "Tested", "message": "", "type": "Normal"}


@pytest.mark.slow
async def test_data_survive_restart_under_tenant_prefix(
    shared_etcd: Any, start_tenant: Start, runtime: ProcessRuntime, path: str, ready: Ready
) -> None:
    tenant = await start_tenant(path)
    component = replace(tenant.component, grace_seconds=120.0)
    await runtime.apply(component)
    await ready(runtime, component.name)
    async with Client(tenant.administrator, field_manager="kplane") as client:
        await client.create(NAMESPACES, {"metadata": {"name": "shop"}})
        await client.create(CONFIG_MAPS, {"metadata": {"name": "prices", "namespace": "shop"}, "data": {"tea": "3"}})
        # kube-apiserver writes an Event with a lease, which needs a permission of its own in etcd.
        await client.create(EVENTS, _event("one"), namespace="shop")
        follows = asyncio.Event()
        watch = asyncio.create_task(_follow(client, follows))
        try:
            async with asyncio.timeout(60):
                await follows.wait()
                # The API server does not wait for open watches, which last for minutes.
                await runtime.stop(component.name)
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    await runtime.apply(tenant.component)
    await ready(runtime, tenant.component.name)
    async with Client(tenant.administrator, field_manager="kplane") as client:
        assert (await client.get(CONFIG_MAPS, "prices", namespace="shop"))["data"] == {"tea": "3"}
        assert (await client.get(EVENTS, "one", namespace="shop"))["reason"] == "Tested"
    assert await shared_etcd.keyspace.count(f"/clusters/{path}/") > 50
    log = runtime.log_path(tenant.component.name).read_text(errors="replace")
    assert [line for line in log.splitlines() if "permission denied" in line] == []


@pytest.mark.slow
async def test_restarted_api_server_answers_first_requests_correctly(
    start_tenant: Start, runtime: ProcessRuntime, path: str, ready: Ready, eventually: Callable[..., Any]
) -> None:
    """The first requests need tokens, roles, discovery, custom resources and PriorityClasses."""
    tenant = await start_tenant(path)
    async with Client(tenant.administrator, field_manager="kplane") as client:
        await client.create(NAMESPACES, {"metadata": {"name": "shop"}})
        await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "keeper", "namespace": "shop"}})
        await client.create(ROLE_BINDINGS, _BINDING)
        await client.create(CUSTOM_RESOURCE_DEFINITIONS, _CRD)
        token = await request_token(client, service_account="keeper", namespace="shop", lifetime=dt.timedelta(hours=1))
        await eventually(lambda: client.get(CUSTOM_RESOURCE_DEFINITIONS, "cups.shop.example"), _is_established)
    assert tenant.component.readiness is not None
    readiness = replace(tenant.component.readiness, path=READY_WITHOUT_BOOTSTRAP_CHECKS, interval_seconds=0.02)
    keeper = replace(tenant.administrator, client_certificate=None, client_key=None, token=token.value)
    for number in range(3):
        await runtime.stop(tenant.component.name)
        await runtime.apply(replace(tenant.component, readiness=readiness))
        await ready(runtime, tenant.component.name)
        async with (
            Client(keeper, field_manager="kplane") as client,
            Client(tenant.administrator, field_manager="kplane") as administrator,
        ):
            cup = {"metadata": {"name": f"cup-{number}", "namespace": "shop"}}
            pod, groups, _, _, *before = await asyncio.gather(
                client.create(PODS, {"metadata": {"name": f"pod-{number}", "namespace": "shop"}, "spec": _POD}),
                client.request("GET", "/apis"),
                client.create(_CUPS, cup),
                client.list(CONFIG_MAPS, namespace="shop"),
                *(administrator.list(resource) for resource in _BEGUN_WITH),
            )
            assert pod["spec"]["priority"] == 2_000_001_000
            assert {"rbac.authorization.k8s.io", "shop.example"} <= {item["name"] for item in groups["groups"]}
            # The bootstrap checks that the probe leaves out change no object.
            for check in BOOTSTRAP_CHECKS:
                await eventually(lambda check=check: _passes(administrator, f"{READY}/{check}"), bool)
            await administrator.probe(READY)
            after = [await administrator.list(resource) for resource in _BEGUN_WITH]
            assert [item.items for item in after] == [item.items for item in before]


async def _passes(client: Client, check: str) -> bool:
    try:
        await client.probe(check)
    except ApiError:
        return False
    return True


def _is_established(crd: dict[str, Any]) -> bool:
    conditions = crd.get("status", {}).get("conditions", ())
    return any(condition["type"] == "Established" and condition["status"] == "True" for condition in conditions)


async def _follow(client: Client, follows: asyncio.Event) -> None:
    async with client.watch(NAMESPACES, resource_version=None) as watch:
        async for _ in watch:
            follows.set()


async def test_credentials_of_a_tenant_are_unauthorized_at_another(tenant: Any, start_tenant: Start, path: str) -> None:
    issuer, other = tenant, await start_tenant(path)
    settings: dict[str, Any] = {"admin": ADMIN_ACCOUNT, "controllers": Subject("User", CONTROLLERS_USER)}
    async with Client(issuer.administrator, field_manager="kplane") as client:
        await client.create(NAMESPACES, {"metadata": {"name": "shop"}})
        await bootstrap(client, admin_role="cluster-admin", **settings)
        token = await request_token(client, service_account=ADMIN_ACCOUNT.name, lifetime=dt.timedelta(hours=1))
    async with Client(other.administrator, field_manager="kplane") as client:
        await bootstrap(client, admin_role="cluster-admin", **settings)
        assert "shop" not in {item["metadata"]["name"] for item in (await client.list(NAMESPACES)).items}

    endpoint = {"server": other.administrator.server, "ca_data": other.administrator.ca_data}
    certificate, key = issuer.administrator.client_certificate, issuer.administrator.client_key
    for config in (
        ClusterConfig(**endpoint, client_certificate=certificate, client_key=key),
        ClusterConfig(**endpoint, token=token.value),
    ):
        async with Client(config, field_manager="kplane") as client:
            with pytest.raises(Unauthorized):
                await client.list(NAMESPACES)


async def test_anonymous_request_reaches_health_endpoints_only(tenant: Any) -> None:
    anonymous = ClusterConfig(server=tenant.administrator.server, ca_data=tenant.administrator.ca_data)
    async with Client(anonymous, field_manager="kplane") as client:
        for path in ("/livez", "/readyz", "/healthz"):
            await client.probe(path)
        for path in ("/version", "/api", "/openapi/v2", "/metrics", "/livez/etcd"):
            with pytest.raises(Unauthorized):
                await client.request("GET", path)


@pytest.mark.slow
async def test_renewed_certificates_are_served_without_a_restart(
    runtime: ProcessRuntime, own_etcd: Any, start_tenant: Start, path: str, eventually: Callable[..., Any]
) -> None:
    tenant = await start_tenant(path, etcd=own_etcd)
    etcd, api_server = own_etcd.component, tenant.component
    pids = {component.name: runtime.state(component.name).pid for component in (etcd, api_server)}
    address = Address("127.0.0.1", {port.name: port.number for port in api_server.ports})

    renewed_api_server = tenant.describe(dt.datetime.now(dt.UTC) + dt.timedelta(days=300))
    assert renewed_api_server.args == api_server.args
    assert renewed_api_server.files["server.crt"] != api_server.files["server.crt"]
    server = issue_serving(own_etcd.authority, common_name="etcd", hosts=["127.0.0.1"], client=True)
    renewed = {"server.crt": replace(etcd.files["server.crt"], content=server.certificate)}
    renewed["server.key"] = replace(etcd.files["server.key"], content=server.key)
    await runtime.apply(renewed_api_server)
    await runtime.apply(replace(etcd, files={**etcd.files, **renewed}))

    for served_at, file in (
        ((address.host, address.ports["https"]), renewed_api_server.files["server.crt"]),
        ((own_etcd.address.host, own_etcd.address.ports["client"]), renewed["server.crt"]),
    ):
        await eventually(lambda served_at=served_at: asyncio.to_thread(_served_at, *served_at), _is(file), timeout=120)
    async with Client(tenant.administrator, field_manager="kplane") as client:
        await client.create(NAMESPACES, {"metadata": {"name": "after"}})
    assert {name: runtime.state(name).pid for name in pids} == pids


def _is(file: File) -> Callable[[bytes], bool]:
    return lambda served: ssl.PEM_cert_to_DER_cert(file.content.decode()) == served


def _served_at(host: str, port: int) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    # Below TLS 1.3 etcd refuses the missing client certificate before we have seen its own.
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with socket.create_connection((host, port), timeout=20) as plain, context.wrap_socket(plain) as tls:
        return tls.getpeercert(binary_form=True) or b""
