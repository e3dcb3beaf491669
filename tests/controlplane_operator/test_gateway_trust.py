"""The gateway's certificate and its CA: issued, renewed and published by the operator."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kplane.controlplane_operator import gateway_trust
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.gateway import Gateway
from kplane.controlplane_operator.gateway_trust import AUTHORITY, CERTIFICATE, GatewayTrust
from kplane.pki.primitives import KeyPair, create_authority, hosts_of, issued_by
from kplane.provider import NotFound
from kplane.provider.errors import Forbidden


class Secrets:
    """Fake management cluster: stores Secrets, and records each write."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, str]] = {}
        self.written: list[str] = []

    async def get(self, _: Any, name: str, *, namespace: str) -> dict[str, Any]:
        assert namespace == "kplane-system"
        if name not in self.kept:
            raise NotFound(404, "NotFound", "no such Secret")
        return {"data": self.kept[name]}

    async def apply(self, _: Any, body: dict[str, Any], *, force: bool) -> None:
        self.kept[body["metadata"]["name"]] = body["data"]
        self.written.append(body["metadata"]["name"])

    def data(self, name: str) -> dict[str, bytes]:
        return {key: base64.b64decode(value) for key, value in self.kept[name].items()}


def _trust(
    secrets: Secrets,
    *,
    ca_file: Path | None = None,
    url: str = "https://api.example.org:8443",
    woken: list[str] | None = None,
) -> tuple[GatewayTrust, Gateway]:
    """Return the keeper, and the gateway whose CA it keeps. `woken` gets the names of control planes it triggers."""
    names = woken if woken is not None else []
    gateway = Gateway(url=url, ca=b"", namespace="kplane-gateway")
    context = SimpleNamespace(
        client=secrets,
        namespace="kplane-system",
        stores=SimpleNamespace(control_planes=[{"metadata": {"name": "acme"}}]),
        triggers=SimpleNamespace(control_planes=SimpleNamespace(add=names.append)),
        gateway=gateway,
    )
    return GatewayTrust(cast("OperatorContext", context), gateway, ca_file=ca_file), gateway


async def test_look_issues_ca_and_certificate_once() -> None:
    secrets, woken = Secrets(), list[str]()
    trust, gateway = _trust(secrets, woken=woken)
    await trust.look()
    assert trust.known.is_set()
    certificate, authority = secrets.data(CERTIFICATE), secrets.data(AUTHORITY)
    assert hosts_of(certificate["tls.crt"]) == {"api.example.org"}
    assert certificate["ca.crt"] == authority["tls.crt"] == gateway.ca
    # The gateway does not get the key of the CA.
    assert authority["tls.key"] not in certificate.values()
    assert issued_by(certificate["tls.crt"], authority=KeyPair(authority["tls.crt"], authority["tls.key"]))
    ssl.create_default_context(cadata=gateway.ca.decode())
    await trust.look()
    second_trust, second_gateway = _trust(secrets)
    await second_trust.look()
    assert second_gateway.ca == gateway.ca
    assert (secrets.written, woken) == ([AUTHORITY, CERTIFICATE], [])


async def test_look_finds_ipv6_address_in_certificate_in_any_spelling() -> None:
    secrets = Secrets()
    trust, _ = _trust(secrets, url="https://[2001:DB8:0::0001]:8443")
    await trust.look()
    await trust.look()
    assert hosts_of(secrets.data(CERTIFICATE)["tls.crt"]) == {"2001:db8::1"}
    assert secrets.written == [AUTHORITY, CERTIFICATE]


async def test_look_issues_damaged_certificate_again() -> None:
    secrets, woken = Secrets(), list[str]()
    trust, gateway = _trust(secrets, woken=woken)
    await trust.look()
    before = gateway.ca
    secrets.kept[CERTIFICATE]["tls.key"] = secrets.kept[AUTHORITY]["tls.key"]
    await trust.look()
    assert secrets.written == [AUTHORITY, CERTIFICATE, CERTIFICATE]
    assert (gateway.ca, woken) == (before, [])


async def test_look_replaces_deleted_or_due_ca(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets, woken = Secrets(), list[str]()
    trust, gateway = _trust(secrets, woken=woken)
    await trust.look()
    first = gateway.ca
    monkeypatch.setattr(gateway_trust, "renewal_due", lambda certificate, *, now: certificate == first)
    await trust.look()
    # During the overlap, clients trust both CAs.
    assert gateway.ca.endswith(first)
    assert gateway.ca != first
    second = secrets.data(AUTHORITY)
    assert issued_by(secrets.data(CERTIFICATE)["tls.crt"], authority=KeyPair(second["tls.crt"], second["tls.key"]))
    # Clients that have only the former CA still trust the gateway.
    assert issued_by(secrets.data(CERTIFICATE)["tls.crt"], authority=KeyPair(first, second["tls.key"]))
    await trust.look()
    assert gateway.ca == secrets.data(CERTIFICATE)["ca.crt"]
    assert len(woken) == 1
    del secrets.kept[AUTHORITY]
    await trust.look()
    assert first not in gateway.ca
    assert len(woken) == 2


async def test_look_reads_ca_file_again(tmp_path: Path) -> None:
    file, secrets, woken = tmp_path / "ca.crt", Secrets(), list[str]()
    first, second = create_authority("one").certificate, create_authority("two").certificate
    file.write_bytes(first)
    trust, gateway = _trust(secrets, ca_file=file, woken=woken)
    await trust.look()
    assert (gateway.ca, woken) == (first, [])
    file.write_bytes(second)
    await trust.look()
    assert (gateway.ca, woken) == (second, ["acme"])
    file.write_bytes(b"none")
    with pytest.raises(ValueError, match="PEM"):
        await trust.look()
    assert gateway.ca == second
    assert secrets.written == []


async def test_problem_reports_unknown_ca_and_denied_write(eventually: Callable[..., Any]) -> None:
    class Denied(Secrets):
        async def apply(self, _: Any, body: dict[str, Any], *, force: bool) -> None:
            raise Forbidden(403, "Forbidden", f"denied: {body['metadata']['name']}")

    trust, _ = _trust(Denied())
    assert trust.problem() == "the CA of the gateway is not known yet"
    running = asyncio.create_task(trust.run())
    try:
        await eventually(trust.problem, lambda problem: f"denied: {AUTHORITY}" in problem)
    finally:
        running.cancel()
        await asyncio.wait([running])
    trust, _ = _trust(Secrets())
    await trust.look()
    assert trust.problem() is None
