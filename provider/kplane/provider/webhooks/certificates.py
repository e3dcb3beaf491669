"""The certificate of a server, from files that are renewed while it serves."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Final, NoReturn

from kplane.provider.errors import ProviderError

__all__ = ["ContextChooser", "ServingCertificate", "server_context"]

log: Final = logging.getLogger(__name__)

_READ_SECONDS: Final = 1.0


class ContextChooser:
    """Gives new connections the current TLS context of a server; open connections keep theirs."""

    def __init__(self) -> None:
        self.current: ssl.SSLContext | None = None
        """The context with the newest certificate."""

    def context(self, client_ca: Path | None) -> ssl.SSLContext:
        """Return a context to listen with. It blocks, and raises as `server_context`."""
        context = server_context(client_ca)

        def choose(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            if self.current is not None:
                connection.context = self.current

        # OpenSSL calls it for each connection, also if the client names no server.
        context.sni_callback = choose
        return context


def server_context(client_ca: Path | None) -> ssl.SSLContext:
    """Return a server's TLS context without a certificate.

    With `client_ca`, a PEM file, clients need a certificate of that CA. Raises ProviderError for a file that cannot be
    used.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    if client_ca is not None:
        try:
            context.load_verify_locations(client_ca)
        except (OSError, ssl.SSLError) as error:
            raise ProviderError(f"the CA of clients {client_ca} cannot be used: {error}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class ServingCertificate:
    """A certificate chain and its key in PEM files, such as those of a mounted Secret of cert-manager.

    New connections get the renewed certificate; open connections keep the former one. Files whose certificate and key
    do not match change nothing, because the two may be written one after the other.
    """

    def __init__(self, certificate: Path, key: Path, *, client_ca: Path | None = None) -> None:
        """With `client_ca`, a PEM file that is read once, clients need a certificate of that CA."""
        self._certificate = certificate
        self._key = key
        self._client_ca = client_ca
        self._content: tuple[bytes, bytes] | None = None
        self._chooser = ContextChooser()

    async def load(self) -> ssl.SSLContext:
        """Read the files, and return a context that shows their present and later content.

        Raises ProviderError if they cannot be used.
        """
        await asyncio.to_thread(self._load)
        return await asyncio.to_thread(self._chooser.context, self._client_ca)

    async def follow(self) -> NoReturn:
        """Read the files every second until cancelled."""
        problem = ""
        while True:
            await asyncio.sleep(_READ_SECONDS)
            try:
                if await asyncio.to_thread(self._load):
                    log.info("serving with the renewed certificate of %s", self._certificate)
                problem = ""
            except ProviderError as error:
                if str(error) != problem:
                    problem = str(error)
                    log.warning("%s; serving with the former certificate", problem)

    def _load(self) -> bool:
        """Load the files. Return False if their content is the one that was loaded last. It blocks."""
        try:
            content = self._certificate.read_bytes(), self._key.read_bytes()
            if content == self._content:
                return False
            context = server_context(self._client_ca)
            # Without a password OpenSSL would ask for that of an encrypted key at the terminal.
            context.load_cert_chain(self._certificate, self._key, password="")
        except (OSError, ValueError) as error:
            reason = error.reason if isinstance(error, ssl.SSLError) else getattr(error, "strerror", None)
            raise ProviderError(
                f"the certificate {self._certificate} with the key {self._key} cannot be used: {reason or error}"
            ) from error
        self._content, self._chooser.current = content, context
        return True
