"""Trust of clients in the gateway: the CA of its serving certificate, which the operator issues or reads."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NoReturn
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.gateway import Gateway, read_authorities
from kplane.controlplane_operator.watch.backoff import jittered
from kplane.controlplane_operator.watch.cache import Object
from kplane.pki.entries import data_of, entries, find_pair, kept
from kplane.pki.errors import CredentialsInvalid
from kplane.pki.primitives import KeyPair, create_authority, expiry, issue_serving, renewal_due
from kplane.provider import NotFound, ProviderError
from kplane.provider.client.resources import SECRETS

__all__ = ["AUTHORITY", "CERTIFICATE", "GatewayTrust"]

AUTHORITY: Final = "kplane-gateway-authority"
"""Secret in the operator's namespace with the CA and its key.

Entry `ca.crt` also has the former CA until that expires.
"""
CERTIFICATE: Final = "kplane-gateway-certificate"
"""Secret in the operator's namespace with the serving certificate, in the format of cert-manager."""

_PAIR: Final = "tls"
_LOOK_SECONDS: Final = 30.0

_log: Final = logging.getLogger(__name__)


class GatewayTrust:
    """Keeps the CA of the gateway up to date.

    After a change, all control planes are reconciled, and kubeconfigs written again.
    """

    def __init__(self, context: OperatorContext, gateway: Gateway, *, ca_file: Path | None) -> None:
        """Create the keeper. Without `ca_file`, the operator issues the CA and the serving certificate."""
        self._context = context
        self._gateway = gateway
        self._ca_file = ca_file
        self._problem: str | None = None
        self.known = asyncio.Event()
        """Set once the CA of the gateway is known."""

    async def run(self) -> NoReturn:
        """Check the CA periodically until cancelled. The log reports failures, and the former CA stays in use."""
        while True:
            try:
                await self.look()
                self._problem = None
            except (ProviderError, CredentialsInvalid, OSError, ValueError) as error:
                if str(error) != self._problem:
                    _log.warning("failed to look after the certificate of the gateway: %s; retrying", error)
                self._problem = str(error)
            await asyncio.sleep(jittered(_LOOK_SECONDS))

    def problem(self) -> str | None:
        """Return why the CA is not known yet; None if it is known. No object is reconciled before."""
        if self.known.is_set():
            return None
        return f"the CA of the gateway is not known yet{f': {self._problem}' if self._problem else ''}"

    async def look(self) -> None:
        """Read or issue the CA, and reconcile all control planes if it has changed."""
        ca = await (self._issue() if self._ca_file is None else asyncio.to_thread(read_authorities, self._ca_file))
        changed = self.known.is_set() and ca != self._gateway.ca
        self._gateway.ca = ca
        self.known.set()
        if changed:
            _log.info("the CA of the gateway has changed; kubeconfigs are written again")
            for control_plane in self._context.stores.control_planes:
                self._context.triggers.control_planes.add(control_plane["metadata"]["name"])

    async def _issue(self) -> bytes:
        """Renew and store CA and serving certificate as needed; return the CAs that clients have to trust."""
        now = datetime.now(UTC)
        existing = await self._find(AUTHORITY)
        authority, trust = _authority(existing, now=now)
        await self._keep(AUTHORITY, existing, {**entries(_PAIR, authority), "ca.crt": trust})
        hosts = [_host(self._gateway.url)]
        present = await self._find(CERTIFICATE)
        pair = kept(find_pair(present, _PAIR), authority, now=now, hosts=hosts)
        if pair is None:
            pair = issue_serving(authority, common_name="kplane-gateway", hosts=hosts)
        await self._keep(CERTIFICATE, present, {**entries(_PAIR, pair), "ca.crt": trust})
        return trust

    async def _find(self, name: str) -> Object | None:
        try:
            return await self._context.client.get(SECRETS, name, namespace=self._context.namespace)
        except NotFound:
            return None

    async def _keep(self, name: str, present: Object | None, data: Mapping[str, bytes]) -> None:
        if present is not None and data_of(present) == data:
            return
        metadata = {"name": name, "namespace": self._context.namespace}
        encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
        await self._context.client.apply(SECRETS, {"metadata": metadata, "data": encoded}, force=True)


def _host(url: str) -> str:
    """Return the host of a URL; an IP address has the normalized form of certificates."""
    host = urlsplit(url).hostname or ""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host


def _authority(secret: Object | None, *, now: datetime) -> tuple[KeyPair, bytes]:
    """Return the CA in use, and the bundle that clients have to trust, with the former CA until it expires.

    A renewed CA has the same key. So the gateway also serves clients that only know the former CA, until that expires.
    """
    pair = find_pair(secret, _PAIR)
    data = data_of(secret) if secret is not None else {}
    trusted = [pair.certificate] if pair is not None else []
    if pair is None or renewal_due(pair.certificate, now=now):
        pair = create_authority("kplane-gateway", former_key=pair.key if pair is not None else None)
        trusted.insert(0, pair.certificate)
    elif "ca.crt" in data:
        trusted = [certificate for certificate in _split(data["ca.crt"]) if expiry(certificate) > now]
        if pair.certificate not in trusted:
            trusted.insert(0, pair.certificate)
    return pair, b"".join(trusted)


def _split(bundle: bytes) -> list[bytes]:
    try:
        return [certificate.public_bytes(Encoding.PEM) for certificate in x509.load_pem_x509_certificates(bundle)]
    except ValueError:
        return []
