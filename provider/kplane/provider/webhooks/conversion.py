"""Conversion reviews: objects of a custom kind in another version (apiextensions.k8s.io/v1)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from kplane.provider.errors import ProviderError
from kplane.provider.webhooks.reviews import Object, parse_request

__all__ = ["Convert", "convert_review"]

log: Final = logging.getLogger(__name__)

Convert = Callable[[Object, str], Object]
"""Returns an object in another version, given as an apiVersion such as `example.com/v2`. The function may change and
return its argument. It keeps name, uid and other identifying metadata, and every value that any version has."""

_API_VERSION: Final = "apiextensions.k8s.io/v1"
_KIND: Final = "ConversionReview"
_SLICE: Final = 100


async def convert_review(body: bytes, *, by_kind: Mapping[str, Convert]) -> Object:
    """Answer a review; `by_kind` has functions by group and kind, such as `example.com/Widget`.

    A conversion that fails is answered as a failure that names the object. Raises ProviderError for a body that is no
    ConversionReview.
    """
    request = parse_request(body, api_version=_API_VERSION, kind=_KIND)
    uid, version, objects = request.get("uid"), request.get("desiredAPIVersion"), request.get("objects")
    if not isinstance(uid, str) or not isinstance(version, str) or not isinstance(objects, list):
        raise ProviderError("the request needs a uid, a desiredAPIVersion and objects")
    answer: Object = {"uid": uid}
    try:
        answer["convertedObjects"] = await _convert_all(objects, version, by_kind=by_kind)
        answer["result"] = {"status": "Success"}
    except ProviderError as error:
        answer["convertedObjects"] = []
        answer["result"] = {"status": "Failure", "message": str(error)}
    return {"apiVersion": _API_VERSION, "kind": _KIND, "response": answer}


async def _convert_all(objects: list[Any], version: str, *, by_kind: Mapping[str, Convert]) -> list[Object]:
    converted: list[Object] = []
    for number, body in enumerate(objects, start=1):
        converted.append(_convert(body, version, by_kind=by_kind))
        if not number % _SLICE:
            # A review has all objects of a list, which may be thousands: other requests run in between.
            await asyncio.sleep(0)
    return converted


def _convert(body: object, version: str, *, by_kind: Mapping[str, Convert]) -> Object:
    if not isinstance(body, dict) or not isinstance(body.get("metadata"), dict):
        raise ProviderError("an object of the request has no metadata")
    kind = f"{str(body.get('apiVersion')).rpartition('/')[0]}/{body.get('kind')}"
    metadata = body["metadata"]
    name = "/".join(str(metadata[key]) for key in ("namespace", "name") if metadata.get(key))
    convert = by_kind.get(kind)
    if convert is None:
        raise ProviderError(f"no webhook converts {kind}")
    if body.get("apiVersion") == version:
        return body
    try:
        converted = convert(body, version)
        if not isinstance(converted, dict):
            raise TypeError(f"it returned {type(converted).__name__}, and no object")  # noqa: TRY301 - is logged below
    except ProviderError as error:
        raise ProviderError(f"failed to convert {kind} {name} to {version}: {error}") from error
    except Exception as error:
        log.exception("failed to convert %s %s to %s", kind, name, version)
        raise ProviderError(f"failed to convert {kind} {name} to {version}: see the log of the webhook") from error
    return {**converted, "apiVersion": version}
