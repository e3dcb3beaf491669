"""Detects changes of applied objects by an annotation with hashes."""

from __future__ import annotations

import hashlib
from typing import Final

import orjson

from kplane.provider.objects.identity import Object

__all__ = ["APPLIED_ANNOTATION", "Fingerprint"]

APPLIED_ANNOTATION: Final = "objects.kplane.dev/applied"
"""Hash of the description and, after a dot, hash of the object in the answer of the API server."""

_APART: Final = frozenset({"apiVersion", "kind", "metadata", "status"})
_KEYED: Final = ("labels", "annotations")
_LISTED: Final = ("ownerReferences", "finalizers")


class Fingerprint:
    """Compares objects of the API server with a description, so that unchanged objects need no write.

    The hash of the description shows whether the description has changed, also across processes. A comparison of the
    object with the description shows whether the object has changed. But an API server adds defaults to many kinds, and
    writes quantities in another form. The annotation then has a second hash, of the object in the answer. So any change
    of the object is noticed, except in its status and in metadata that the description does not set.
    """

    def __init__(self, description: Object) -> None:
        self._description = description
        self._content = self._content_of(description)
        self._applied = _digest(self._content)

    def matches(self, found: Object) -> bool:
        """Tell whether an object is unchanged since it was applied with this description."""
        applied, _, completed = _annotation(found).partition(".")
        if applied != self._applied:
            return False
        content = self._content_of(found)
        return content == self._content or completed == _digest(content)

    def annotated(self, answer: Object | None = None) -> Object:
        """Return the description with the annotation. `answer` is the object that the API server returned."""
        value = self._applied
        if answer is not None and (content := self._content_of(answer)) != self._content:
            value = f"{value}.{_digest(content)}"
        metadata = self._description["metadata"]
        annotations = {**(metadata.get("annotations") or {}), APPLIED_ANNOTATION: value}
        return {**self._description, "metadata": {**metadata, "annotations": annotations}}

    def _content_of(self, found: Object) -> Object:
        """Return all fields that a description may contain, in comparable form."""
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
