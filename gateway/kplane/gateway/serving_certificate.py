"""Reader of the serving certificate in a directory with the layout of a mounted TLS Secret."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kplane.gateway.errors import CertificateInvalid, RouteInvalid
from kplane.gateway.routes import KeyPair

__all__ = ["read_certificate"]


async def read_certificate(directory: Path) -> KeyPair:
    """Read `tls.crt` and `tls.key`.

    Raises CertificateInvalid if a file is missing or damaged, or if certificate and key do not match. The latter can
    also happen while both files are being replaced.
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
