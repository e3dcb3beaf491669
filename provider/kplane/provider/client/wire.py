"""Bounded JSON bodies, and exceptions for Status objects and transport failures."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import orjson

from kplane.provider.client.limits import Intake
from kplane.provider.errors import ApiError, ProviderError, Unreachable, api_error

if TYPE_CHECKING:
    import aiohttp

__all__ = [
    "NOT_YET_VALID_CODE",
    "decode",
    "drop_body",
    "error_of",
    "read_body",
    "read_object",
    "refusal_of",
    "status_error",
    "translated",
]

_SHOWN: Final = 300
_ISSUER_CODES: Final = frozenset({2, 7, 18, 19, 20, 21})
NOT_YET_VALID_CODE: Final = 9
_EXPIRED_CODE: Final = 10
_HOST_CODES: Final = frozenset({62, 64})


def decode(body: bytes, *, server: str) -> Any:
    """Parse JSON. Raises Unreachable (kind protocol) if it is none."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        shown = body[:60].decode("utf-8", errors="replace")
        raise Unreachable(
            f"{server} answered with something that is no JSON, so it is no Kubernetes API server: {shown!r}",
            kind="protocol",
        ) from error


def read_object(value: object, *, server: str, api_version: str, kind: str) -> dict[str, Any]:
    """Check that a value is a Kubernetes object, fill in apiVersion and kind, and drop managedFields."""
    metadata = value.get("metadata") if isinstance(value, dict) else None
    if not isinstance(metadata, dict) or not all(
        isinstance(metadata.get(key, ""), str) for key in ("name", "namespace", "uid", "resourceVersion")
    ):
        raise Unreachable(f"{server} answered with something that is no {kind} object", kind="protocol")
    obj = cast("dict[str, Any]", value)
    metadata.pop("managedFields", None)
    obj.setdefault("apiVersion", api_version)
    obj.setdefault("kind", kind)
    return obj


async def read_body(response: aiohttp.ClientResponse, *, intake: Intake) -> bytes:
    """Read a whole body. Raises AnswerTooLarge if it exceeds `intake`."""
    if (response.content_length or 0) > intake.answer_bytes:
        raise intake.too_large(intake.answer_bytes)
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > intake.answer_bytes:
            raise intake.too_large(intake.answer_bytes)
        intake.read(len(chunk))
        chunks.append(chunk)
    return b"".join(chunks)


async def drop_body(response: aiohttp.ClientResponse, *, size_bytes: int) -> None:
    """Read and drop a body, so that its connection can be reused. A body over `size_bytes` closes the connection."""
    async for chunk in response.content.iter_any():
        size_bytes -= len(chunk)
        if size_bytes < 0:
            return


async def error_of(response: aiohttp.ClientResponse, *, intake: Intake, asked: str) -> ApiError | Unreachable:
    """Return the exception for an unsuccessful answer."""
    body = b"" if response.status < 400 else await read_body(response, intake=intake)
    intake.parse(body)
    return refusal_of(response, body, server=intake.server, asked=asked)


def refusal_of(response: aiohttp.ClientResponse, body: bytes, *, server: str, asked: str) -> ApiError | Unreachable:
    """Return the exception for the head and the body of an unsuccessful answer."""
    status = response.status
    if status < 400:
        where = response.headers.get("Location", "")
        return Unreachable(
            f"{asked}: {server} answered {status} (redirect to {where!r}), not followed", kind="protocol"
        )
    with contextlib.suppress(orjson.JSONDecodeError):
        parsed = orjson.loads(body)
        if isinstance(parsed, dict) and parsed.get("kind") == "Status":
            return status_error(parsed, asked=asked, status=status, retry_after_seconds=_retry_after(response))
    shown = body[:_SHOWN].decode("utf-8", errors="replace").strip()
    return api_error(
        status,
        response.reason or "",
        f"{asked}: {server} answered {status} {shown!r}",
        retry_after_seconds=_retry_after(response),
    )


