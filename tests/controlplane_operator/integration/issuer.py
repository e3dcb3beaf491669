"""OpenID Connect issuer at an address of this machine."""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from kplane.pki.primitives import create_authority, issue_serving

from .machine import own_address

_KEY_ID = "one"


@dataclass(frozen=True, slots=True)
class Issuer:
    """Signs tokens with the key in its JWKS document."""

    url: str
    destination: dict[str, Any]
    """Entry of `spec.allowedDestinations` of a class that lets API servers connect to the issuer."""
    ca: str
    key: ec.EllipticCurvePrivateKey

    def token(self, **claims: Any) -> str:
        now = int(time.time())
        content = {"iss": self.url, "iat": now, "exp": now + 600, **claims}
        signed = ".".join(
            _encoded(json.dumps(part).encode()) for part in ({"alg": "ES256", "kid": _KEY_ID, "typ": "JWT"}, content)
        )
        signature = decode_dss_signature(self.key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{signed}.{_encoded(b''.join(number.to_bytes(32, 'big') for number in signature))}"


@contextlib.asynccontextmanager
async def running_issuer(directory: Path) -> AsyncIterator[Issuer]:
    """Run the issuer's HTTPS server."""
    authority, key = create_authority("issuer"), ec.generate_private_key(ec.SECP256R1())
    host = own_address()
    pair = issue_serving(authority, common_name="issuer", hosts=[host])
    for name, content in (("server.crt", pair.certificate), ("server.key", pair.key)):
        file = directory / name
        file.touch(mode=0o600)
        file.write_bytes(content)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "server.crt", directory / "server.key")
    documents: dict[str, Any] = {}

    async def answer(request: web.Request) -> web.Response:
        return web.json_response(documents[request.path])

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, 0, ssl_context=context).start()
        port = runner.addresses[0][1]
        url = f"https://{host}:{port}"
        point = key.public_key().public_numbers()
        jwk = {"kty": "EC", "crv": "P-256", "kid": _KEY_ID, "use": "sig", "alg": "ES256"}
        jwk |= {name: _encoded(number.to_bytes(32, "big")) for name, number in (("x", point.x), ("y", point.y))}
        documents["/keys"] = {"keys": [jwk]}
        documents["/.well-known/openid-configuration"] = {
            "issuer": url,
            "jwks_uri": f"{url}/keys",
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        }
        yield Issuer(url, {"cidr": f"{host}/32", "ports": [port]}, authority.certificate.decode(), key)
    finally:
        await runner.cleanup()


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
