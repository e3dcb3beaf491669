"""The exceptions of this package, one family."""

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
"""The manager in the cause of a conflict, such as `conflict with "kubectl" using v1`."""


class ProviderError(Exception):
    """Root of all exceptions that this package raises on purpose."""


class ClusterNotFound(ProviderError, LookupError):
    """No cluster of that name is known. `cluster` is the name; None if the code that raised the error gave none."""

    def __init__(self, message: str, *, cluster: str | None = None) -> None:
        super().__init__(message)
        self.cluster: Final = cluster


class ClusterNotOwned(ProviderError):
    """The cluster is known, but this process must not work on it now."""


class ClusterNotReady(ProviderError):
    """The cluster is known, but is being engaged or replaced; retry soon."""


class NotServed(ProviderError, LookupError):
    """The cluster answers, and serves no such kind: its CustomResourceDefinition is missing, or not established yet.

    It is no `NotFound`: a kind that is missing must not be taken for an object that is gone.
    """


class KindMisspelled(NotServed):
    """The cluster serves the kind in another spelling: a plural, or a name in lower case, was given."""


class DecodeFailed(ProviderError, ValueError):
    """A `decoder` could not read an object."""


class KubeconfigError(ProviderError, ValueError):
    """A kubeconfig, or its credentials, cannot be used."""


class LeaseLost(ProviderError):
    """This process no longer holds a Lease: work under it must end."""


class ListenFailed(ProviderError, OSError):
    """The address to listen on cannot be had: another process has it, or the machine does not."""


class ObjectTaken(ProviderError):
    """An object is not the owner's: another owner controls it, or it was there before and has no owner.

    `reason` suits a condition.
    """

    reason: Final = "ObjectTaken"


class WaitTimedOut(ProviderError, TimeoutError):
    """An object did not become as desired in time; the message shows its last state."""


class Unreachable(ProviderError):
    """An API server gave no valid answer: connection, TLS, time-out, or protocol, as `kind` says.

    `reason` suits a condition: `CertificateInvalid` if the server's certificate was refused, else
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
        """Whether a deadline passed, so that the server may still have done what was asked."""
        return self.kind == "timeout"


class AnswerTooLarge(Unreachable):
    """An answer, or the pages of a list, exceed the `AnswerLimits` of the client."""

    def __init__(self, message: str) -> None:
        super().__init__(message, kind="protocol", reason="AnswerTooLarge")


class ApiError(ProviderError):
    """The API server refused a request. `status` is the HTTP status, `reason` that of Kubernetes' Status object.

    The message is cut if it is long, and has no control characters, because an API server may be hostile.
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

    `owners` has the fields, such as `.data.key`, by the names of their managers.
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
    """403: the identity must not do this."""


class Invalid(ApiError):
    """422: the object breaks a rule of its schema or of an admission plugin."""


class TooManyRequests(ApiError):
    """429: too many requests; `retry_after_seconds` says when to retry."""


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
            found = _MANAGER.search(message)
            # It is quoted as Go does, which for printable text is as JSON does.
            name = found[1].replace(r"\"", '"').replace(r"\\", "\\") if found is not None else message
            yield _plain(name, at_most=_MAX_REASON), _plain(field, at_most=_MAX_MESSAGE)


def _plain(text: str, *, at_most: int) -> str:
    text = text if len(text) <= at_most else f"{text[: at_most - 1]}…"
    return text if text.isprintable() else "".join(each if each.isprintable() else " " for each in text)
