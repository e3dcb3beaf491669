"""Reads manifests: text of people into objects that can be sent, with bounds on what they may grow to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml
from typing_extensions import override

from kplane.controlplane_operator.errors import BundleInvalid
from kplane.controlplane_operator.watch.cache import Object

__all__ = ["ObjectId", "identify", "read_manifests"]

_MAX_NODES: Final = 200_000
"""Values in one bundle: aliases let a few lines of YAML stand for gigabytes."""
_MAX_DEPTH: Final = 100
_API_VERSION: Final = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?v[a-z0-9]+")
_KIND: Final = re.compile(r"[A-Z][A-Za-z0-9]{0,62}")
_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9._:]*[A-Za-z0-9])?")
_OF_THE_SERVER: Final = ("creationTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid")


@dataclass(frozen=True, slots=True)
class ObjectId:
    """Which object: `namespace` is empty for cluster-scoped ones."""

    api_version: str
    kind: str
    namespace: str
    name: str

    @override
    def __str__(self) -> str:
        return f"{self.kind} {f'{self.namespace}/' if self.namespace else ''}{self.name}"

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The same for every version that the object is served in."""
        return self.api_version.rpartition("/")[0], self.kind, self.namespace, self.name

    def readable(self) -> bool:
        """Tell whether every part is what such a part can be; what comes from a tenant may be anything."""
        return (
            _API_VERSION.fullmatch(self.api_version) is not None
            and _KIND.fullmatch(self.kind) is not None
            and all(len(part) <= 253 and _NAME.fullmatch(part) for part in (self.name, self.namespace or self.name))
        )


class _Loader(yaml.CSafeLoader):
    """YAML as Kubernetes reads it: what looks like a date is text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def identify(obj: Object) -> ObjectId:
    """Return which object `obj` is; the namespace is the one written in it."""
    metadata = obj["metadata"]
    return ObjectId(obj["apiVersion"], obj["kind"], metadata.get("namespace") or "", metadata["name"])


def read_manifests(text: str, *, source: str) -> list[Object]:
    """Return the objects in a text of YAML documents (or JSON, which is YAML), those of Lists one by one.

    What only an API server can say of an object (its uid, its resourceVersion) is dropped, so that exported objects can
    be used. `source` names the text for people. Raises BundleInvalid with a sentence that says where and what.
    """
    try:
        documents = list(yaml.load_all(text, Loader=_Loader))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise BundleInvalid(f"{source} is no YAML: {_in_one_line(error)}") from error
    budget = _Budget(source)
    return [obj for document in documents for obj in _objects(budget.plain(document), source=source)]


def _objects(document: Any, *, source: str) -> Iterator[Object]:
    if document is None:
        return
    if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
        raise BundleInvalid(f"{source} has a document that is no Kubernetes object: it has no kind")
    if document["kind"].endswith("List") and isinstance(document.get("items"), list):
        for item in document["items"]:
            yield from _objects(item, source=source)
        return
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not isinstance(name, str):
        raise BundleInvalid(f"{source}: a {document['kind']} has no metadata.name")
    found = {**document, "metadata": {field: value for field, value in metadata.items() if field not in _OF_THE_SERVER}}
    if not isinstance(found.get("apiVersion"), str):
        raise BundleInvalid(f"{source}: {document['kind']} {name} has no apiVersion")
    for field in ("labels", "annotations"):
        if not isinstance(metadata.get(field) or {}, dict):
            raise BundleInvalid(f"{source}: {document['kind']} {name}: metadata.{field} is no mapping")
    if not isinstance(metadata.get("namespace") or "", str) or not identify(found).readable():
        raise BundleInvalid(f"{source}: {document['kind']} {name}: apiVersion, kind, namespace or name cannot be one")
    yield found


class _Budget:
    """Copies parsed YAML into plain JSON values, as many as a bundle may have."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._left = _MAX_NODES

    def plain(self, value: Any, *, depth: int = 0) -> Any:
        self._left -= 1
        if self._left < 0 or depth > _MAX_DEPTH:
            raise BundleInvalid(
                f"{self._source} has more than {_MAX_NODES} values, or values nested more than {_MAX_DEPTH} deep"
            )
        if isinstance(value, Mapping):
            return {self._key(key): self.plain(item, depth=depth + 1) for key, item in value.items()}
        if isinstance(value, list):
            return [self.plain(item, depth=depth + 1) for item in value]
        if value is None or isinstance(value, (str, bool, float)):
            return value
        if isinstance(value, int) and -(2**63) <= value < 2**64:
            return value
        raise BundleInvalid(f"{self._source} has a value that JSON has no word for: {str(value)[:60]!r}")

    def _key(self, key: Any) -> str:
        if isinstance(key, str):
            return key
        if isinstance(key, (bool, int)):
            return str(key).lower()
        raise BundleInvalid(f"{self._source} has a key that is no text: {str(key)[:60]!r}")


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
