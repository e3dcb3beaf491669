"""The serving certificate, in a directory of cert-manager's layout: as a Secret is mounted."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kplane.gateway.errors import CertificateInvalid, RouteInvalid
from kplane.gateway.routes import KeyPair

__all__ = ["read_certificate"]


async def read_certificate(directory: Path) -> KeyPair:
    """Read `tls.crt` and `tls.key`. Raises CertificateInvalid if one is missing, or they do not belong together: while
    they are being exchanged, too.
    """
    return await asyncio.to_thread(_read, directory)


def _read(directory: Path) -> KeyPair:
    try:
        pair = KeyPair((directory / "tls.crt").read_bytes(), (directory / "tls.key").read_bytes())
        pair.check()
    except OSError as error:
        raise CertificateInvalid(f"failed to read the serving certificate: {error}") from error
    except RouteInvalid as error:
        raise CertificateInvalid(f"the serving certificate in {directory} is damaged: {error}") from error
    return pair
