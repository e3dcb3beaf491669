"""Parser of manifests: converts text into objects for requests, with bounds on their size."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson
import yaml
from typing_extensions import override

from kplane.controlplane_operator.errors import BundleInvalid
from kplane.controlplane_operator.watch.cache import Object

__all__ = [
    "CRD_KIND",
    "FOUNDATION",
    "MAX_OBJECTS",
    "Bundle",
    "ObjectId",
    "identify",
    "rank",
    "read_bundle",
    "read_manifests",
]

_MAX_NODES: Final = 200_000
"""Maximum number of values in a bundle. With aliases, a few lines of YAML could expand to gigabytes."""
_MAX_DEPTH: Final = 100
_API_VERSION: Final = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?v[a-z0-9]+")
_KIND: Final = re.compile(r"[A-Z][A-Za-z0-9]{0,62}")
_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9._:]*[A-Za-z0-9])?")
_OF_THE_SERVER: Final = ("creationTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid")


@dataclass(frozen=True, slots=True)
class ObjectId:
    """Identity of an object. `namespace` is empty for cluster-scoped objects."""

    api_version: str
    kind: str
    namespace: str
    name: str

    @override
    def __str__(self) -> str:
        return f"{self.kind} {f'{self.namespace}/' if self.namespace else ''}{self.name}"

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Group, kind, namespace and name, which are the same in each served version of the object."""
        return self.api_version.rpartition("/")[0], self.kind, self.namespace, self.name

    def readable(self) -> bool:
        """Return whether all parts are valid. Parts that a tenant wrote may be any text."""
        return (
            _API_VERSION.fullmatch(self.api_version) is not None
            and _KIND.fullmatch(self.kind) is not None
            and all(len(part) <= 253 and _NAME.fullmatch(part) for part in (self.name, self.namespace or self.name))
        )


class _Loader(yaml.CSafeLoader):
    """YAML loader that reads dates as text, as Kubernetes does."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def identify(obj: Object) -> ObjectId:
    """Return the identity of `obj`, with the namespace that is written in it."""
    metadata = obj["metadata"]
    return ObjectId(obj["apiVersion"], obj["kind"], metadata.get("namespace") or "", metadata["name"])


def read_manifests(text: str, *, source: str) -> list[Object]:
    """Return the objects in a text of YAML documents (or JSON, a subset of YAML), including the items of Lists.

    Fields that an API server sets, such as uid and resourceVersion, are dropped, so that exported objects are accepted.
    `source` names the text in messages. Raises BundleInvalid with a sentence that names the place and the mistake.
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
    obj = {**document, "metadata": {field: value for field, value in metadata.items() if field not in _OF_THE_SERVER}}
    if not isinstance(obj.get("apiVersion"), str):
        raise BundleInvalid(f"{source}: {document['kind']} {name} has no apiVersion")
    for field in ("labels", "annotations"):
        if not isinstance(metadata.get(field) or {}, dict):
            raise BundleInvalid(f"{source}: {document['kind']} {name}: metadata.{field} is no mapping")
    if not isinstance(metadata.get("namespace") or "", str) or not identify(obj).readable():
        raise BundleInvalid(f"{source}: {document['kind']} {name}: apiVersion, kind, namespace or name cannot be one")
    yield obj


class _Budget:
    """Converter of parsed YAML to plain JSON values, up to the maximum number of values."""

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


CRD_KIND: Final = "CustomResourceDefinition"
FOUNDATION: Final = 1
"""Highest rank of the objects that must exist, with CRDs established, before objects of higher ranks are created."""

_RANKS: Final = {
    ("", "Namespace"): 0,
    ("apiextensions.k8s.io", CRD_KIND): 1,
    ("scheduling.k8s.io", "PriorityClass"): 2,
    ("storage.k8s.io", "StorageClass"): 2,
    ("", "ServiceAccount"): 2,
    ("rbac.authorization.k8s.io", "ClusterRole"): 2,
    ("rbac.authorization.k8s.io", "Role"): 2,
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"): 3,
    ("rbac.authorization.k8s.io", "RoleBinding"): 3,
    ("", "ConfigMap"): 3,
    ("", "Secret"): 3,
    # Last, because a workload of the same bundle may serve the webhook or the API group.
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"): 5,
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"): 5,
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding"): 5,
    ("apiregistration.k8s.io", "APIService"): 5,
}
_OTHERS: Final = 4


def rank(identity: ObjectId) -> int:
    """Return the rank of an object. Objects of equal rank keep the order of the bundle."""
    return _RANKS.get((identity.key[0], identity.kind), _OTHERS)


MAX_OBJECTS: Final = 500
"""Maximum number of objects in a bundle. Each object causes a request in each pass over a control plane."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """Objects of an add-on. Equal digests mean equal objects."""

    objects: tuple[Object, ...]
    digest: str

    @classmethod
    def of(cls, objects: list[Object]) -> Bundle:
        """Return a bundle of these objects."""
        encoded = orjson.dumps(objects, option=orjson.OPT_SORT_KEYS)
        return cls(tuple(objects), hashlib.sha256(encoded).hexdigest())


def read_bundle(data: Mapping[str, str]) -> Bundle:
    """Parse the entries of a ConfigMap, each a text of manifests, in the order of their keys.

    Raises BundleInvalid with a sentence that names the entry and the mistake. An empty bundle is also invalid: an empty
    bundle is probably a mistake, and would remove all installed objects.
    """
    objects = [obj for key in sorted(data) for obj in read_manifests(data[key], source=f"entry {key!r}")]
    if not objects:
        raise BundleInvalid("it has no manifest in its data; add them, or take the add-on off the class")
    if len(objects) > MAX_OBJECTS:
        raise BundleInvalid(f"it has {len(objects)} objects, and {MAX_OBJECTS} are the most; split it into several")
    return Bundle.of(objects)
