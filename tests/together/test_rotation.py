"""Controllers of a control plane during the rotation of its CAs and its ServiceAccount key."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kplane.api.names import FINISH_ROTATION_ANNOTATION, ROTATE_ANNOTATION, controllers_secret_name
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.pki.signatures import signed_by
from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import CONFIG_MAPS, NAMESPACES, SECRETS, SERVICE_ACCOUNTS
from kplane.provider.errors import Forbidden, Unauthorized

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
]

_REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"


async def ask_for_lasting_token(client: Client, name: str) -> None:
    """Request a legacy token, which the controllers sign and write into a Secret."""
    secret = {
        "metadata": {"name": name, "namespace": "default", "annotations": {"kubernetes.io/service-account.name": name}},
        "type": "kubernetes.io/service-account-token",
    }
    await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": name, "namespace": "default"}})
    await client.create(SECRETS, secret)


async def token_of(client: Client, name: str) -> ClusterConfig:
    data = (await client.get(SECRETS, name, namespace="default"))["data"]
    token = base64.b64decode(data["token"]).decode()
    return replace(client.config, token=token, client_certificate=None, client_key=None)


async def signed(client: Client, name: str, *, eventually: Any) -> ClusterConfig:
    """Return a client configuration with a certificate that the controllers signed."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    spec = {
        "request": base64.b64encode(request.public_bytes(serialization.Encoding.PEM)).decode(),
        "signerName": "kubernetes.io/kube-apiserver-client",
        "usages": ["client auth"],
    }
    created: Any = await client.request("POST", _REQUESTS, body={"metadata": {"name": name}, "spec": spec})
    approved = {"type": "Approved", "status": "True", "reason": "Test", "message": ""}
    created["status"] = {"conditions": [approved]}
    await client.request("PUT", f"{_REQUESTS}/{name}/approval", body=created)

    async def certificate() -> str:
        signing_request: Any = await client.request("GET", f"{_REQUESTS}/{name}")
        return str(signing_request["status"]["certificate"])

    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    issued = base64.b64decode(await eventually(certificate))
    return replace(client.config, token=None, client_certificate=issued, client_key=pem)


async def known(config: ClusterConfig) -> bool:
    """Tell whether the API server authenticates the client. Authorization may fail."""
    async with Client(config, field_manager="kplane") as client:
        try:
            await client.list(NAMESPACES)
        except Forbidden:
            return True
        except Unauthorized:
            return False
    return True


async def annotate(platform: Any, annotations: dict[str, str]) -> None:
    await platform.client.patch(CONTROL_PLANES, "wheel", {"metadata": {"annotations": annotations}})


async def reaches(platform: Any, phase: str) -> None:
    async def told() -> str:
        return str((await platform.status("ControlPlane", "wheel"))["rotation"]["phase"])

    await platform.eventually(told, lambda found: found == phase)
    await platform.ready("ControlPlane", "wheel")


async def controllers_keys(platform: Any) -> dict[str, bytes]:
    secret = await platform.client.get(SECRETS, controllers_secret_name("wheel"), namespace="kplane-cp-wheel")
    return {name: base64.b64decode(value) for name, value in secret["data"].items()}


async def test_tokens_and_certificates_of_controllers_survive_rotation(platform: Any) -> None:
    await platform.create("ControlPlaneClass", "turning", deletionPolicy="Destroy", defaultServices=["Controllers"])
    await platform.create("ControlPlane", "wheel", classRef={"name": "turning"})
    await platform.ready("ControlPlaneRegistration", "wheel")
    await platform.running("wheel")
    eventually = platform.eventually

    before = await platform.tenant("wheel")
    async with Client(before, field_manager="kplane") as client:
        # A legacy token is valid while its Secret contains it. Replacing the token invalidates the former token.
        for name in ("early", "replaced"):
            await ask_for_lasting_token(client, name)
        await eventually(lambda: token_of(client, "replaced"))
        token = await eventually(lambda: token_of(client, "early"))
        certificate = await signed(client, "early", eventually=eventually)
        assert await known(token)
        assert await known(certificate)

    await annotate(platform, {ROTATE_ANNOTATION: "first"})
    await reaches(platform, "Overlapping")
    during = await platform.tenant("wheel")
    key = (await controllers_keys(platform))["sa.key"]
    async with Client(during, field_manager="kplane") as client:

        async def written_anew() -> ClusterConfig:
            current = await token_of(client, "replaced")
            if not signed_by(str(current.token), key=key):
                # Documented step for users. The controllers may not have the new key yet.
                await client.patch(SECRETS, "replaced", {"data": {"token": None}}, namespace="default")
            return current

        lasting = await eventually(written_anew, lambda found: signed_by(found.token, key=key))
        assert await known(lasting)
        assert await known(token)
        assert await known(certificate)

    await annotate(platform, {FINISH_ROTATION_ANNOTATION: "first"})
    await reaches(platform, "Done")
    after = await platform.tenant("wheel")
    async with Client(after, field_manager="kplane") as client:

        async def root() -> bytes:
            config_map = await client.get(CONFIG_MAPS, "kube-root-ca.crt", namespace="default")
            return config_map["data"]["ca.crt"].encode()

        await eventually(root, lambda found: found == after.ca_data)
        await ask_for_lasting_token(client, "late")
        assert await known(await eventually(lambda: token_of(client, "late")))
        assert await known(await signed(client, "late", eventually=eventually))
    assert await known(replace(lasting, ca_data=after.ca_data))
    # An API server caches the authentication of a token for 10 s.
    for old in (token, certificate):
        former = replace(old, ca_data=after.ca_data)
        await eventually(lambda: known(former), lambda found: not found)  # noqa: B023
