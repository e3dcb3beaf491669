"""Certificates and keys as Secret entries `<name>.crt` and `<name>.key`, and the check whether a pair can stay."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from kplane.pki.errors import CredentialsInvalid
from kplane.pki.primitives import KeyPair, check_pair, hosts_of, issued_by, renewal_due, user_of

__all__ = ["data_of", "entries", "find_pair", "kept", "read_entry", "read_pair"]


def entries(name: str, pair: KeyPair) -> dict[str, bytes]:
    """Return the Secret entries of a pair."""
    return {f"{name}.crt": pair.certificate, f"{name}.key": pair.key}


def read_pair(data: Mapping[str, bytes], name: str) -> KeyPair:
    """Read the result of `entries`. Raises CredentialsInvalid with the name of a missing or damaged entry."""
    pair = KeyPair(certificate=read_entry(data, f"{name}.crt"), key=read_entry(data, f"{name}.key"))
    try:
        check_pair(pair)
    except CredentialsInvalid as error:
        raise CredentialsInvalid(f"entries {name}.crt and {name}.key: {error}") from None
    return pair


def data_of(secret: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the decoded data of a Secret, without entries that are not base64."""
    decoded = {}
    for name, value in (secret.get("data") or {}).items():
        try:
            decoded[name] = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            continue
    return decoded


def find_pair(secret: Mapping[str, Any] | None, name: str) -> KeyPair | None:
    """Return the pair in a Secret; None without a Secret, or if an entry is missing or damaged."""
    try:
        return read_pair(data_of(secret), name) if secret is not None else None
    except CredentialsInvalid:
        return None


def read_entry(data: Mapping[str, bytes], name: str) -> bytes:
    """Return an entry. Raises CredentialsInvalid if the entry is missing."""
    try:
        return data[name]
    except KeyError:
        raise CredentialsInvalid(f"it has no entry {name}") from None


def kept(
    previous: KeyPair | None,
    authority: KeyPair,
    *,
    now: dt.datetime,
    hosts: Sequence[str] = (),
    user: str | None = None,
) -> KeyPair | None:
    """Return the pair if it is from this authority, not due for renewal, and for these hosts and this user."""
    if previous is None or not issued_by(previous.certificate, authority=authority):
        return None
    if renewal_due(previous.certificate, now=now) or not hosts_of(previous.certificate).issuperset(hosts):
        return None
    if user is not None and user_of(previous.certificate) != user:
        return None
    return previous
