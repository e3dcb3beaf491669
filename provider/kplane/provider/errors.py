"""Exceptions of this package, with the root `ProviderError`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

__all__ = [
    "AlreadyExists",
    "AnswerTooLarge",
    "ApiError",
    "ClusterNotFound",
    "ClusterNotOwned",
    "ClusterNotReady",
    "Conflict",
    "DecodeFailed",
    "Expired",
    "FieldConflict",
    "Forbidden",
    "Invalid",
    "KindMisspelled",
    "KubeconfigError",
    "LeaseLost",
    "ListenFailed",
    "NotFound",
    "NotServed",
    "ObjectTaken",
    "ProviderError",
    "ServerError",
    "TooManyRequests",
    "Unauthorized",
    "Unreachable",
    "UnreachableKind",
    "WaitTimedOut",
    "api_error",
]

UnreachableKind = Literal["connect", "tls", "timeout", "protocol"]

_MAX_MESSAGE: Final = 2000
_MAX_REASON: Final = 128
_MANAGER: Final = re.compile(r'"((?:[^"\\]|\\.)*)"')
"""Pattern of the manager in the cause of a conflict, such as `conflict with "kubectl" using v1`."""


class ProviderError(Exception):
    """Root of all exceptions that this package raises on purpose."""


class ClusterNotFound(ProviderError, LookupError):
    """The fleet has no cluster of this name. `cluster` is the name, or None if the raising code gave no name."""

    def __init__(self, message: str, *, cluster: str | None = None) -> None:
        super().__init__(message)
        self.cluster: Final = cluster


class ClusterNotOwned(ProviderError):
    """This process must not work on the cluster now."""


class ClusterNotReady(ProviderError):
    """The fleet is engaging or replacing the cluster; retry soon."""


class NotServed(ProviderError, LookupError):
    """The cluster does not serve the kind: its CustomResourceDefinition is missing, or not established yet.

    The error is no `NotFound`, because callers must not mistake a missing kind for a deleted object.
    """


class KindMisspelled(NotServed):
    """The cluster serves the kind under another spelling. The given name is a plural, or in lower case."""


class DecodeFailed(ProviderError, ValueError):
    """A `decoder` failed to decode an object."""


class KubeconfigError(ProviderError, ValueError):
    """A kubeconfig, or its credentials, cannot be used."""


class LeaseLost(ProviderError):
    """This process no longer holds a Lease. Work that depends on the Lease must end."""


class ListenFailed(ProviderError, OSError):
    """An address cannot be listened on: another process uses it, or the machine does not have it."""


class ObjectTaken(ProviderError):
    """An object does not belong to the owner: another owner controls it, or it existed before and has no owner.

    `reason` is a valid reason of a condition.
    """

    reason: Final = "ObjectTaken"


class WaitTimedOut(ProviderError, TimeoutError):
    """An object did not reach the desired state in time. The message shows its last state."""


class Unreachable(ProviderError):
    """An API server gave no valid answer. `kind` is the kind of failure: connection, TLS, time-out, or protocol.

    `reason` is a valid reason of a condition: `CertificateInvalid` if the server's certificate was refused, else
    `EndpointUnreachable`. `write_sent` tells whether the request was a write, and its body was sent.
    """

    def __init__(
        self, message: str, *, kind: UnreachableKind, reason: str = "EndpointUnreachable", write_sent: bool = False
    ) -> None:
        super().__init__(_plain(message, at_most=_MAX_MESSAGE))
        self.kind: Final = kind
        self.reason: Final = reason
        self.write_sent: Final = write_sent

    @property
    def timed_out(self) -> bool:
        """Whether a deadline passed. The server may have executed the request."""
        return self.kind == "timeout"


class AnswerTooLarge(Unreachable):
    """An answer, or the pages of a list, exceed the `AnswerLimits` of the client."""

    def __init__(self, message: str) -> None:
        super().__init__(message, kind="protocol", reason="AnswerTooLarge")


class ApiError(ProviderError):
    """The API server refused a request. `status` is the HTTP status, `reason` the reason in the Status object.

    Long messages are cut, and control characters are replaced, because an API server may be hostile.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        details: Mapping[str, Any] | None = None,
        *,
        retry_after_seconds: float | None = None,
    ) -> None:
        self.message: Final = _plain(message, at_most=_MAX_MESSAGE)
        super().__init__(self.message)
        self.status: Final = status
        self.reason: Final = _plain(reason, at_most=_MAX_REASON)
        self.details: Final[Mapping[str, Any]] = details if details is not None else {}
        self.retry_after_seconds: Final = retry_after_seconds


class NotFound(ApiError):
    """404: the object, or its kind, does not exist."""


class Conflict(ApiError):
    """409: the object has changed, another manager owns a field, or a precondition failed."""


class AlreadyExists(Conflict):
    """409 with reason AlreadyExists: the name is taken."""


class FieldConflict(Conflict):
    """409 of a server-side apply: other field managers own fields of the configuration.

    `owners` maps the names of managers to their fields, such as `.data.key`.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        details: Mapping[str, Any] | None = None,
        *,
        retry_after_seconds: float | None = None,
    ) -> None:
        advice = "; leave these fields out, or take them with force=True"
        message = f"{_plain(message, at_most=_MAX_MESSAGE - len(advice))}{advice}"
        super().__init__(status, reason, message, details, retry_after_seconds=retry_after_seconds)
        owners: dict[str, tuple[str, ...]] = {}
        for manager, field in _field_conflicts(details):
            owners[manager] = (*owners.get(manager, ()), field)
        self.owners: Final[Mapping[str, tuple[str, ...]]] = owners


class Expired(ApiError):
    """410: the resourceVersion or continue token is too old; list again."""


class Unauthorized(ApiError):
    """401: the credentials are not accepted."""


class Forbidden(ApiError):
    """403: the identity has no permission for the request."""


class Invalid(ApiError):
    """422: the object breaks a rule of its schema or of an admission plugin."""


class TooManyRequests(ApiError):
    """429: too many requests; retry after `retry_after_seconds`."""


class ServerError(ApiError):
    """5xx: the server failed."""


_BY_STATUS: Final[Mapping[int, type[ApiError]]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Expired,
    422: Invalid,
    429: TooManyRequests,
}


def api_error(
    status: int,
    reason: str,
    message: str,
    details: Mapping[str, Any] | None = None,
    *,
    retry_after_seconds: float | None = None,
) -> ApiError:
    """Return the `ApiError` for an HTTP status."""
    kind = ServerError if status >= 500 else _BY_STATUS.get(status, ApiError)
    if kind is Conflict and reason == "AlreadyExists":
        kind = AlreadyExists
    if kind is Conflict and any(_field_conflicts(details)):
        kind = FieldConflict
    return kind(status, reason, message, details, retry_after_seconds=retry_after_seconds)


def _field_conflicts(details: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    """Yield manager and field of each conflict that an API server found when a configuration was applied."""
    causes = details.get("causes") if details is not None else None
    for cause in causes if isinstance(causes, list) else ():
        if isinstance(cause, Mapping) and cause.get("reason") == "FieldManagerConflict":
            message, field = str(cause.get("message", "")), str(cause.get("field", ""))
            match = _MANAGER.search(message)
            # Go quotes the name. For printable names, its quoting is the same as JSON's.
            name = match[1].replace(r"\"", '"').replace(r"\\", "\\") if match is not None else message
            yield _plain(name, at_most=_MAX_REASON), _plain(field, at_most=_MAX_MESSAGE)


def _plain(text: str, *, at_most: int) -> str:
    text = text if len(text) <= at_most else f"{text[: at_most - 1]}…"
    return text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)
