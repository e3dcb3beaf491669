"""Fingerprints of keys. A record of fingerprints shows whether a Secret has other keys than before.

A fingerprint does not reveal its key: it is the SHA-256 of a public key, or of a random key of 32 bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from kplane.pki.authorities import ENCRYPTION_KEY
from kplane.pki.primitives import public_fingerprint

__all__ = ["Fingerprints", "fingerprints_of"]

Fingerprints = Mapping[str, str]
"""SHA-256 in hexadecimal digits, by entry of the Secret of the authorities."""


def fingerprints_of(data: Mapping[str, bytes]) -> Fingerprints:
    """Return the fingerprints of all keys in the data of a Secret. Raises CredentialsInvalid for a damaged key."""
    keys = {name: key for name, key in data.items() if name.endswith(".key")}
    return {
        name: hashlib.sha256(key).hexdigest() if name == ENCRYPTION_KEY else public_fingerprint(key)
        for name, key in keys.items()
    }
