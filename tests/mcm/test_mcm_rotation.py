"""Renewed credentials reach the same process, also after the former ones have expired or are refused."""

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
"""client-go takes a token from its file again 50 s after it did so last (transport/token_source.go), and some slack."""


async def test_a_renewed_certificate_is_used_by_the_same_process(
    mcm: Any, gate_to: Any, fleet: Fleet, tenants: Any, one: Client, state: Any, eventually: Eventually
) -> None:
    """The first certificate expires while the instance runs, and every connection has to be made again."""
    tenant = tenants["one"]
    secret = tenant.controllers_secret()

    async def put_short_lived(lifetime: dt.timedelta) -> dt.datetime:
        """Give it a certificate that expires when this tells."""
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
            # The machine does other things too, and the instance may have started without one that counts.
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
async def test_a_rotated_token_is_used_by_the_same_process(
    mcm: Any, gate_to: Any, fleet: Fleet, tenants: Any, one: Client, state: Any, eventually: Eventually
) -> None:
    """The first token is refused while the instance runs, and every connection has to be made again."""
    tenant, (former, latter) = tenants["one"], (fleet.name("former"), fleet.name("latter"))
    secret, ca = tenant.controllers_secret(), tenant.authorities.serving.certificate
    configs = {
        account: ClusterConfig(server=tenant.server, ca_data=ca, token=await controllers_token(one, account=account))
        for account in (former, latter)
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
    async with gate_to(tenant.server) as gate, Client(configs[former], field_manager="kplane") as outdated:
        name = await fleet.register("a", with_token_of(former), server=gate.url)
        before = await state(name, "Ready")
        namespace = await works(one, eventually)
        await eventually(lambda: writers_in(tenant.audit, namespace=namespace) == {former})
        await fleet.put_secret("a", with_token_of(latter))
        file = mcm.state / component_name(name) / "files" / "token"
        await eventually(lambda: file.read_text() == configs[latter].token)
        taken = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=_TOKEN_SECONDS)
        await eventually(lambda: dt.datetime.now(dt.UTC) > taken, timeout=2 * _TOKEN_SECONDS)

        await one.delete(SERVICE_ACCOUNTS, former, namespace="kube-system")
        # An API server knows for 10 s that it accepted a token.
        await eventually(lambda: refused(outdated))
        gate.cut()
        namespace = await works(one, eventually)
        await eventually(lambda: writers_in(tenant.audit, namespace=namespace) == {latter})
        await one.delete(NAMESPACES, namespace)
        await eventually(lambda: gone(one, NAMESPACES, namespace))
        after = await state(name, "Ready")
        assert (after["pid"], after["restarts"]) == (before["pid"], before["restarts"])
        found = await eventually(
            lambda: asyncio.to_thread(samples, mcm), lambda found: ("rest_client_requests_total", name) in found
        )
        answers = found["rest_client_requests_total", name]
        assert "2xx" in answers
        assert "401" not in answers


def writers_in(audit: Path, *, namespace: str) -> set[str]:
    """Names of the users whose requests changed something in a namespace; the part after the last colon."""
    events = [json.loads(line) for line in audit.read_text().splitlines() if namespace in line]
    inside = [event for event in events if event["objectRef"].get("namespace") == namespace]
    return {event["user"]["username"].rpartition(":")[2] for event in inside}
