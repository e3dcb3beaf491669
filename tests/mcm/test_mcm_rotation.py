"""Renewed credentials reach the same process, also after the former credentials have expired or are refused."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kplane.mcm.describe.controllers import component_name
from kplane.pki.authorities import CONTROLLERS_USER
from kplane.pki.kubeconfig import render_kubeconfig
from kplane.pki.primitives import issue_client
from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import NAMESPACES, SERVICE_ACCOUNTS
from kplane.provider.errors import Unauthorized

from .control_planes import controllers_token, gone, works
from .mcm_process import samples

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.xdist_group("mcm_rotation"),
    pytest.mark.timeout(300),
]

Eventually = Callable[..., Any]
Fleet = Any

_TOKEN_SECONDS = 52
"""client-go reads a token file again 50 s after the last read (transport/token_source.go). The rest is slack."""


async def test_process_uses_a_renewed_certificate_without_a_restart(
    mcm: Any, gate_to: Any, fleet: Fleet, tenants: Any, one: Client, state: Any, eventually: Eventually
) -> None:
    """The first certificate expires while the instance runs, and every connection has to be made again."""
    tenant = tenants["one"]
    secret = tenant.controllers_secret()

    async def put_short_lived(lifetime: dt.timedelta) -> dt.datetime:
        """Write a certificate with this lifetime to the Secret. Returns its expiry."""
        expires = dt.datetime.now(dt.UTC) + lifetime
        client = issue_client(
            tenant.authorities.client, user=CONTROLLERS_USER, groups=("system:masters",), lifetime=lifetime
        )
        kubeconfig = render_kubeconfig(
            server=tenant.server, ca=tenant.authorities.serving.certificate, user=CONTROLLERS_USER, client=client
        )
        await fleet.put_secret("a", secret | {"kubeconfig": kubeconfig})
        return expires

    mcm.start()
    await eventually(lambda: asyncio.to_thread(mcm.get, "/readyz"), lambda answer: answer[0] == 200)
    async with gate_to(tenant.server) as gate:
        expires = await put_short_lived(dt.timedelta(seconds=12))
        name = await fleet.add("a", server=gate.url, secret="a", services=("Controllers",))
        before = await state(name, "Ready")
        if dt.datetime.now(dt.UTC) > expires:
            # On a busy machine, the certificate may have expired before the instance used it.
            expires = await put_short_lived(dt.timedelta(seconds=90))
            before = await state(name, "Ready")
        await fleet.put_secret("a", secret)
        renewed = ClusterConfig.from_kubeconfig(secret["kubeconfig"]).client_certificate
        file = mcm.state / component_name(name) / "files" / "client.pem"
        await eventually(lambda: renewed.strip() in file.read_bytes())
        await eventually(lambda: dt.datetime.now(dt.UTC) > expires, timeout=180.0)
        gate.cut()
        await works(one, eventually)
        after = await state(name, "Ready")
        assert (after["pid"], after["restarts"]) == (before["pid"], before["restarts"])


@pytest.mark.timeout(420)
async def test_process_uses_a_rotated_token_without_a_restart(
    mcm: Any, gate_to: Any, fleet: Fleet, tenants: Any, one: Client, state: Any, eventually: Eventually
) -> None:
    """The first token is refused while the instance runs, and every connection has to be made again."""
    tenant, (old_account, new_account) = tenants["one"], (fleet.name("former"), fleet.name("latter"))
    secret, ca = tenant.controllers_secret(), tenant.authorities.serving.certificate
    configs = {
        account: ClusterConfig(server=tenant.server, ca_data=ca, token=await controllers_token(one, account=account))
        for account in (old_account, new_account)
    }

    def with_token_of(account: str) -> dict[str, bytes]:
        return secret | {"kubeconfig": json.dumps(configs[account].to_kubeconfig()).encode()}

    async def refused(client: Client) -> bool:
        try:
            await client.get(NAMESPACES, "default")
        except Unauthorized:
            return True
        return False

    mcm.start()
    async with gate_to(tenant.server) as gate, Client(configs[old_account], field_manager="kplane") as old_client:
        name = await fleet.register("a", with_token_of(old_account), server=gate.url)
        before = await state(name, "Ready")
        namespace = await works(one, eventually)
        await eventually(lambda: writers_in(tenant.audit, namespace=namespace) == {old_account})
        await fleet.put_secret("a", with_token_of(new_account))
        file = mcm.state / component_name(name) / "files" / "token"
        await eventually(lambda: file.read_text() == configs[new_account].token)
        read_again_at = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=_TOKEN_SECONDS)
        await eventually(lambda: dt.datetime.now(dt.UTC) > read_again_at, timeout=2 * _TOKEN_SECONDS)

        await one.delete(SERVICE_ACCOUNTS, old_account, namespace="kube-system")
        # An API server caches an accepted token for 10 s.
        await eventually(lambda: refused(old_client))
        gate.cut()
        namespace = await works(one, eventually)
        await eventually(lambda: writers_in(tenant.audit, namespace=namespace) == {new_account})
        await one.delete(NAMESPACES, namespace)
        await eventually(lambda: gone(one, NAMESPACES, namespace))
        after = await state(name, "Ready")
        assert (after["pid"], after["restarts"]) == (before["pid"], before["restarts"])
        values = await eventually(
            lambda: asyncio.to_thread(samples, mcm), lambda found: ("rest_client_requests_total", name) in found
        )
        answers = values["rest_client_requests_total", name]
        assert "2xx" in answers
        assert "401" not in answers


def writers_in(audit: Path, *, namespace: str) -> set[str]:
    """Return the users that changed objects in a namespace, by the part of their names after the last colon."""
    events = [json.loads(line) for line in audit.read_text().splitlines() if namespace in line]
    changes = [event for event in events if event["objectRef"].get("namespace") == namespace]
    return {event["user"]["username"].rpartition(":")[2] for event in changes}
