"""Tells by an annotation whether an object is as it was applied."""

from __future__ import annotations

import hashlib
from typing import Final

import orjson

from kplane.provider.objects.identity import Object

__all__ = ["APPLIED_ANNOTATION", "Fingerprint"]

APPLIED_ANNOTATION: Final = "objects.kplane.dev/applied"
"""Hash of the description and, after a dot, that of the object which the API server made of it."""

_APART: Final = frozenset({"apiVersion", "kind", "metadata", "status"})
_KEYED: Final = ("labels", "annotations")
_LISTED: Final = ("ownerReferences", "finalizers")


class Fingerprint:
    """Compares objects of the API server with a description, without a write for those that are as applied.

    The hash of the description tells whether the description has changed, also to another process. Whether the object
    has changed is seen by comparing it with the description. But an API server completes many kinds with defaults, and
    writes quantities in another form. Then the annotation has a second hash: that of the object as the API server
    answered. So each change of an object is noticed, by whichever program, except in its status and in metadata that
    the description does not name.
    """

    def __init__(self, description: Object) -> None:
        self._description = description
        self._content = self._content_of(description)
        self._applied = _digest(self._content)

    def matches(self, found: Object) -> bool:
        """Tell whether an object is as it was applied, by this description."""
        applied, _, completed = _annotation(found).partition(".")
        if applied != self._applied:
            return False
        content = self._content_of(found)
        return content == self._content or completed == _digest(content)

    def annotated(self, answer: Object | None = None) -> Object:
        """Return the description with the annotation. `answer` is the object that an API server made of it."""
        value = self._applied
        if answer is not None and (content := self._content_of(answer)) != self._content:
            value = f"{value}.{_digest(content)}"
        metadata = self._description["metadata"]
        annotations = {**(metadata.get("annotations") or {}), APPLIED_ANNOTATION: value}
        return {**self._description, "metadata": {**metadata, "annotations": annotations}}

    def _content_of(self, found: Object) -> Object:
        """Return all fields that the description has, or could have, in a form to compare."""
        described, metadata = self._description["metadata"], found["metadata"]
        content: Object = {field: value for field, value in found.items() if field not in _APART}
        for field in _KEYED:
            values = metadata.get(field) or {}
            content[f"metadata.{field}"] = {key: values.get(key) for key in described.get(field) or {}}
        for field in _LISTED:
            items = metadata.get(field) or ()
            content[f"metadata.{field}"] = [item for item in described.get(field) or () if item in items]
        return content


def _annotation(found: Object) -> str:
    value = (found["metadata"].get("annotations") or {}).get(APPLIED_ANNOTATION)
    return value if isinstance(value, str) else ""


def _digest(content: Object) -> str:
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
