"""Kinds as classes: pydantic models, msgspec Structs, dataclasses, or a class with functions to decode and encode it.

This module does not import pydantic: it recognizes a model by the method `model_validate`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeAlias, cast

import msgspec
from typing_extensions import TypeVar

from kplane.provider.client.resources import Resource
from kplane.provider.errors import DecodeFailed, ProviderError

__all__ = [
    "Kind",
    "ObjectT",
    "TypedKind",
    "as_kind",
    "cause_of",
    "class_of",
    "codec_of",
    "kind_and_body",
    "title_of",
    "typed_of",
    "without_none",
]

Object = dict[str, Any]
ObjectT = TypeVar("ObjectT", default=Object)
T = TypeVar("T")
Kind: TypeAlias = Resource | str | type[ObjectT]
"""A kind: a Resource, a name such as `"apps/v1/Deployment"`, or a class that `typed_kind` has declared.

Calls return dicts for the first two, and instances for a class.
"""

_ATTRIBUTE: Final = "__kplane_kind__"
_MAX_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class TypedKind(Generic[ObjectT]):
    """A class for a kind, with the decoder and the encoder that client, caches and webhooks share."""

    type: type[ObjectT]
    name: str
    """Name of the kind, such as `example.com/v1/Widget`."""
    resource: Resource | None
    """Resource of the kind; None needs discovery in each cluster."""
    read: Callable[[Object], ObjectT]
    write: Callable[[ObjectT], Object]

    def decode(self, found: Object, *, source: str) -> ObjectT:
        """Make an instance of an object. Raises DecodeFailed with the object, its field, and the remedy.

        `source` names the cluster, cache or webhook that has the object.
        """
        try:
            return self.read(found)
        except Exception as error:
            metadata = found.get("metadata")
            names = metadata if isinstance(metadata, dict) else {}
            where = "/".join(str(names[key]) for key in ("namespace", "name") if names.get(key))
            kind = self.name.rpartition("/")[2]
            raise DecodeFailed(
                f"failed to decode {kind} {where or 'without a name'} of {source} as {self.type.__name__}:"
                f" {cause_of(error)}; correct the object, or have class {self.type.__name__} accept it"
            ) from error

    def encode(self, instance: ObjectT) -> Object:
        """Make an object of an instance, without fields that are None. Raises ProviderError if it cannot be encoded."""
        try:
            encoded = without_none(self.write(instance))
        except Exception as error:
            raise ProviderError(f"failed to encode a {self.type.__name__}: {cause_of(error)}") from error
        if not isinstance(encoded, dict):
            raise ProviderError(f"failed to encode a {self.type.__name__}: its encode function returned no dict")
        api_version, _, kind = self.name.rpartition("/")
        return {**encoded, "apiVersion": api_version, "kind": kind}


def class_of(
    name: str,
    cls: type[ObjectT],
    *,
    resource: Resource | None,
    decode: Callable[[Object], ObjectT] | None,
    encode: Callable[[ObjectT], Object] | None,
) -> type[ObjectT]:
    """Record the kind on its class; `typed_kind` documents the arguments."""
    read, write = decode or _reader(cls), encode or _writer(cls)
    if read is None or write is None:
        raise ProviderError(
            f"{cls.__name__} is no pydantic model, Struct or dataclass: give typed_kind() functions decode and encode"
        )
    try:
        setattr(cls, _ATTRIBUTE, TypedKind(cls, name, resource, read, write))
    except (AttributeError, TypeError) as error:
        raise ProviderError(
            f"{cls.__name__} takes no attribute, so it cannot stand for a kind: derive from it"
        ) from error
    return cls


def codec_of(cls: type[T]) -> tuple[Callable[[Object], T], Callable[[T], Object]] | None:
    """Return the functions that decode and encode instances of a class: a kind, or the class of a part of an object.

    None for a class that `typed_kind` has not declared, if it is no pydantic model, Struct, dataclass or attrs class.
    """
    typed: TypedKind[T] | None = vars(cls).get(_ATTRIBUTE)
    if typed is not None:
        return typed.read, typed.write
    read, write = _reader(cls), _writer(cls)
    return None if read is None or write is None else (read, write)


def typed_of(kind: Kind[ObjectT]) -> TypedKind[ObjectT] | None:
    """Return the declared kind of a class; None for a Resource and a name.

    Raises ProviderError for a class that was not declared. A subclass does not inherit the declaration of its base.
    """
    if not isinstance(kind, type):
        return None
    typed = vars(kind).get(_ATTRIBUTE)
    if typed is None:
        raise ProviderError(
            f"class {kind.__name__} stands for no kind: decorate it with typed_kind('example.com/v1/{kind.__name__}')"
        )
    return cast("TypedKind[ObjectT]", typed)


def title_of(kind: Kind[Any]) -> str:
    """Return the name of a kind for messages."""
    return kind.__name__ if isinstance(kind, type) else str(kind)


def as_kind(kind: Kind[ObjectT], found: Object, *, source: str) -> ObjectT:
    """Return an object as an instance of the class, or unchanged for a Resource or a name. Raises DecodeFailed."""
    typed = typed_of(kind)
    return cast("ObjectT", found) if typed is None else typed.decode(found, source=source)


def kind_and_body(kind: Kind[ObjectT] | ObjectT, body: Object | ObjectT | None) -> tuple[Kind[ObjectT], Object]:
    """Return the kind and the object of a write, whose caller may give only an instance.

    Raises ProviderError without an object, and for an instance of another class than the kind.
    """
    if body is None:
        if isinstance(kind, (Resource, str, type)):
            raise ProviderError(f"there is no object to write: give a body for {kind}, or an instance of its class")
        return type(kind), _body_of(kind)
    if not isinstance(body, dict) and isinstance(kind, type) and type(body) is not kind:
        raise ProviderError(f"a {type(body).__name__} cannot be written as {kind.__name__}")
    return cast("Kind[ObjectT]", kind), _body_of(body)


def _body_of(instance: object) -> Object:
    """Return the object of an instance; a dict is returned as it is. Raises ProviderError as `typed_of`."""
    if isinstance(instance, dict):
        return instance
    typed = typed_of(type(instance))
    assert typed is not None  # noqa: S101 - it is a class
    return typed.encode(instance)


def cause_of(error: Exception) -> str:
    """Return the reason why a decoder failed, with field names but without values, which may be secret."""
    list_errors = getattr(error, "errors", None)
    if callable(list_errors):  # pydantic.ValidationError
        details = cast(
            "list[dict[str, Any]]", list_errors(include_url=False, include_input=False, include_context=False)
        )
        causes = [f"{'.'.join(map(str, detail['loc'])) or 'the object'}: {detail['msg']}" for detail in details]
        more = f"; and {len(causes) - _MAX_NAMED} more" if len(causes) > _MAX_NAMED else ""
        return "; ".join(causes[:_MAX_NAMED]) + more
    if isinstance(error, msgspec.ValidationError):
        cause, _, field = str(error).partition(" - at `$.")
        return f"{field.removesuffix('`')}: {cause}" if field else cause
    return str(error) or type(error).__name__


def _reader(cls: type[ObjectT]) -> Callable[[Object], ObjectT] | None:
    validate: Callable[[Object], ObjectT] | None = getattr(cls, "model_validate", None)
    if validate is not None:
        return validate
    return functools.partial(msgspec.convert, type=cls) if _is_plain(cls) else None


def _writer(cls: type[ObjectT]) -> Callable[[ObjectT], Object] | None:
    dump: Callable[..., Object] | None = getattr(cls, "model_dump", None)
    if dump is not None:
        return functools.partial(dump, mode="json", by_alias=True, exclude_none=True)
    return msgspec.to_builtins if _is_plain(cls) else None


def _is_plain(cls: type[Any]) -> bool:
    """Tell whether msgspec reads and writes instances of the class."""
    return issubclass(cls, msgspec.Struct) or dataclasses.is_dataclass(cls) or hasattr(cls, "__attrs_attrs__")


def without_none(value: Any) -> Any:
    """Leave out None, which an API server treats as an absent field, and a patch as a deletion."""
    if isinstance(value, dict):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_none(item) for item in value]
    return value
