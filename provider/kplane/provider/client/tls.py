"""TLS contexts that trust the CA of a cluster. On Linux, keys are never written to a disk."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import ssl
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit

from kplane.provider.access.config import ClusterConfig
from kplane.provider.errors import KubeconfigError

__all__ = ["as_file", "beginning_of_certificate", "fingerprint", "require_usable", "ssl_context"]

_NO_CHECK_TIME: Final = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which `ssl` has no name for."""


def fingerprint(config: ClusterConfig) -> bytes:
    """Return a digest of CA, client certificate and key: equal only for the same trust and identity."""
    digest = hashlib.sha256(b"unverified" if config.insecure_skip_tls_verify else b"")
    for part in (config.ca_data, config.client_certificate, config.client_key):
        # The length before each part keeps the digest unambiguous, and None differs from an empty part.
        digest.update(b"-" if part is None else b"%d:" % len(part) + part)
    return digest.digest()


def ssl_context(config: ClusterConfig) -> ssl.SSLContext:
    """Return the client's TLS context: it verifies peer and host name, and uses TLS 1.2 or later.

    With `insecure_skip_tls_verify`, the context verifies neither. The call takes about a millisecond. Raises
    KubeconfigError if CA, certificate or key cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # As client-go: a CA bundle may hold an intermediate only.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.set_alpn_protocols(["http/1.1"])
    if config.insecure_skip_tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif config.ca_data is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    _load(context, config)
    return context


async def beginning_of_certificate(config: ClusterConfig, *, timeout_seconds: float | None) -> datetime | None:
    """Return the future time at which a server's certificate becomes valid; None if it is valid now, or unknown.

    The result is for messages only: OpenSSL does not expose the certificate that it refused. A second handshake ignores
    only the validity period, and sends neither a request nor a token. The handshake does not go through proxies.
    """
    if config.proxy is not None:
        return None
    url = urlsplit(config.server)
    try:
        context = await asyncio.to_thread(ssl_context, replace(config, client_certificate=None, client_key=None))
        context.verify_flags |= _NO_CHECK_TIME
        async with asyncio.timeout(timeout_seconds):
            _, writer = await asyncio.open_connection(
                url.hostname, url.port or 443, ssl=context, server_hostname=config.tls_server_name or url.hostname
            )
            certificate = writer.get_extra_info("peercert")
            writer.transport.abort()
        begins = datetime.fromtimestamp(ssl.cert_time_to_seconds(certificate["notBefore"]), UTC)
    except (OSError, ValueError, LookupError, KubeconfigError):
        return None
    return begins if begins > datetime.now(UTC) else None


def require_usable(config: ClusterConfig) -> None:
    """Raise KubeconfigError if `ssl_context` would."""
    _load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), config)


def _load(context: ssl.SSLContext, config: ClusterConfig) -> None:
    if config.ca_data is not None:
        try:
            context.load_verify_locations(cadata=config.ca_data.decode("ascii", errors="ignore"))
        except (ssl.SSLError, ValueError) as error:
            raise KubeconfigError(f"the CA for {config.server} cannot be used: {error}") from error
    if config.client_certificate is not None and config.client_key is not None:
        _load_identity(context, certificate=config.client_certificate, key=config.client_key, server=config.server)


def _load_identity(context: ssl.SSLContext, *, certificate: bytes, key: bytes, server: str) -> None:
    try:
        with as_file(certificate + b"\n" + key) as path:
            # An empty password keeps OpenSSL from prompting on the terminal for an encrypted key.
            context.load_cert_chain(path, password="")
    except (ssl.SSLError, ValueError, OSError) as error:
        raise KubeconfigError(
            f"the client certificate and key for {server} do not fit together or are broken; put a pair that was issued"
            " together into client-certificate-data and client-key-data"
        ) from error


@contextlib.contextmanager
def as_file(content: bytes) -> Iterator[str]:
    """Yield the path of a file with this content, because OpenSSL reads identities from files only.

    On Linux the file is in memory; elsewhere it is a temporary file that only its owner can read.
    """
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("client-identity", os.MFD_CLOEXEC), "wb", buffering=0) as file:
            file.write(content)
            yield f"/proc/self/fd/{file.fileno()}"
        return
    import tempfile

    # The mode of the file lets only its owner read it.
    with tempfile.NamedTemporaryFile(prefix="client-identity-", buffering=0) as file:
        file.write(content)
        yield file.name
