"""Renewal of serving certificates, without a restart of their processes, and of kubeconfigs."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import functools
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from kplane.pki import issuing
from kplane.pki import primitives as pki
from kplane.pki.authorities import TenantAuthorities, TenantCertificates
from kplane.pki.primitives import hosts_of, issue_serving, renewal_due
from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import NAMESPACES, SECRETS
from kplane.workloads import find_processes

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

_SECRETS = {"authorities": "control-plane-authorities", "certificates": "control-plane-certificates"}


async def kept(target: Any, name: str, which: str) -> dict[str, bytes]:
    secret = await target.client.get(SECRETS, _SECRETS[which], namespace=f"kplane-cp-{name}")
    return {key: base64.b64decode(value) for key, value in secret["data"].items()}


def served(server: str) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    url = urlsplit(server)
    with (
        socket.create_connection((url.hostname, url.port or 443), timeout=5) as plain,
        context.wrap_socket(plain) as tls,
    ):
        return ssl.DER_cert_to_PEM_cert(tls.getpeercert(binary_form=True) or b"").encode()


async def test_expiring_serving_certificate_is_renewed_without_restart(
    field: Any, house: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Renew after a thousandth of the lifetime instead of two thirds.
    monkeypatch.setattr(pki, "_RENEWED_AFTER", 1 / 1000)
    config = await field.tenant("house")
    authorities = TenantAuthorities.from_secret(await kept(field, "house", "authorities"))
    first = TenantCertificates.from_secret(await kept(field, "house", "certificates"))
    processes = find_processes(field.state)

    near = issue_serving(
        authorities.serving,
        common_name="kube-apiserver",
        hosts=sorted(hosts_of(first.api_server.certificate)),
        lifetime=dt.timedelta(minutes=20),
    )
    await field.eventually(lambda: renewal_due(near.certificate, now=dt.datetime.now(dt.UTC)))
    data = {"apiserver.crt": near.certificate, "apiserver.key": near.key}
    encoded = {name: base64.b64encode(content).decode() for name, content in data.items()}
    await field.client.patch(SECRETS, _SECRETS["certificates"], {"data": encoded}, namespace="kplane-cp-house")

    async def renewed() -> bytes:
        return (await kept(field, "house", "certificates"))["apiserver.crt"]

    former_certificates = {near.certificate, first.api_server.certificate}
    certificate = await field.eventually(renewed, lambda found: found not in former_certificates)
    await field.eventually(lambda: asyncio.to_thread(served, config.server), lambda found: found == certificate)
    async with Client(config, field_manager="kplane") as tenant:
        await tenant.list(NAMESPACES)
    assert find_processes(field.state) == processes


@pytest.mark.parametrize("model", ["token", pytest.param("x509", marks=pytest.mark.slow)])
async def test_published_credentials_are_renewed_and_former_still_work(
    field: Any, adopt: Callable[..., Awaitable[dict[str, Any]]], model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Renew after a small part of ten minutes instead of two thirds.
    for module in (issuing, pki):
        monkeypatch.setattr(module, "_RENEWED_AFTER", 1 / 300)
    name = f"lasting-{model}"
    await field.create("ControlPlaneClass", name, deletionPolicy="Destroy", auth={"model": model, "lifetime": "10m"})
    # Client certificates need the CA of the API server, which kplane lacks for an adopted API server.
    create = adopt if model == "token" else functools.partial(field.create, "ControlPlane")
    await create(name, classRef={"name": name})
    first = await field.becomes("ControlPlane", name, "Reconciled")
    configs = [await field.tenant(name)]

    async def published() -> ClusterConfig:
        config: ClusterConfig = await field.tenant(name)
        return config

    for _ in range(2):
        configs.append(await field.eventually(published, lambda config: config not in configs))
    for config in configs:
        async with Client(config, field_manager="kplane") as tenant:
            await tenant.list(NAMESPACES)

    async def expires_at() -> str:
        return str((await field.get("ControlPlane", name))["status"]["credentialsExpireAt"])

    await field.eventually(expires_at, lambda found: found > first["status"]["credentialsExpireAt"])
    assert await field.reason("ControlPlane", name) == "Reconciled"
