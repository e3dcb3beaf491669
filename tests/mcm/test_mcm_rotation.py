"""Renewed credentials and exchanged authorities reach instances: the same process, where it can follow."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import json
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controlplane_operator.credentials import (
    CONTROLLERS_USER,
    KeyPair,
    create_authority,
    issue_client,
    issue_serving,
    render_kubeconfig,
)
from mcm.configuration import component_name
from provider import (
    CLUSTER_ROLE_BINDINGS,
    CONFIG_MAPS,
    NAMESPACES,
    SERVICE_ACCOUNTS,
    Client,
    ClusterConfig,
    Unauthorized,
)

from .control_planes import gone, manifest, works
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

    mcm.start("--instance-metrics=full")
    async with gate_to(tenant.server) as gate, Client(configs[former]) as outdated:
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
        assert {"200", "201"} <= answers.keys()
        assert "401" not in answers


async def test_an_exchanged_ca_is_given_to_namespaces_by_the_same_engagement(
    mcm: Any, fleet: Fleet, tenants: Any, one: Client, state: Any, eventually: Eventually
) -> None:
    """kube-controller-manager reads the root CA once, so its process is another one; the cluster is the same."""
    tenant = tenants["one"]
    secret, old = tenant.controllers_secret(), tenant.authorities.serving.certificate
    both = old + create_authority("next").certificate
    client = issue_client(tenant.authorities.client, user=CONTROLLERS_USER, groups=("system:masters",))
    kubeconfig = render_kubeconfig(server=tenant.server, ca=both, user=CONTROLLERS_USER, client=client)
    mcm.start()
    name = await fleet.register("a", secret, server=tenant.server)
    pid = (await state(name, "Ready"))["pid"]
    await fleet.put_secret("a", secret | {"ca.crt": both, "kubeconfig": kubeconfig})
    await state(name, "Ready", lambda found: found["pid"] != pid)

    namespace = await works(one, eventually)
    root = await eventually(lambda: one.get(CONFIG_MAPS, "kube-root-ca.crt", namespace=namespace))
    assert root["data"]["ca.crt"].encode() == both
    assert mcm.log.read_text().count(f"cluster {name}: engaged") == 1


async def test_an_exchanged_authority_of_the_api_server_restarts_nobody_who_knows_it(
    mcm: Any, gate_to: Any, fleet: Fleet, tenants: Any, one: Client, state: Any, eventually: Eventually, tmp_path: Path
) -> None:
    """With both authorities in the file the process goes on; where the certificate is exchanged at once it cannot."""
    tenant, old, new = tenants["one"], create_authority("old"), create_authority("new")
    both = old.certificate + new.certificate
    secret, token = tenant.controllers_secret(), await controllers_token(one, account=fleet.name("a"))

    def trusting(authority: bytes) -> dict[str, bytes]:
        config = {"cluster": {"server": tenant.server, "certificate-authority-data": encoded(authority)}}
        user = {"name": "a", "user": {"token": token}}
        context = {"name": "a", "context": {"cluster": "a", "user": "a"}}
        whole = {"clusters": [{"name": "a"} | config], "users": [user], "contexts": [context], "current-context": "a"}
        return secret | {"kubeconfig": json.dumps(whole).encode()}

    front = Front(tenant.config, directory=tmp_path)
    front.sign(old)
    mcm.start()
    async with gate_to(tenant.server, front=front) as gate:
        name = await fleet.register("a", trusting(old.certificate), server=gate.url)
        pid = (await state(name, "Ready"))["pid"]
        await fleet.put_secret("a", trusting(both))
        file = mcm.state / component_name(name) / "files" / "server-ca.crt"
        await eventually(lambda: file.read_bytes() == both)
        gate.cut()
        await works(one, eventually)
        assert (await state(name, "Ready"))["pid"] == pid

        front.sign(new)
        gate.cut()
        await state(name, "Ready", lambda found: found["pid"] != pid)
        await works(one, eventually)
        pid = (await state(name, "Ready"))["pid"]
        await fleet.put_secret("a", trusting(new.certificate))
        await eventually(lambda: file.read_bytes() == new.certificate)
        gate.cut()
        await works(one, eventually)
        assert (await state(name, "Ready"))["pid"] == pid


class Front:
    """Stands before an API server with a certificate of its own, which can be exchanged."""

    def __init__(self, config: ClusterConfig, *, directory: Path) -> None:
        assert config.ca_data is not None
        self.inside = ssl.create_default_context(cadata=config.ca_data.decode())
        self.outside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._file = directory / "front.pem"

    def sign(self, authority: KeyPair) -> None:
        pair = issue_serving(authority, common_name="front", hosts=("127.0.0.1",))
        self._file.write_bytes(pair.certificate + pair.key)
        self.outside.load_cert_chain(self._file)


async def controllers_token(client: Client, *, account: str) -> str:
    """A token with all rights in a control plane, of a ServiceAccount that this makes."""
    await client.create(SERVICE_ACCOUNTS, manifest("v1", "ServiceAccount", account, namespace="kube-system"))
    group = "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "name": account, "namespace": "kube-system"}
    role = {"apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin"}
    binding = manifest(f"{group}/v1", "ClusterRoleBinding", account, roleRef=role, subjects=[subject])
    await client.create(CLUSTER_ROLE_BINDINGS, binding)
    path = f"/api/v1/namespaces/kube-system/serviceaccounts/{account}/token"
    made: Any = await client.request("POST", path, body={"spec": {}})
    return str(made["status"]["token"])


def writers_in(audit: Path, *, namespace: str) -> set[str]:
    """Names of the users whose requests changed something in a namespace; the part after the last colon."""
    events = [json.loads(line) for line in audit.read_text().splitlines() if namespace in line]
    inside = [event for event in events if event["objectRef"].get("namespace") == namespace]
    return {event["user"]["username"].rpartition(":")[2] for event in inside}


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()
