"""Exchange of certificate authorities while instances run."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kplane.pki.authorities import CONTROLLERS_USER
from kplane.pki.kubeconfig import render_kubeconfig
from kplane.pki.primitives import KeyPair, create_authority, issue_client, issue_serving
from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import CONFIG_MAPS

from .control_planes import controllers_token, works

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("mcm"), pytest.mark.timeout(300)]

Eventually = Callable[..., Any]
Fleet = Any


@pytest.fixture
def mcm(shared_mcm: Any) -> Any:
    return shared_mcm


async def test_exchanged_ca_reaches_namespaces_in_the_same_engagement(
    mcm: Any, fleet: Fleet, tenants: Any, one: Client, state: Any, eventually: Eventually
) -> None:
    """kube-controller-manager reads the root CA once, so its process restarts. The cluster stays engaged."""
    tenant = tenants["one"]
    secret, old_ca = tenant.controllers_secret(), tenant.authorities.serving.certificate
    both_cas = old_ca + create_authority("next").certificate
    client = issue_client(tenant.authorities.client, user=CONTROLLERS_USER, groups=("system:masters",))
    kubeconfig = render_kubeconfig(server=tenant.server, ca=both_cas, user=CONTROLLERS_USER, client=client)
    name = await fleet.register("a", secret, server=tenant.server)
    pid = (await state(name, "Ready"))["pid"]
    await fleet.put_secret("a", secret | {"ca.crt": both_cas, "kubeconfig": kubeconfig})
    await state(name, "Ready", lambda found: found["pid"] != pid)

    namespace = await works(one, eventually)
    root = await eventually(lambda: one.get(CONFIG_MAPS, "kube-root-ca.crt", namespace=namespace))
    assert root["data"]["ca.crt"].encode() == both_cas
    assert mcm.log.read_text().count(f"cluster {name}: engaged") == 1


async def test_instance_restarts_with_exchanged_authorities_of_the_server(
    mcm: Any, gate_to: Any, fleet: Fleet, tenants: Any, one: Client, state: Any, eventually: Eventually, tmp_path: Path
) -> None:
    """The instance restarts with both authorities, so it goes on while the server certificate is replaced."""
    tenant, old_ca, new_ca = tenants["one"], create_authority("old"), create_authority("new")
    both_cas = old_ca.certificate + new_ca.certificate
    secret, token = tenant.controllers_secret(), await controllers_token(one, account=fleet.name("a"))

    def trusting(authority: bytes) -> dict[str, bytes]:
        config = {"cluster": {"server": tenant.server, "certificate-authority-data": encoded(authority)}}
        user = {"name": "a", "user": {"token": token}}
        context = {"name": "a", "context": {"cluster": "a", "user": "a"}}
        document = {
            "clusters": [{"name": "a"} | config],
            "users": [user],
            "contexts": [context],
            "current-context": "a",
        }
        return secret | {"kubeconfig": json.dumps(document).encode()}

    front = Front(tenant.config, directory=tmp_path)
    front.sign(old_ca)
    async with gate_to(tenant.server, front=front) as gate:
        name = await fleet.register("a", trusting(old_ca.certificate), server=gate.url)
        pid = (await state(name, "Ready"))["pid"]
        await fleet.put_secret("a", trusting(both_cas))
        pid = (await state(name, "Ready", lambda found: found["pid"] != pid))["pid"]
        await works(one, eventually)

        front.sign(new_ca)
        gate.cut()
        await works(one, eventually)
        assert (await state(name, "Ready"))["pid"] == pid
        await fleet.put_secret("a", trusting(new_ca.certificate))
        await state(name, "Ready", lambda found: found["pid"] != pid)
        gate.cut()
        await works(one, eventually)


class Front:
    """TLS in front of an API server, with a separate certificate that tests can exchange."""

    def __init__(self, config: ClusterConfig, *, directory: Path) -> None:
        assert config.ca_data is not None
        self.inside = ssl.create_default_context(cadata=config.ca_data.decode())
        self.outside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._file = directory / "front.pem"

    def sign(self, authority: KeyPair) -> None:
        pair = issue_serving(authority, common_name="front", hosts=("127.0.0.1",))
        self._file.write_bytes(pair.certificate + pair.key)
        self.outside.load_cert_chain(self._file)


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()
