"""Contents of Secrets; their writers are not trusted."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from kplane.provider.errors import KubeconfigError

__all__ = ["value_of", "values_of"]


def values_of(secret: Mapping[str, Any]) -> dict[str, bytes]:
    """Decode a Secret's data. Raises KubeconfigError if it is no base64."""
    data = secret.get("data")
    if not isinstance(data, Mapping):
        return {}
    try:
        return {key: base64.b64decode(value, validate=True) for key, value in data.items() if isinstance(value, str)}
    except (binascii.Error, ValueError) as error:
        raise KubeconfigError("its data is not base64") from error


def value_of(values: Mapping[str, bytes], key: str) -> bytes:
    """Return one value. Raises KubeconfigError if it is missing or empty."""
    if key not in values:
        raise KubeconfigError(f"it has no key {key!r}")
    if not values[key]:
        raise KubeconfigError(f"its key {key!r} is empty")
    return values[key]
