"""The certificate of a server, from files that are renewed while it serves."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Final, NoReturn

from kplane.provider.errors import ProviderError

__all__ = ["ServingCertificate"]

log: Final = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 1.0


class ServingCertificate:
    """A certificate chain and its key in PEM files, such as those of a mounted Secret of cert-manager.

    New connections get the renewed certificate; others go on. Files that do not fit together change nothing: they may
    be written one after the other.
    """

    def __init__(self, certificate: Path, key: Path, *, client_ca: Path | None = None) -> None:
        """With `client_ca`, a PEM file that is read once, clients need a certificate of that CA."""
        self._certificate = certificate
        self._key = key
        self._client_ca = client_ca
        self._content: tuple[bytes, bytes] | None = None
        self._current: ssl.SSLContext | None = None

    async def load(self) -> ssl.SSLContext:
        """Read the files, and return a context that shows what they contain then and later.

        Raises ProviderError if they cannot be used.
        """
        await asyncio.to_thread(self._load)
        context = await asyncio.to_thread(self._new_context)

        def choose(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            if self._current is not None:
                connection.context = self._current

        # Called for each connection, also if the client names no server.
        context.sni_callback = choose
        return context

    async def follow(self) -> NoReturn:
        """Look at the files every second until cancelled."""
        problem = ""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                if await asyncio.to_thread(self._load):
                    log.info("serving with the renewed certificate of %s", self._certificate)
                problem = ""
            except ProviderError as error:
                if str(error) != problem:
                    problem = str(error)
                    log.warning("%s; serving with the former certificate", problem)

    def _load(self) -> bool:
        """Take over the files. Returns False if they are those that were taken over last. Blocks meanwhile."""
        try:
            content = self._certificate.read_bytes(), self._key.read_bytes()
            if content == self._content:
                return False
            context = self._new_context()
            # Without a password the key's would be asked for at the terminal.
            context.load_cert_chain(self._certificate, self._key, password="")
        except (OSError, ValueError) as error:
            why = error.reason if isinstance(error, ssl.SSLError) else getattr(error, "strerror", None)
            raise ProviderError(
                f"the certificate {self._certificate} with the key {self._key} cannot be used: {why or error}"
            ) from error
        self._content, self._current = content, context
        return True

    def _new_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        if self._client_ca is not None:
            try:
                context.load_verify_locations(self._client_ca)
            except (OSError, ssl.SSLError) as error:
                raise ProviderError(f"the CA of clients {self._client_ca} cannot be used: {error}") from error
            context.verify_mode = ssl.CERT_REQUIRED
        return context
