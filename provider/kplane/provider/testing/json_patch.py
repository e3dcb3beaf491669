"""JSON patches (RFC 6902) with the deviations of a kube-apiserver."""

from __future__ import annotations

import copy
import re
from typing import Any, Final

import orjson

from kplane.provider.errors import ApiError, api_error

__all__ = ["patched"]

_INDEX: Final = re.compile(r"[+-]?[0-9]+")
_TEXTS: Final = ("op", "path", "from")


def patched(target: Any, operations: Any) -> Any:
    """Return a patched copy of an object.

    Raises an ApiError with status 400 for an invalid patch, and Invalid for a patch that does not fit the object or
    whose `test` fails. Kubernetes is more lenient than the RFC: `replace` adds a missing field, `copy` copies a missing
    field as null, and indices may be negative.
    """
    if not isinstance(operations, list) or not all(map(_is_operation, operations)):
        raise api_error(400, "BadRequest", "error decoding patch: a JSON patch is a list of operations")
    whole: Any = [copy.deepcopy(target)]
    for operation in operations:
        _Operation(whole, operation or {}).run()
    return whole[0]


def _is_operation(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and all(isinstance(value.get(key), str | None) for key in _TEXTS))


class _Operation:
    """An operation of a patch on `whole[0]`."""

    def __init__(self, whole: list[Any], operation: dict[str, Any]) -> None:
        self._whole = whole
        self._name = operation.get("op")
        self._path = operation.get("path")
        self._from = operation.get("from")
        self._value = operation.get("value")

    def run(self) -> None:
        match self._name:
            case "add":
                self._add(self._value)
            case "remove":
                self._remove(self._path)
            case "replace":
                self._replace()
            case "move":
                value = self._read(self._from)
                self._remove(self._from)
                self._add(value)
            case "copy":
                self._add(copy.deepcopy(self._read(self._from)))
            case "test":
                self._test()
            case _:
                raise _refused(f"there is no operation {self._name!r}")

    def _add(self, value: Any) -> None:
        parent, key = self._find(self._path)
        if isinstance(parent, dict):
            parent[key] = value
        elif key == "-":
            parent.append(value)
        else:
            parent.insert(self._index(key, len(parent) + 1), value)

    def _remove(self, path: str | None) -> None:
        parent, key = self._find(path)
        if isinstance(parent, list):
            del parent[self._index(key, len(parent))]
        elif key in parent:
            del parent[key]
        else:
            raise self._misses(path)

    def _replace(self) -> None:
        if self._path == "":
            self._whole[0] = self._value
            return
        parent, key = self._find(self._path)
        if isinstance(parent, dict):
            parent[key] = self._value
        else:
            parent[self._index(key, len(parent))] = self._value

    def _test(self) -> None:
        value = self._whole[0] if self._path == "" else self._read(self._path)
        # Compare the JSON texts: in Python, but not in JSON, 1 equals 1.0 and true.
        if _text(value) != _text(self._value):
            raise _refused(f"testing value {self._path} failed")

    def _read(self, path: str | None) -> Any:
        parent, key = self._find(path)
        return parent.get(key) if isinstance(parent, dict) else parent[self._index(key, len(parent))]

    def _find(self, path: str | None) -> tuple[dict[str, Any] | list[Any], str]:
        """Return the map or list that holds the value of a path, and the key of the value in it."""
        keys = [key.replace("~1", "/").replace("~0", "~") for key in (path or "").split("/")[1:]]
        if not keys:
            raise self._misses(path)
        container = self._whole[0]
        for key in keys[:-1]:
            if isinstance(container, dict):
                container = container.get(key)
            elif isinstance(container, list):
                container = container[self._index(key, len(container))]
        if not isinstance(container, dict | list):
            raise self._misses(path)
        return container, keys[-1]

    def _index(self, key: str, length: int) -> int:
        if not _INDEX.fullmatch(key) or not -length <= int(key) < length:
            raise _refused(f"{self._name} operation does not apply: {key!r} is no index of a list of {length}")
        return int(key) % length

    def _misses(self, path: str | None) -> ApiError:
        return _refused(f"{self._name} operation does not apply: doc is missing path: {path}")


def _text(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def _refused(message: str) -> ApiError:
    return api_error(422, "Invalid", f"the server rejected our request due to an error in our request: {message}")
