"""Admission reviews: the question of an API server before it writes an object, and the answer (admission.k8s.io/v1)."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, cast

import orjson
from typing_extensions import override

from kplane.provider.client.kinds import KindName
from kplane.provider.client.typed import ObjectT, TypedKind
from kplane.provider.cluster.cluster import Cluster
from kplane.provider.errors import ProviderError
from kplane.provider.webhooks.json_patch import carried, difference
from kplane.provider.webhooks.reviews import Object, parse_request

__all__ = ["Admission", "Denied", "Operation", "Review", "User", "read_review"]

Operation = Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]

_API_VERSION: Final = "admission.k8s.io/v1"
_KIND: Final = "AdmissionReview"
_OPERATIONS: Final = frozenset({"CREATE", "UPDATE", "DELETE", "CONNECT"})


class Denied(ProviderError):
    """Refuses a request. The user sees the message, which should name the mistake and its remedy.

    `code` is the HTTP status of the refusal, from 400 to 499; 422 fits invalid fields.
    """

    def __init__(self, message: str, *, code: int = 403) -> None:
        if not 400 <= code <= 499:
            raise ProviderError(f"a request cannot be denied with status {code}: give one from 400 to 499")
        super().__init__(message)
        self.code: Final = code


@dataclass(frozen=True, slots=True)
class User:
    """The user who sent the request."""

    name: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class Admission(Generic[ObjectT]):
    """A request that an API server is about to carry out.

    `object` is the object as it will be, empty for DELETE; a mutating webhook changes it in place. `old_object` is the
    object as it is, for UPDATE and DELETE, and empty for others. `kind` is that of the object, and `subresource` is
    empty for the object itself. With `dry_run` the API server does not write, so a webhook must have no effects either.

    In a webhook for a class, both objects are instances, or None in the place of empty ones. A mutating webhook may set
    `object` to another instance. Fields that the class does not keep stay as they are. A read of `old_object` raises
    DecodeFailed if the class cannot decode it.
    """

    cluster: Cluster
    operation: Operation
    kind: KindName
    namespace: str = ""
    name: str = ""
    """Empty if the API server generates it."""
    subresource: str = ""
    object: ObjectT = field(default_factory=cast("Any", dict))
    old_object: ObjectT = field(default_factory=cast("Any", dict))
    options: Object = field(default_factory=dict)
    """Options of the request, such as CreateOptions."""
    user: User = field(default_factory=User)
    dry_run: bool = False
    warnings: list[str] = field(default_factory=list)

    def warn(self, text: str) -> None:
        """Show the user a warning; keep it below 120 characters."""
        self.warnings.append(text)


class _TypedAdmission(Admission[Any]):
    """Decodes the old object when it is read: a bad one must not keep its author from mending it."""

    _decode_old: Callable[[], Any]

    @property
    @override
    def old_object(self) -> Any:
        return self._decode_old()

    @old_object.setter
    @override
    def old_object(self, found: Object) -> None:
        self._old = found

    def read_as(self, kind: TypedKind[Any]) -> None:
        """Make an instance of the object. Raises DecodeFailed, and Denied for an object that is nested too deeply."""
        # The instance may share parts of the object, and change them.
        self.raw = _encode(self.object)
        old, source = self._old, repr(self.cluster)
        self._decode_old = lambda: kind.decode(old, source=source) if old else None
        self.object = kind.decode(self.object, source=source) if self.object else None


@dataclass(frozen=True, slots=True)
class Review:
    """An admission, and the uid of its answer."""

    uid: str
    admission: Admission[Any]
    typed: TypedKind[Any] | None = None

    def decode(self) -> None:
        """Make an instance of the object, if the webhook is for a class. Raises DecodeFailed."""
        if isinstance(self.admission, _TypedAdmission) and self.typed is not None:
            self.admission.read_as(self.typed)

    def snapshot(self) -> bytes:
        """Return the present object as JSON.

        Raises Denied if the object cannot be encoded, so that no object passes without its webhook.
        """
        return _encode(self._encoded())

    def allow(self) -> Object:
        """Return the answer that allows the request."""
        return self._answer({"uid": self.uid, "allowed": True})

    def change(self, *, since: bytes) -> Object:
        """Return the answer that allows the request with the changes of the object since a snapshot."""
        answer: Object = {"uid": self.uid, "allowed": True}
        before, after = orjson.loads(since), self._encoded()
        if isinstance(self.admission, _TypedAdmission):
            raw = orjson.loads(self.admission.raw)
            before, after = raw, carried(raw, before, after)
        patch = difference(before, after) if before else []
        if patch:
            answer |= {"patchType": "JSONPatch", "patch": base64.b64encode(orjson.dumps(patch)).decode()}
        return self._answer(answer)

    def deny(self, denied: Denied) -> Object:
        """Return the answer that refuses the request."""
        status = {"code": denied.code, "message": str(denied)}
        return self._answer({"uid": self.uid, "allowed": False, "status": status})

    def _encoded(self) -> Object:
        found = self.admission.object
        if self.typed is None:
            return cast("Object", found)
        return self.typed.encode(found) if found is not None else {}

    def _answer(self, answer: Object) -> Object:
        if self.admission.warnings:
            answer["warnings"] = self.admission.warnings
        return {"apiVersion": _API_VERSION, "kind": _KIND, "response": answer}


def read_review(body: bytes, *, kind: KindName, cluster: Cluster, typed: TypedKind[Any] | None = None) -> Review:
    """Decode an AdmissionReview. Raises ProviderError for any other body, and for a review of another kind.

    With a class, the objects are decoded by `Review.decode`.
    """
    request = parse_request(body, api_version=_API_VERSION, kind=_KIND)
    uid, operation = _text(request, "uid"), _text(request, "operation")
    if not uid or operation not in _OPERATIONS:
        raise ProviderError("the request needs a uid and an operation: CREATE, UPDATE, DELETE or CONNECT")
    fields = _object(request, "kind")
    group, version = _text(fields, "group"), _text(fields, "version")
    reviewed = KindName(f"{group}/{version}" if group else version, _text(fields, "kind"))
    if reviewed != kind:
        raise ProviderError(f"the request is about {reviewed}, and this webhook about {kind}")
    admission = (_TypedAdmission if typed is not None else Admission)(
        cluster=cluster,
        operation=cast("Operation", operation),
        kind=kind,
        namespace=_text(request, "namespace"),
        name=_text(request, "name"),
        subresource=_text(request, "subResource"),
        object=_object(request, "object"),
        old_object=_object(request, "oldObject"),
        options=_object(request, "options"),
        user=_user(_object(request, "userInfo")),
        dry_run=request.get("dryRun") is True,
    )
    return Review(uid, admission, typed)


def _encode(found: object) -> bytes:
    try:
        return orjson.dumps(found)
    except TypeError:
        raise Denied("the object is nested deeper than 254 levels: make it flatter", code=422) from None


def _user(info: Mapping[str, Any]) -> User:
    extra = {key: _texts(values) for key, values in _object(info, "extra").items()}
    return User(_text(info, "username"), _text(info, "uid"), _texts(info.get("groups")), extra)


def _text(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key)
    if value is not None and not isinstance(value, str):
        raise ProviderError(f"{key} of the request is no text")
    return value or ""


def _texts(values: object) -> tuple[str, ...]:
    return tuple(value for value in values if isinstance(value, str)) if isinstance(values, list) else ()


def _object(fields: Mapping[str, Any], key: str) -> Object:
    value = fields.get(key)
    if value is not None and not isinstance(value, dict):
        raise ProviderError(f"{key} of the request is no object")
    return value or {}
