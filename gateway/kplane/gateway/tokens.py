"""Verification of bearer tokens for sleeping control planes, whose API servers cannot verify them."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple, Self

import jwt
import orjson
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt.utils import base64url_decode

from kplane.api import SERVICE_ACCOUNT_ISSUER
from kplane.gateway.errors import RouteInvalid

__all__ = [
    "MAX_TOKEN_LENGTH",
    "Account",
    "BootstrapTokens",
    "Issuer",
    "ServiceAccounts",
    "TokenTrust",
    "accepts",
    "bearer_token",
    "has_signed",
    "header_of",
    "is_bootstrap_token",
    "issuer_of",
    "read_token_keys",
]

MAX_TOKEN_LENGTH: Final = 32 << 10
"""Maximum length of a token in characters. A longer token is refused before it is parsed."""

_PUBLIC_KEY: Final = re.compile(b"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----", re.DOTALL)
_PARTS: Final = 3
_ALGORITHM: Final = "ES256"
_LEGACY_ISSUER: Final = "kubernetes/serviceaccount"
"""Issuer of the tokens in Secrets of type `kubernetes.io/service-account-token`."""
_LEEWAY: Final = timedelta(minutes=2)
"""Tolerance for the times of a token. API servers allow a minute, and clocks may differ."""
_BOOTSTRAP_TOKEN: Final = re.compile("[a-z0-9]{6}[.][a-z0-9]{16}")
_DIGEST_BYTES: Final = 16
_IN_PROTOCOL: Final = "base64url.bearer.authorization.k8s.io."

logger = logging.getLogger(__name__)


class Account(NamedTuple):
    """ServiceAccount that a token names."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Issuer:
    """OIDC issuer whose tokens an API server accepts."""

    url: str
    """Value of the claim `iss`."""
    audiences: frozenset[str]
    """Accepted audiences, of which a token must name at least one."""
    certificate_authority: str | None = None
    """CA of the issuer's serving certificate (PEM); None for the CAs of this machine."""
    required_claims: tuple[tuple[str, str], ...] = ()
    """Names and values of claims that a token must have."""

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Parse an issuer. Raises KeyError, TypeError or ValueError if a field is missing or has another type."""
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
    """Bootstrap tokens of a sleeping control plane, as its API server knew them last."""

    salt: bytes
    expirations: Mapping[bytes, datetime | None]
    """Expiry of each token, by its HMAC-SHA256 with `salt` as key; None for a token that never expires."""

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Parse the entry `bootstrap-tokens.json` of a gateway Secret. Raises RouteInvalid if the entry is damaged."""
        try:
            entry = orjson.loads(text)
            expirations = {
                bytes.fromhex(token["hmac"]): _read_time(token.get("expiration")) for token in entry["tokens"]
            }
            return cls(salt=bytes.fromhex(entry["salt"]), expirations=expirations)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RouteInvalid(f"the bootstrap tokens of the control plane cannot be read: {error}") from error

    def have(self, token: str, *, now: datetime) -> bool:
        """Return whether `token` is among these tokens and has not expired.

        The duration of the comparison reveals no digest.
        """
        digest = hmac.digest(self.salt, token.encode(), hashlib.sha256)
        expiries = [expiry for expected, expiry in self.expirations.items() if hmac.compare_digest(expected, digest)]
        return any(expiry is None or now < expiry for expiry in expiries)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAccounts:
    """ServiceAccounts of a sleeping control plane. A deleted account is not among them."""

    salt: bytes
    digests: frozenset[bytes]
    """Of each account, the first 16 bytes of the HMAC-SHA256 of `namespace/name/uid` with `salt` as key."""

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Parse the entry `accounts.json` of a gateway Secret. Raises RouteInvalid if the entry is damaged."""
        try:
            entry = orjson.loads(text)
            digests = frozenset(bytes.fromhex(digest) for digest in entry["accounts"])
            return cls(salt=bytes.fromhex(entry["salt"]), digests=digests)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RouteInvalid(f"the ServiceAccounts of the control plane cannot be read: {error}") from error

    def have(self, account: Account) -> bool:
        """Return whether the account is among these accounts."""
        text = f"{account.namespace}/{account.name}/{account.uid}"
        return hmac.digest(self.salt, text.encode(errors="replace"), hashlib.sha256)[:_DIGEST_BYTES] in self.digests


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTrust:
    """Tokens that the API server of a control plane accepts, and its policy for requests without a token."""

    keys: tuple[bytes, ...] = ()
    """Public keys of ServiceAccount tokens (PEM), of type ECDSA P-256 as the operator creates them."""
    audiences: frozenset[str] = frozenset({SERVICE_ACCOUNT_ISSUER})
    """Audiences of the API server, of which a token must name at least one."""
    issuers: tuple[Issuer, ...] = ()
    """OIDC issuers of the users."""
    bootstrap_tokens: BootstrapTokens | None = None
    """Bootstrap tokens; None while the control plane is awake, since its API server verifies them."""
    accounts: ServiceAccounts | None = None
    """ServiceAccounts; None while the control plane is awake, and if they are unknown: then each account counts."""
    cluster_info: bool = False
    """Whether anonymous users may read ConfigMap `kube-public/cluster-info`, which joining nodes need."""

    @classmethod
    def from_json(cls, text: bytes, *, keys: tuple[bytes, ...]) -> Self:
        """Parse the entry `authentication.json` of a gateway Secret. Raises RouteInvalid if the entry is damaged."""
        try:
            entry = orjson.loads(text)
            audiences = entry.get("audiences", [SERVICE_ACCOUNT_ISSUER])
            issuers = tuple(Issuer.from_json(issuer) for issuer in entry.get("issuers", ()))
            cluster_info = entry.get("clusterInfo") is True
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RouteInvalid(f"the authentication of the control plane cannot be read: {error}") from error
        if not isinstance(audiences, list) or not all(isinstance(audience, str) for audience in audiences):
            raise RouteInvalid("the authentication of the control plane has no list of audiences")
        return cls(keys=keys, audiences=frozenset(audiences), issuers=issuers, cluster_info=cluster_info)


def bearer_token(authorization: str, *, protocols: str = "") -> str | None:
    """Return the token of a request by the rules of API servers; None without a token.

    `authorization` is the header Authorization. `protocols` is the header Sec-WebSocket-Protocol, in which browsers
    send tokens.
    """
    scheme, _, rest = authorization.strip().partition(" ")
    if scheme.lower() == "bearer":
        return rest.partition(" ")[0] or None
    for protocol in protocols.split(","):
        encoded = protocol.strip().removeprefix(_IN_PROTOCOL)
        if encoded and encoded != protocol.strip():
            return _decoded(encoded).decode(errors="replace") or None
    return None


def accepts(trust: TokenTrust, token: str, *, now: datetime) -> bool:
    """Return whether an API server accepts a token that no OIDC issuer signed, as far as the gateway can verify it.

    The gateway verifies algorithm, signature, issuer, audience, times and subject of a ServiceAccount token. It knows
    bootstrap tokens, and which ServiceAccounts exist, only while the control plane sleeps.
    """
    if len(token) > MAX_TOKEN_LENGTH:
        return False
    if is_bootstrap_token(token):
        return trust.bootstrap_tokens is not None and trust.bootstrap_tokens.have(token, now=now)
    return _is_service_account_token(trust, token, now=now)


def is_bootstrap_token(token: str) -> bool:
    """Return whether a token has the form of a bootstrap token. The form does not prove that the token is valid."""
    return _BOOTSTRAP_TOKEN.fullmatch(token) is not None


def issuer_of(trust: TokenTrust, token: str, *, now: datetime) -> Issuer | None:
    """Return the OIDC issuer that a token names; None if a claim does not meet the rules of the API server.

    The caller must verify the signature by the keys of the issuer.
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
    """Return the header of a JSON Web Token; an empty mapping if the token has none."""
    return _object(token.partition(".")[0])


