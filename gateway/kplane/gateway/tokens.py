"""Verifies the bearer tokens of requests to a control plane that sleeps: its API server cannot be asked."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final, Self

import orjson
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from kplane.api import SERVICE_ACCOUNT_ISSUER
from kplane.gateway.errors import RouteInvalid
from kplane.provider.access.es256 import decoded, is_signed_by

__all__ = [
    "MAX_TOKEN_LENGTH",
    "BootstrapTokens",
    "Issuer",
    "TokenTrust",
    "accepts",
    "bearer_token",
    "header_of",
    "is_bootstrap_token",
    "issuer_of",
    "read_token_keys",
]

MAX_TOKEN_LENGTH: Final = 32 << 10
"""Maximum length of a token in characters. A longer one is refused before it is parsed."""

_PUBLIC_KEY: Final = re.compile(b"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----", re.DOTALL)
_PARTS: Final = 3
_ALGORITHM: Final = "ES256"
_LEGACY_ISSUER: Final = "kubernetes/serviceaccount"
"""Issuer of the tokens in Secrets of type `kubernetes.io/service-account-token`."""
_LEEWAY: Final = timedelta(minutes=2)
"""API servers allow a minute for the times of a token, and clocks may differ."""
_BOOTSTRAP_TOKEN: Final = re.compile("[a-z0-9]{6}[.][a-z0-9]{16}")
_IN_PROTOCOL: Final = "base64url.bearer.authorization.k8s.io."

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Issuer:
    """An OIDC issuer whose tokens an API server accepts."""

    url: str
    """Value of the claim `iss`."""
    audiences: frozenset[str]
    """A token names at least one of them."""
    certificate_authority: str | None = None
    """CA of the issuer's own certificate, PEM; None: the CAs of this machine."""
    required_claims: tuple[tuple[str, str], ...] = ()
    """Claims that a token has to have, with their values."""

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Read an issuer. Raises KeyError, TypeError or ValueError if a part is missing or of another type."""
        authority, required = found.get("certificateAuthority"), found.get("requiredClaims") or {}
        texts = [found["issuerURL"], *found["audiences"], *required, *required.values(), authority or ""]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("an issuer is made of texts")
        return cls(
            url=found["issuerURL"],
            audiences=frozenset(found["audiences"]),
            certificate_authority=authority,
            required_claims=tuple(sorted(required.items())),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapTokens:
    """Bootstrap tokens of a control plane that sleeps, as its API server knew them last."""

    salt: bytes
    expirations: Mapping[bytes, datetime | None]
    """By HMAC-SHA256 of the token by the salt; None: the token never expires."""

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Read the entry `bootstrap-tokens.json` of a gateway Secret. Raises RouteInvalid if it is damaged."""
        try:
            found = orjson.loads(text)
            expirations = {bytes.fromhex(each["hmac"]): _read_time(each.get("expiration")) for each in found["tokens"]}
            return cls(salt=bytes.fromhex(found["salt"]), expirations=expirations)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RouteInvalid(f"the bootstrap tokens of the control plane cannot be read: {error}") from error

    def have(self, token: str, *, now: datetime) -> bool:
        """Tell whether a token is one of these, and has not expired. The time that it takes tells nothing of them."""
        digest = hmac.digest(self.salt, token.encode(), hashlib.sha256)
        equal = [ends for known, ends in self.expirations.items() if hmac.compare_digest(known, digest)]
        return any(ends is None or now < ends for ends in equal)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTrust:
    """The tokens that the API server of one control plane accepts, and its answer to requests without a token."""

    keys: tuple[bytes, ...] = ()
    """Public keys of its ServiceAccount tokens, PEM, of the kind that the operator makes (ECDSA P-256)."""
    audiences: frozenset[str] = frozenset({SERVICE_ACCOUNT_ISSUER})
    """Audiences of the API server. A token names at least one of them."""
    issuers: tuple[Issuer, ...] = ()
    """OIDC issuers of its users."""
    bootstrap_tokens: BootstrapTokens | None = None
    """None while the control plane is awake: its API server knows them."""
    cluster_info: bool = False
    """Whether everybody may read ConfigMap `kube-public/cluster-info`, by which nodes join."""

    @classmethod
    def from_json(cls, text: bytes, *, keys: tuple[bytes, ...]) -> Self:
        """Read the entry `authentication.json` of a gateway Secret. Raises RouteInvalid if it is damaged."""
        try:
            found = orjson.loads(text)
            audiences = found.get("audiences", [SERVICE_ACCOUNT_ISSUER])
            issuers = tuple(Issuer.from_json(issuer) for issuer in found.get("issuers", ()))
            cluster_info = found.get("clusterInfo") is True
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RouteInvalid(f"the authentication of the control plane cannot be read: {error}") from error
        if not isinstance(audiences, list) or not all(isinstance(audience, str) for audience in audiences):
            raise RouteInvalid("the authentication of the control plane has no list of audiences")
        return cls(keys=keys, audiences=frozenset(audiences), issuers=issuers, cluster_info=cluster_info)


def bearer_token(authorization: str, *, protocols: str = "") -> str | None:
    """Return the token of a request, as an API server finds it; None if there is none.

    `protocols` is the header Sec-WebSocket-Protocol, by which browsers send tokens.
    """
    scheme, _, rest = authorization.strip().partition(" ")
    if scheme.lower() == "bearer":
        return rest.partition(" ")[0] or None
    for protocol in protocols.split(","):
        encoded = protocol.strip().removeprefix(_IN_PROTOCOL)
        if encoded and encoded != protocol.strip():
            return (decoded(encoded) or b"").decode(errors="replace") or None
    return None


