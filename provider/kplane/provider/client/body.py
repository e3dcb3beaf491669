"""Bodies and query strings of requests."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

import orjson

from kplane.provider.client.resources import Resource
from kplane.provider.errors import ProviderError

__all__ = ["encode", "name_of", "namespace_of", "query_of", "typed"]


def typed(resource: Resource, body: dict[str, Any]) -> dict[str, Any]:
    """Fill in apiVersion and kind."""
    return {"apiVersion": resource.api_version, "kind": resource.kind, **body}


def encode(body: Any) -> bytes:
    """Return a body as JSON. Raises ProviderError if it cannot be encoded."""
    try:
        return orjson.dumps(body)
    except TypeError as error:
        raise ProviderError(f"the body cannot be sent as JSON: {error}") from error


def query_of(params: Mapping[str, str | int | bool | None]) -> str:
    """Return a query string without parameters that are None."""
    plain = tuple(
        (key, str(value).lower() if isinstance(value, bool) else str(value))
        for key, value in params.items()
        if value is not None
    )
    return _encoded(plain)


@functools.lru_cache(maxsize=64)
def _encoded(params: tuple[tuple[str, str], ...]) -> str:
    # Most requests share a few query strings.
    return urlencode(params, quote_via=quote)


def name_of(body: dict[str, Any]) -> str:
    """Return the name of an object. Raises ProviderError if it has none."""
    name = _metadata(body).get("name")
    if not isinstance(name, str):
        raise ProviderError("the object has no metadata.name")
    return name


def namespace_of(body: dict[str, Any]) -> str | None:
    """Return the namespace in an object."""
    namespace = _metadata(body).get("namespace")
    return namespace if isinstance(namespace, str) else None


def _metadata(body: dict[str, Any]) -> Mapping[str, Any]:
    metadata = body.get("metadata")
    return metadata if isinstance(metadata, Mapping) else {}
