"""What the reviews of API servers have in common."""

from __future__ import annotations

from typing import Any

import orjson

from kplane.provider.errors import ProviderError

__all__ = ["Object", "request_of"]

Object = dict[str, Any]


def request_of(body: bytes, *, api_version: str, kind: str) -> Object:
    """Return the request of a review. Raises ProviderError if it is no review of this kind."""
    try:
        review = orjson.loads(body)
    except ValueError as error:
        raise ProviderError(f"the body is no JSON: {error}") from error
    asked = review.get("request") if isinstance(review, dict) else None
    if not isinstance(asked, dict) or (review.get("apiVersion"), review.get("kind")) != (api_version, kind):
        raise ProviderError(f"the body is no {kind} of {api_version} with a request")
    return asked