def status_error(
    status_object: Mapping[str, Any], *, asked: str, status: int | None = None, retry_after_seconds: float | None = None
) -> ApiError:
    """Return the exception for a Kubernetes Status object."""
    code = status_object.get("code")
    details = status_object.get("details")
    reason = status_object.get("reason")
    return api_error(
        status if status is not None else code if isinstance(code, int) else 500,
        reason if isinstance(reason, str) else "",
        f"{asked}: {status_object.get('message') or reason or 'refused'}",
        details if isinstance(details, Mapping) else None,
        retry_after_seconds=retry_after_seconds,
    )


def _retry_after(response: aiohttp.ClientResponse) -> float | None:
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isascii() and value.isdigit() and len(value) < 6 else None


@contextlib.contextmanager
def translated(
    *, server: str, asked: str, has_ca: bool = True, is_write_sent: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Raise every transport failure inside of this context as Unreachable.

    `has_ca` tells whether the kubeconfig has a CA; otherwise the system's CAs are trusted. `is_write_sent` is called
    after a failure, see `Unreachable`.
    """
    import aiohttp

    try:
        yield
    except ProviderError:
        raise
    except aiohttp.ClientConnectorCertificateError as error:
        raise _certificate_refused(error.certificate_error, server=server, asked=asked, has_ca=has_ca) from error
    except aiohttp.ConnectionTimeoutError as error:
        raise Unreachable(f"{asked}: no connection to {server} in time", kind="timeout") from error
    except (aiohttp.ClientError, OSError, ValueError, EOFError) as error:
        # OSError covers TimeoutError and ssl.SSLError as well.
        raise _failure(error, server=server, asked=asked, has_ca=has_ca, write_sent=is_write_sent()) from error


def _failure(error: Exception, *, server: str, asked: str, has_ca: bool, write_sent: bool) -> Unreachable:
    import aiohttp

    cause = next((link for link in reversed([*_chain(error)]) if isinstance(link, ssl.SSLError)), None)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return _certificate_refused(cause, server=server, asked=asked, has_ca=has_ca)
    if cause is not None:
        return Unreachable(f"{asked}: TLS with {server} failed: {getattr(cause, 'reason', None) or cause}", kind="tls")
    if isinstance(error, TimeoutError):
        return Unreachable(f"{asked}: no answer of {server} in time", kind="timeout", write_sent=write_sent)
    if isinstance(error, (aiohttp.ClientResponseError, aiohttp.InvalidURL, ValueError)):
        return Unreachable(f"{asked}: {server} does not speak HTTP as expected: {error}", kind="protocol")
    if isinstance(error, aiohttp.ClientConnectorError):
        # The message of aiohttp contains the address of a TLS context, and so differs each time.
        error = error.os_error
    what = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return Unreachable(f"{asked}: {server} cannot be reached: {what}", kind="connect")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        inner = getattr(error, "os_error", None)
        error = inner if isinstance(inner, BaseException) and inner is not error else error.__cause__


def _certificate_refused(error: Exception, *, server: str, asked: str, has_ca: bool) -> Unreachable:
    code = getattr(error, "verify_code", 0)
    if code in _ISSUER_CODES and has_ca:
        why = "certificate not signed by the CA of the kubeconfig"
    elif code in _ISSUER_CODES:
        why = "certificate not signed by a CA of this system, and the kubeconfig has no CA"
    elif code == NOT_YET_VALID_CODE:
        why = "certificate is not yet valid: compare this machine's clock with that of the machine that issued it"
    elif code == _EXPIRED_CODE:
        why = "certificate has expired"
    elif code in _HOST_CODES:
        why = "certificate is not valid for this host name or address"
    else:
        why = f"certificate refused: {getattr(error, 'verify_message', '') or error}"
    return Unreachable(f"{asked}: {server}: {why}", kind="tls", reason="CertificateInvalid")
