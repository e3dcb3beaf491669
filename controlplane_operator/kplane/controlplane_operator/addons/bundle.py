"""Bundles: what an add-on consists of."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import orjson

from kplane.controlplane_operator.addons.manifest import read_manifests
from kplane.controlplane_operator.errors import BundleInvalid
from kplane.controlplane_operator.watch.cache import Object

__all__ = ["MAX_OBJECTS", "Bundle", "read_bundle"]

MAX_OBJECTS: Final = 500
"""Objects in one bundle: each is one request at each look at a control plane."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """The objects of an add-on; equal digests mean equal objects."""

    objects: tuple[Object, ...]
    digest: str

    @classmethod
    def of(cls, objects: list[Object]) -> Bundle:
        """Make a bundle of objects."""
        encoded = orjson.dumps(objects, option=orjson.OPT_SORT_KEYS)
        return cls(tuple(objects), hashlib.sha256(encoded).hexdigest())


def read_bundle(data: Mapping[str, str]) -> Bundle:
    """Read the entries of a ConfigMap, each a text of manifests, in the order of their keys.

    Raises BundleInvalid with a sentence that says in which entry what is wrong. An empty bundle is wrong as well: it is
    more often a slip than a wish, and what was installed would be removed for it.
    """
    found = [obj for key in sorted(data) for obj in read_manifests(data[key], source=f"entry {key!r}")]
    if not found:
        raise BundleInvalid("it has no manifest in its data; add them, or take the add-on off the class")
    if len(found) > MAX_OBJECTS:
        raise BundleInvalid(f"it has {len(found)} objects, and {MAX_OBJECTS} are the most; split it into several")
    return Bundle.of(found)
