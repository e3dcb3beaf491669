"""Reads of Secrets from untrusted writers."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from kplane.provider.errors import KubeconfigError

__all__ = ["value_of", "values_of"]


def values_of(secret: Mapping[str, Any]) -> dict[str, bytes]:
    """Decode the data of a Secret. Raises KubeconfigError if a value is no base64."""
    data = secret.get("data")
    if not isinstance(data, Mapping):
        return {}
    try:
        return {key: base64.b64decode(value, validate=True) for key, value in data.items() if isinstance(value, str)}
    except (binascii.Error, ValueError) as error:
        raise KubeconfigError("its data is not base64") from error


def value_of(values: Mapping[str, bytes], key: str) -> bytes:
    """Return the value of a key. Raises KubeconfigError if the value is missing or empty."""
    if key not in values:
        raise KubeconfigError(f"it has no key {key!r}")
    if not values[key]:
        raise KubeconfigError(f"its key {key!r} is empty")
    return values[key]