def has_signed(key: jwt.PyJWK | ec.EllipticCurvePublicKey, token: str, *, algorithm: str) -> bool:
    """Return whether the private key of a public key signed a token. `token` may be any text.

    The answer is False too if the key is of another type than the algorithm needs.
    """
    try:
        jwt.api_jws.decode(token, key.key if isinstance(key, jwt.PyJWK) else key, algorithms=[algorithm])
    except (jwt.PyJWTError, TypeError, ValueError):
        return False
    return True


def read_token_keys(bundle: bytes) -> tuple[bytes, ...]:
    """Return the public keys (PEM) of ServiceAccount tokens in a bundle.

    Skips keys of other types than ECDSA P-256 with a warning: their tokens wake no control plane. Raises RouteInvalid
    if a key is damaged.
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
    if not (_is_current(claims, now=now) and _is_for(claims, trust.audiences)):
        return False
    account = _account_of(claims)
    if account is None or (trust.accounts is not None and not trust.accounts.have(account)):
        return False
    # Verify the signature last, since it costs more than all other checks.
    return any(has_signed(key, token, algorithm=_ALGORITHM) for key in map(_verifier, trust.keys) if key is not None)


def _is_current(claims: Mapping[str, Any], *, now: datetime) -> bool:
    """Return whether all times of a token are numbers, and the token is valid now.

    A token without expiry is valid, as for API servers.
    """
    latest, earliest = (now + _LEEWAY).timestamp(), (now - _LEEWAY).timestamp()
    begins, ends = [claims.get("nbf"), claims.get("iat")], claims.get("exp")
    if not all(time is None or type(time) in {int, float} for time in (*begins, ends)):
        return False
    return all(time is None or time <= latest for time in begins) and (ends is None or ends >= earliest)


def _is_for(claims: Mapping[str, Any], audiences: frozenset[str]) -> bool:
    """Return whether issuer and audience are valid.

    A token without audiences, as in Secrets, is valid for each API server.
    """
    if claims.get("iss") not in (SERVICE_ACCOUNT_ISSUER, _LEGACY_ISSUER):
        return False
    return claims.get("aud") in (None, []) or _has_audience(claims, audiences)


def _has_audience(claims: Mapping[str, Any], audiences: frozenset[str]) -> bool:
    values = claims.get("aud")
    values = [values] if isinstance(values, str) else values
    return isinstance(values, list) and any(isinstance(audience, str) and audience in audiences for audience in values)


def _account_of(claims: Mapping[str, Any]) -> Account | None:
    """Return the ServiceAccount that the claims name with its uid; None if `sub` names another one, or none."""
    if claims.get("iss") == _LEGACY_ISSUER:
        prefix = "kubernetes.io/serviceaccount/"
        names = [claims.get(f"{prefix}{name}") for name in ("namespace", "service-account.name", "service-account.uid")]
    else:
        own = claims.get("kubernetes.io")
        account = own.get("serviceaccount") if isinstance(own, dict) else None
        if not isinstance(own, dict) or not isinstance(account, dict):
            return None
        names = [own.get("namespace"), account.get("name"), account.get("uid")]
    texts = [value for value in names if isinstance(value, str) and value]
    if len(texts) != len(Account._fields):
        return None
    named = Account(*texts)
    return named if claims.get("sub") == f"system:serviceaccount:{named.namespace}:{named.name}" else None


def _read_time(text: str | None) -> datetime | None:
    """Parse a time with its time zone; return None for None. Raises ValueError or TypeError if the time is invalid."""
    if text is None:
        return None
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"{text} has no zone")
    return time


def _object(part: str) -> Mapping[str, Any]:
    """Return the JSON object in a part of a token; an empty mapping if the part contains no object."""
    try:
        value = orjson.loads(_decoded(part))
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _decoded(part: str) -> bytes:
    """Return the content of a part of a token; empty if the part is not base64."""
    try:
        return base64url_decode(part)
    except ValueError:
        return b""


@lru_cache(maxsize=1024)
def _verifier(key: bytes) -> ec.EllipticCurvePublicKey | None:
    """Return a public key of type ECDSA P-256; None for another type. Raises ValueError if the key is damaged."""
    public_key = load_pem_public_key(key)
    if isinstance(public_key, ec.EllipticCurvePublicKey) and isinstance(public_key.curve, ec.SECP256R1):
        return public_key
    return None
