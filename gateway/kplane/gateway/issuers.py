"""Verification of token signatures by the keys that OIDC issuers publish."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import jwt
import orjson

from kplane.gateway.clients import NOBODY, Client
from kplane.gateway.errors import GatewayError
from kplane.gateway.tokens import Issuer, has_signed, header_of
from kplane.provider.aio.cancellation import end_tasks

__all__ = ["IssuerKeys", "KeysUnavailable"]

logger = logging.getLogger(__name__)

_ALGORITHMS: Final = frozenset(f"{family}{bits}" for family in ("RS", "ES", "PS") for bits in (256, 384, 512))
"""Algorithms of kube-apiserver, which accepts no symmetric keys."""
_MAX_ISSUERS: Final = 256
_MAX_BYTES: Final = 512 << 10
"""Maximum size of a document of an issuer in bytes."""
_MAX_KEYS: Final = 64
"""Maximum number of keys of an issuer. A token without a key name is verified with each key."""
_READ_TIMEOUT: Final = 8.0
"""Seconds for both documents together. A request waits for its control plane only afterwards."""
_MAX_AGE: Final = 3600.0
"""Seconds after which keys are read again. While the issuer does not respond, the former keys stay valid."""
_MIN_INTERVAL: Final = 10.0
"""Minimum seconds between two reads. Each token with an unknown key name causes a read, and any client can send such
tokens.
"""
_MAX_WAITING: Final = 50
_MAX_WAITING_CLIENT: Final = 20
"""Maximum numbers of requests that wait for the keys of an issuer: `_MAX_WAITING` in total, and `_MAX_WAITING_CLIENT`
of a client address. Any client can send tokens that name an issuer.
"""
_DISCOVERY: Final = "/.well-known/openid-configuration"


class KeysUnavailable(GatewayError):
    """The gateway has no keys of an issuer, or too many requests wait for them. The message is for the log."""


@dataclass(slots=True)
class _KeySet:
    """Keys of an issuer."""

    keys: tuple[jwt.PyJWK, ...] | None = None
    read: float = 0.0
    tried: float | None = None
    problem: str = "they have not been read yet"
    reading: asyncio.Task[None] | None = None
    waiting: Counter[str] = field(default_factory=Counter)
    """Number of waiting requests by client address."""


class IssuerKeys:
    """Cache of the keys of OIDC issuers."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sets: OrderedDict[Issuer, _KeySet] = OrderedDict()
        self._readings: set[asyncio.Task[None]] = set()

    async def has_signed(self, issuer: Issuer, token: str, *, client: Client = NOBODY) -> bool:
        """Return whether a published key of an issuer signed a token.

        `client` sent the token. Raises KeysUnavailable if no keys have been read, or if too many requests wait for
        them.
        """
        header = header_of(token)
        algorithm, name = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in _ALGORITHMS or not isinstance(name, str | None):
            return False
        keys = _named(await self._keys(issuer, name, client=client), name)
        return any(has_signed(key, token, algorithm=algorithm) for key in keys)

    async def aclose(self) -> None:
        """Cancel all reads."""
        await end_tasks(self._readings)

    async def _keys(self, issuer: Issuer, name: str | None, *, client: Client) -> tuple[jwt.PyJWK, ...]:
        key_set = self._sets.setdefault(issuer, _KeySet())
        self._sets.move_to_end(issuer)
        while len(self._sets) > _MAX_ISSUERS:
            self._sets.popitem(last=False)
        now = self._clock()
        if key_set.keys is None or now - key_set.read >= _MAX_AGE or not _named(key_set.keys, name):
            if key_set.reading is None and (key_set.tried is None or now - key_set.tried >= _MIN_INTERVAL):
                key_set.tried = now
                key_set.reading = asyncio.create_task(self._renew(issuer, key_set), name=f"read keys of {issuer.url}")
                self._readings.add(key_set.reading)
                key_set.reading.add_done_callback(self._readings.discard)
            if key_set.reading is not None:
                with _place(key_set, issuer=issuer, client=client):
                    # A client that disconnects must not cancel a read for which other requests wait.
                    await asyncio.wait([key_set.reading])
        if key_set.keys is None:
            raise KeysUnavailable(f"failed to read the keys of issuer {issuer.url}: {key_set.problem}")
        return key_set.keys

    async def _renew(self, issuer: Issuer, known: _KeySet) -> None:
        try:
            known.keys, known.read = await _read_keys(issuer), self._clock()
        except (OSError, TypeError, ValueError, aiohttp.ClientError, jwt.PyJWTError) as error:
            # TimeoutError is an OSError, and has no message here.
            known.problem = str(error) or "no answer in time"
            logger.warning("failed to read the keys of issuer %s: %s", issuer.url, known.problem)
        finally:
            known.reading = None


@contextlib.contextmanager
def _place(key_set: _KeySet, *, issuer: Issuer, client: Client) -> Iterator[None]:
    """Count a request that waits for keys while the context is open.

    Raises KeysUnavailable if too many requests wait.
    """
    waiting, address = key_set.waiting, client.address
    if waiting.total() >= _MAX_WAITING or (address and waiting[address] >= _MAX_WAITING_CLIENT):
        raise KeysUnavailable(f"too many requests wait for the keys of issuer {issuer.url}")
    waiting[address] += 1
    try:
        yield
    finally:
        waiting[address] -= 1
        if not waiting[address]:
            del waiting[address]


def _named(keys: Iterable[jwt.PyJWK], name: str | None) -> list[jwt.PyJWK]:
    """Return the keys for signatures with this name; all keys for signatures if the token names no key."""
    return [key for key in keys if key.public_key_use in (None, "sig") and name in (None, key.key_id)]


async def _read_keys(issuer: Issuer) -> tuple[jwt.PyJWK, ...]:
    """Read the keys of an issuer.

    Raises OSError, TypeError, ValueError, aiohttp.ClientError or jwt.PyJWTError if the keys cannot be read.
    """
    context = ssl.create_default_context(cadata=issuer.certificate_authority)
    async with (
        asyncio.timeout(_READ_TIMEOUT),
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context), auto_decompress=False) as session,
    ):
        discovery = await _read(session, issuer.url.removesuffix("/") + _DISCOVERY)
        url = discovery.get("jwks_uri")
        if discovery.get("issuer") != issuer.url:
            raise ValueError("its discovery document is of another issuer")
        if not isinstance(url, str) or not url.startswith("https://"):
            raise ValueError("its discovery document names no https URL of keys")
        keys = tuple(jwt.PyJWKSet.from_dict(await _read(session, url)).keys)
    if len(keys) > _MAX_KEYS:
        raise ValueError(f"{url} has {len(keys)} keys, and may have {_MAX_KEYS}")
    return keys


async def _read(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    # Follow no redirect: the CA of the class is only for the issuer's own server.
    headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
    async with session.get(url, allow_redirects=False, headers=headers) as answer:
        if answer.status != 200:
            raise ValueError(f"{url} answered {answer.status}")
        content = bytearray()
        async for chunk in answer.content.iter_chunked(64 << 10):
            content += chunk
            if len(content) > _MAX_BYTES:
                raise ValueError(f"{url} answered with more than {_MAX_BYTES} bytes")
    document = orjson.loads(content)
    if not isinstance(document, dict):
        raise TypeError(f"{url} answered with no JSON object")
    return document
