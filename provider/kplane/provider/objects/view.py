"""Sees dicts and instances of classes alike: as a dict, and back as the caller gave them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, cast

from kplane.provider.client.resources import Resource
from kplane.provider.client.typed import ObjectT, TypedKind, cause_of, codec_of, typed_of, without_none
from kplane.provider.errors import ProviderError
from kplane.provider.objects.identity import Object, kind_of, uid_of

__all__ = ["View", "fields_of", "put_field", "view_of"]

_REFERENCE: Final = {"apiVersion": "v1", "kind": "Kind", "name": "name", "uid": "uid"}
_CONDITION: Final = {
    "type": "Ready",
    "status": "True",
    "reason": "Reason",
    "message": "",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
_SAMPLES: Final[dict[tuple[str, str], Any]] = {
    ("metadata", "generation"): 1,
    ("metadata", "ownerReferences"): [_REFERENCE],
    ("metadata", "uid"): "uid",
    ("status", "conditions"): [_CONDITION],
}
"""Values of the fields that functions read, to see whether a class keeps such a field."""


@dataclass(frozen=True, slots=True)
class View(Generic[ObjectT]):
    """An object that a caller gave, as dict."""

    given: ObjectT
    body: Object
    """The object itself if it is a dict; else the fields that its class keeps."""
    typed: TypedKind[ObjectT] | None
    """Class of the object; None for a dict."""

    @property
    def is_whole(self) -> bool:
        """Tell whether the body has all fields of the object: a class may keep only some."""
        return self.typed is None

    @property
    def kind(self) -> Resource | str:
        """Return the kind, whose objects a client returns as dicts. Raises ProviderError for a dict without kind."""
        return kind_of(self.body) if self.typed is None else self.typed.resource or self.typed.name

    @property
    def uid(self) -> str:
        """Return the uid. Raises ProviderError for an object that does not come from an API server."""
        self.read("metadata", "uid")
        return uid_of(self.body)

    def read(self, part: str, field: str) -> Any:
        """Return a field of the metadata or the status, or None. Raises ProviderError if the class keeps no such field.

        Without this error, a field that the class drops would look like one that the object does not have.
        """
        fields = self.body.get(part) or {}
        value = fields.get(field)
        if value is None and self.typed is not None:
            sample = {**self.body, part: {**fields, field: _SAMPLES[part, field]}}
            try:
                decoded = self.typed.read(sample)
            except Exception:  # noqa: BLE001 - the decoder is the user's
                return None  # The class reads the field, because it refuses the sample.
            _require_kept(sample, self.typed.encode(decoded), cls=self.typed.type, within=part)
        return value

    def restore(self, found: Object, *, source: str) -> ObjectT:
        """Return a state of the object as the caller gave the object. Raises DecodeFailed, which names `source`."""
        if self.typed is None:
            return cast("ObjectT", found)
        return self.given if found is self.body else self.typed.decode(found, source=source)

    def mutated(
        self, found: Object, mutate: Callable[[Any], object], *, source: str, field: str | None = None
    ) -> Object | None:
        """Return a state of the object with the changes that `mutate` makes to a copy of it, or None without changes.

        `mutate` gets the object or one `field` of it, as dict or as instance. Only the fields that differ between the
        instances change. Raises DecodeFailed, which names `source`.
        """
        before = found if field is None else {**found, field: found.get(field) or {}}
        after = copy.deepcopy(before)
        if self.typed is None:
            mutate(after if field is None else after[field])
        else:
            instance = self.typed.decode(after, source=source)
            after = _overlaid(before, self.typed.encode(instance), self._encoded_after(instance, mutate, field))
        return after if after != before else None

    def _encoded_after(self, instance: ObjectT, mutate: Callable[[Any], object], field: str | None) -> Object:
        """Call `mutate`, which changes the instance, or returns another one because the class is frozen."""
        assert self.typed is not None  # noqa: S101 - there is an instance
        target = instance if field is None else _attribute(instance, field)
        result = mutate(target)
        if isinstance(target, dict) or type(result) is not type(target):
            return self.typed.encode(instance)
        if field is None:
            return self.typed.encode(cast("ObjectT", result))
        return {**self.typed.encode(instance), field: fields_of(result)}


def view_of(given: ObjectT) -> View[ObjectT]:
    """Return the view of a dict, or of an instance of a class that `typed_kind` has declared.

    Raises ProviderError for anything else.
    """
    if isinstance(given, dict):
        return View(given, given, None)
    try:
        typed = typed_of(type(given))
    except ProviderError as error:
        cls = type(given).__name__
        raise ProviderError(
            f"kplane.provider.objects takes dicts and instances of kinds, and {cls} is none: read the object by the"
            f' name of its kind, such as `cluster.cache.get("example.com/v1/Widget", key)`, or decorate class {cls}'
            " with typed_kind"
        ) from error
    assert typed is not None  # noqa: S101 - it is a class
    return View(given, typed.encode(given), typed)


def fields_of(given: object) -> Object:
    """Return a dict itself, or the fields of an instance without those that are None.

    Raises ProviderError for an instance that cannot be encoded.
    """
    if isinstance(given, dict):
        return given
    fields: Object = without_none(_codec(type(given))[1](given))
    return fields


def put_field(given: object, field: str, fields: Object) -> None:
    """Replace a field of an instance in place by that of `fields`. A dict, which `fields` is itself, has it already.

    Raises ProviderError if the class does not keep the field, or does not let it change.
    """
    if given is fields:
        return
    cls = type(given)
    read, write = _codec(cls)
    try:
        decoded = read(fields)
    except Exception as error:
        raise ProviderError(f"failed to change {field} of a {cls.__name__}: {cause_of(error)}") from error
    _require_kept(fields, without_none(write(decoded)), cls=cls, within=field)
    current, desired = _attribute(given, field), _attribute(decoded, field)
    if isinstance(current, dict) and isinstance(desired, dict):
        items = dict(desired)
        current.clear()
        current.update(items)
    elif isinstance(current, list):
        current[:] = desired
    else:
        try:
            setattr(given, field, desired)
        except (AttributeError, TypeError, ValueError) as error:
            raise ProviderError(
                f"failed to change {field} of a {cls.__name__}: {cause_of(error)}; give a dict, or an instance of a"
                " class that is not frozen"
            ) from error


def _codec(cls: type[Any]) -> tuple[Callable[[Object], Any], Callable[[Any], Object]]:
    codec = codec_of(cls)
    if codec is None:
        raise ProviderError(
            f"{cls.__name__} is no dict, pydantic model, Struct or dataclass: give one of these, or change the object"
            " by Client.patch"
        )
    return codec


def _attribute(instance: object, field: str) -> Any:
    try:
        return getattr(instance, field)
    except AttributeError as error:
        cls = type(instance).__name__
        raise ProviderError(
            f"class {cls} has no attribute {field}: add it, or read the object by the name of its kind, as dict"
        ) from error


def _require_kept(wanted: Object, kept: Object, *, cls: type[Any], within: str) -> None:
    lost = next(_lost(wanted.get(within), kept.get(within), within), None)
    if lost is not None:
        raise ProviderError(
            f"class {cls.__name__} keeps no {lost}: declare this field; `metadata: dict[str, Any]` keeps all metadata,"
            " and `conditions: Conditions` of kplane.provider.objects all of a condition"
        )


def _lost(wanted: Any, kept: Any, path: str) -> Iterator[str]:
    """Yield the paths of fields that are in `wanted` only."""
    if isinstance(wanted, dict) and isinstance(kept, dict):
        for key, value in wanted.items():
            yield from _lost(value, kept[key], f"{path}.{key}") if key in kept else (f"{path}.{key}",)
    elif isinstance(wanted, list) and isinstance(kept, list):
        for item, other in zip(wanted, kept, strict=False):
            yield from _lost(item, other, f"{path}[]")
    elif wanted is not None and kept is None:
        yield path


def _overlaid(found: Any, before: Any, after: Any) -> Any:
    """Return `found` with the changes from `before` to `after`. All other fields stay."""
    if before == after:
        return found
    if isinstance(found, dict) and isinstance(before, dict) and isinstance(after, dict):
        merged = {key: value for key, value in found.items() if key not in before or key in after}
        for key, value in after.items():
            if key not in before:
                merged[key] = value
            elif value != before[key]:
                merged[key] = _overlaid(found.get(key), before[key], value)
        return merged
    if isinstance(found, list) and isinstance(before, list) and isinstance(after, list) and len(found) == len(before):
        return _overlaid_items(found, before, after)
    return after


def _overlaid_items(found: list[Any], before: list[Any], after: list[Any]) -> list[Any]:
    """Return the items of `after`, with the fields that their class does not keep."""
    items: list[Any] = []
    for index, item in enumerate(after):
        if item in before:
            items.append(found[before.index(item)])
        elif len(after) >= len(before) > index:
            items.append(_overlaid(found[index], before[index], item))
        else:
            # Items were removed, so the position does not show which item it was.
            items.append(item)
    return items
