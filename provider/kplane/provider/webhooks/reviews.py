"""Decodes the reviews of API servers, of admission and of conversion."""

from __future__ import annotations

from typing import Any

import orjson

from kplane.provider.errors import ProviderError

__all__ = ["Object", "parse_request"]

Object = dict[str, Any]


def parse_request(body: bytes, *, api_version: str, kind: str) -> Object:
    """Return the request of a review. Raises ProviderError for a body that is no review of this kind."""
    try:
        review = orjson.loads(body)
    except ValueError as error:
        raise ProviderError(f"the body is no JSON: {error}") from error
    request = review.get("request") if isinstance(review, dict) else None
    if not isinstance(request, dict) or (review.get("apiVersion"), review.get("kind")) != (api_version, kind):
        raise ProviderError(f"the body is no {kind} of {api_version} with a request")
    return request