def accepts(trust: TokenTrust, token: str, *, now: datetime) -> bool:
    """Tell whether an API server accepts a token that no OIDC issuer signed, as far as the gateway can know.

    A ServiceAccount token is verified whole: algorithm, signature, issuer, audience, times and subject. The gateway
    cannot know whether the ServiceAccount still exists. Bootstrap tokens are known while the control plane sleeps.
    """
    if len(token) > MAX_TOKEN_LENGTH:
        return False
    if is_bootstrap_token(token):
        return trust.bootstrap_tokens is not None and trust.bootstrap_tokens.have(token, now=now)
    return _is_service_account_token(trust, token, now=now)


def is_bootstrap_token(token: str) -> bool:
    """Tell whether a token has the form of a bootstrap token. Strangers can make up such a text."""
    return _BOOTSTRAP_TOKEN.fullmatch(token) is not None


def issuer_of(trust: TokenTrust, token: str, *, now: datetime) -> Issuer | None:
    """Return the OIDC issuer that a token names, if all claims are as the API server demands; else None.

    The signature remains to be verified by the keys of the issuer.
    """
    parts = token.split(".") if trust.issuers and len(token) <= MAX_TOKEN_LENGTH else []
    if len(parts) != _PARTS:
        return None
    claims = _object(parts[1])
    for issuer in trust.issuers:
        if claims.get("iss") == issuer.url:
            named = _has_audience(claims, issuer.audiences) and claims.get("exp") is not None
            required = all(claims.get(claim) == value for claim, value in issuer.required_claims)
            return issuer if named and required and _is_current(claims, now=now) else None
    return None


def header_of(token: str) -> Mapping[str, Any]:
    """Return the header of a JSON Web Token; an empty one if it has none."""
    return _object(token.partition(".")[0])


def read_token_keys(bundle: bytes) -> tuple[bytes, ...]:
    """Return the public keys (PEM) of ServiceAccount tokens in a bundle.

    Keys of another kind than the operator makes are left out with a warning: their tokens wake no control plane.
    Raises RouteInvalid if a key is damaged.
    """
    keys = _PUBLIC_KEY.findall(bundle)
    try:
        usable = tuple(key for key in keys if _verifier(key) is not None)
    except (UnsupportedAlgorithm, ValueError) as error:
        raise RouteInvalid(f"a key of ServiceAccount tokens cannot be read: {error}") from error
    if len(usable) < len(keys):
        logger.warning(
            "the gateway verifies ServiceAccount tokens by ECDSA P-256 only; tokens of other keys wake nothing"
        )
    return usable


def _is_service_account_token(trust: TokenTrust, token: str, *, now: datetime) -> bool:
    parts = token.split(".")
    if len(parts) != _PARTS or _object(parts[0]).get("alg") != _ALGORITHM:
        return False
    claims = _object(parts[1])
    if not (_is_current(claims, now=now) and _is_for(claims, trust.audiences) and _names_account(claims)):
        return False
    # The signature comes last: verifying costs more than reading.
    return any(is_signed_by(token, key=key) for key in map(_verifier, trust.keys) if key is not None)


def _is_current(claims: Mapping[str, Any], *, now: datetime) -> bool:
    """Tell whether all times of a token are numbers, and hold now. An API server also takes a token without an end."""
    latest, earliest = (now + _LEEWAY).timestamp(), (now - _LEEWAY).timestamp()
    begins, ends = [claims.get("nbf"), claims.get("iat")], claims.get("exp")
    if not all(time is None or type(time) in {int, float} for time in (*begins, ends)):
        return False
    return all(time is None or time <= latest for time in begins) and (ends is None or ends >= earliest)


def _is_for(claims: Mapping[str, Any], audiences: frozenset[str]) -> bool:
    """Tell whether issuer and audience are right. A token without audiences, as in Secrets, is for API servers."""
    if claims.get("iss") not in (SERVICE_ACCOUNT_ISSUER, _LEGACY_ISSUER):
        return False
    return claims.get("aud") in (None, []) or _has_audience(claims, audiences)


def _has_audience(claims: Mapping[str, Any], audiences: frozenset[str]) -> bool:
    named = claims.get("aud")
    named = [named] if isinstance(named, str) else named
    return isinstance(named, list) and any(isinstance(each, str) and each in audiences for each in named)


def _names_account(claims: Mapping[str, Any]) -> bool:
    """Tell whether the claims name one ServiceAccount with its uid, and the subject is this ServiceAccount."""
    if claims.get("iss") == _LEGACY_ISSUER:
        prefix = "kubernetes.io/serviceaccount/"
        found = [claims.get(f"{prefix}{name}") for name in ("namespace", "service-account.name", "service-account.uid")]
    else:
        own = claims.get("kubernetes.io")
        account = own.get("serviceaccount") if isinstance(own, dict) else None
        if not isinstance(own, dict) or not isinstance(account, dict):
            return False
        found = [own.get("namespace"), account.get("name"), account.get("uid")]
    if not all(isinstance(value, str) and value for value in found):
        return False
    return bool(claims.get("sub") == f"system:serviceaccount:{found[0]}:{found[1]}")


def _read_time(text: str | None) -> datetime | None:
    """Read a time with its zone. Raises ValueError or TypeError for another one."""
    if text is None:
        return None
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"{text} has no zone")
    return found


def _object(part: str) -> Mapping[str, Any]:
    """Return the JSON object in a part of a token; an empty one if there is none."""
    try:
        found = orjson.loads(decoded(part) or b"")
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


@lru_cache(maxsize=1024)
def _verifier(key: bytes) -> ec.EllipticCurvePublicKey | None:
    """Return a key of the kind that the operator makes; None for another kind."""
    found = load_pem_public_key(key)
    if isinstance(found, ec.EllipticCurvePublicKey) and isinstance(found.curve, ec.SECP256R1):
        return found
    return None
