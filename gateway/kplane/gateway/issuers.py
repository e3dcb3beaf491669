"""Verifies signatures of OIDC issuers by the keys that the issuers publish."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import jwt
import orjson

from kplane.gateway.errors import GatewayError
from kplane.gateway.tokens import Issuer, header_of
from kplane.provider.aio.cancellation import end_tasks

__all__ = ["IssuerKeys", "KeysUnavailable"]

logger = logging.getLogger(__name__)

_ALGORITHMS: Final = frozenset(f"{family}{bits}" for family in ("RS", "ES", "PS") for bits in (256, 384, 512))
"""Those of kube-apiserver, which takes no symmetric keys."""
_MAX_ISSUERS: Final = 256
_MAX_BYTES: Final = 512 << 10
"""Of one document of an issuer."""
_MAX_KEYS: Final = 64
"""Of one issuer. A token that names none is verified by each."""
_READ_TIMEOUT: Final = 8.0
"""Seconds for both documents. A request waits for its control plane afterwards."""
_MAX_AGE: Final = 3600.0
"""Seconds after which keys are read again. The former keys count on, while the issuer does not answer."""
_MIN_INTERVAL: Final = 10.0
"""Seconds between two attempts, such as for a key that the issuer has not published. Strangers name such keys."""
_DISCOVERY: Final = "/.well-known/openid-configuration"


class KeysUnavailable(GatewayError):
    """The gateway has no keys of an issuer; the message is for the log."""


@dataclass(slots=True)
class _KeySet:
    """The keys of one issuer."""

    keys: tuple[jwt.PyJWK, ...] | None = None
    read: float = 0.0
    tried: float | None = None
    problem: str = "they have not been read yet"
    reading: asyncio.Task[None] | None = None


class IssuerKeys:
    """Keeps the keys of OIDC issuers."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sets: OrderedDict[Issuer, _KeySet] = OrderedDict()
        self._readings: set[asyncio.Task[None]] = set()

    async def has_signed(self, issuer: Issuer, token: str) -> bool:
        """Tell whether a published key of an issuer signed a token. Raises KeysUnavailable if there are no keys."""
        header = header_of(token)
        algorithm, name = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in _ALGORITHMS or not isinstance(name, str | None):
            return False
        keys = _named(await self._keys(issuer, name), name)
        return any(_has_signed(key, token, algorithm=algorithm) for key in keys)

    async def aclose(self) -> None:
        """End what is being read."""
        await end_tasks(self._readings)

    async def _keys(self, issuer: Issuer, name: str | None) -> tuple[jwt.PyJWK, ...]:
        known = self._sets.setdefault(issuer, _KeySet())
        self._sets.move_to_end(issuer)
        while len(self._sets) > _MAX_ISSUERS:
            self._sets.popitem(last=False)
        now = self._clock()
        if known.keys is None or now - known.read >= _MAX_AGE or not _named(known.keys, name):
            if known.reading is None and (known.tried is None or now - known.tried >= _MIN_INTERVAL):
                known.tried = now
                known.reading = asyncio.create_task(self._renew(issuer, known), name=f"read keys of {issuer.url}")
                self._readings.add(known.reading)
                known.reading.add_done_callback(self._readings.discard)
            if known.reading is not None:
                # A client that goes does not end what others wait for.
                await asyncio.wait([known.reading])
        if known.keys is None:
            raise KeysUnavailable(f"failed to read the keys of issuer {issuer.url}: {known.problem}")
        return known.keys

    async def _renew(self, issuer: Issuer, known: _KeySet) -> None:
        try:
            known.keys, known.read = await _read_keys(issuer), self._clock()
        except (OSError, TypeError, ValueError, aiohttp.ClientError, jwt.PyJWTError) as error:
            # TimeoutError is an OSError without a text.
            known.problem = str(error) or "no answer in time"
            logger.warning("failed to read the keys of issuer %s: %s", issuer.url, known.problem)
        finally:
            known.reading = None


def _named(keys: Iterable[jwt.PyJWK], name: str | None) -> list[jwt.PyJWK]:
    """Return the keys by which a signature may be: that of this name, or all if the token names none."""
    return [key for key in keys if key.public_key_use in (None, "sig") and name in (None, key.key_id)]


def _has_signed(key: jwt.PyJWK, token: str, *, algorithm: str) -> bool:
    try:
        jwt.api_jws.decode_complete(token, key=key.key, algorithms=[algorithm])
    except (jwt.PyJWTError, TypeError, ValueError):
        # A key of another kind than the algorithm is for, or a signature by another key.
        return False
    return True


async def _read_keys(issuer: Issuer) -> tuple[jwt.PyJWK, ...]:
    """Read the keys of an issuer. Raises OSError, TypeError, ValueError, aiohttp.ClientError or jwt.PyJWTError."""
    context = ssl.create_default_context(cadata=issuer.certificate_authority)
    async with (
        asyncio.timeout(_READ_TIMEOUT),
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context), auto_decompress=False) as session,
    ):
        described = await _read(session, issuer.url.removesuffix("/") + _DISCOVERY)
        url = described.get("jwks_uri")
        if described.get("issuer") != issuer.url:
            raise ValueError("its discovery document is of another issuer")
        if not isinstance(url, str) or not url.startswith("https://"):
            raise ValueError("its discovery document names no https URL of keys")
        keys = tuple(jwt.PyJWKSet.from_dict(await _read(session, url)).keys)
    if len(keys) > _MAX_KEYS:
        raise ValueError(f"{url} has {len(keys)} keys, and may have {_MAX_KEYS}")
    return keys


async def _read(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    # A redirect would lead where the class names no CA for.
    headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
    async with session.get(url, allow_redirects=False, headers=headers) as answer:
        if answer.status != 200:
            raise ValueError(f"{url} answered {answer.status}")
        content = bytearray()
        async for chunk in answer.content.iter_chunked(64 << 10):
            content += chunk
            if len(content) > _MAX_BYTES:
                raise ValueError(f"{url} answered with more than {_MAX_BYTES} bytes")
    found = orjson.loads(content)
    if not isinstance(found, dict):
        raise TypeError(f"{url} answered with no JSON object")
    return found
