"""Conversion reviews: objects of a custom kind in another version (apiextensions.k8s.io/v1)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from kplane.provider.errors import ProviderError
from kplane.provider.webhooks.reviews import Object, request_of

__all__ = ["Convert", "converted"]

log: Final = logging.getLogger(__name__)

Convert = Callable[[Object, str], Object]
"""Returns an object in another version, given as an apiVersion such as `example.com/v2`. It may change and return what
it is given. Name, uid and the like must stay. Nothing that a version has may be lost in the others."""

_API_VERSION: Final = "apiextensions.k8s.io/v1"
_KIND: Final = "ConversionReview"
_SLICE: Final = 100


async def converted(body: bytes, *, by_kind: Mapping[str, Convert]) -> Object:
    """Answer a review; `by_kind` has group and kind, such as `example.com/Widget`.

    What fails is answered as a failure, with the object that failed. Raises ProviderError for what is no review.
    """
    asked = request_of(body, api_version=_API_VERSION, kind=_KIND)
    uid, version, objects = asked.get("uid"), asked.get("desiredAPIVersion"), asked.get("objects")
    if not isinstance(uid, str) or not isinstance(version, str) or not isinstance(objects, list):
        raise ProviderError("the request needs a uid, a desiredAPIVersion and objects")
    answer: Object = {"uid": uid}
    try:
        answer["convertedObjects"] = await _all(objects, version, by_kind=by_kind)
        answer["result"] = {"status": "Success"}
    except ProviderError as error:
        answer["convertedObjects"] = []
        answer["result"] = {"status": "Failure", "message": str(error)}
    return {"apiVersion": _API_VERSION, "kind": _KIND, "response": answer}


async def _all(objects: list[Any], version: str, *, by_kind: Mapping[str, Convert]) -> list[Object]:
    found: list[Object] = []
    for number, each in enumerate(objects, start=1):
        found.append(_one(each, version, by_kind=by_kind))
        if not number % _SLICE:
            # A review has all objects of a list.
            await asyncio.sleep(0)
    return found


def _one(found: object, version: str, *, by_kind: Mapping[str, Convert]) -> Object:
    if not isinstance(found, dict) or not isinstance(found.get("metadata"), dict):
        raise ProviderError("an object of the request has no metadata")
    what = f"{str(found.get('apiVersion')).rpartition('/')[0]}/{found.get('kind')}"
    metadata = found["metadata"]
    where = "/".join(str(metadata[key]) for key in ("namespace", "name") if metadata.get(key))
    convert = by_kind.get(what)
    if convert is None:
        raise ProviderError(f"no webhook converts {what}")
    if found.get("apiVersion") == version:
        return found
    try:
        made = convert(found, version)
        if not isinstance(made, dict):
            raise TypeError(f"it returned {type(made).__name__}, and no object")  # noqa: TRY301 - as what it raises
    except ProviderError as error:
        raise ProviderError(f"failed to convert {what} {where} to {version}: {error}") from error
    except Exception as error:
        log.exception("failed to convert %s %s to %s", what, where, version)
        raise ProviderError(f"failed to convert {what} {where} to {version}: see the log of the webhook") from error
    return {**made, "apiVersion": version}
