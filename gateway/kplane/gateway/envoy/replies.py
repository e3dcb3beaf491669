"""What the gateway answers itself: Status objects, as an API server's."""

from __future__ import annotations

import json
from typing import Any, Final

from kplane.gateway.envoy.messages import Message

__all__ = [
    "AUTHORIZER_FAILED",
    "DECLINED",
    "RETRY_SECONDS",
    "UNAVAILABLE",
    "UNREADABLE",
    "direct_reply",
    "local_replies",
    "status",
]

_REASONS: Final = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    408: "Timeout",
    413: "RequestEntityTooLarge",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
"""Of metav1.StatusReason, by the code of the answer."""

_JSON: Final = "application/json"
RETRY_SECONDS: Final = "1"

UNAVAILABLE: Final = 503

_NO_ROUTE: Final = ("NR",)
_UNAVAILABLE: Final = ("NC", "UH", "UF", "UC", "UR", "UO", "LR", "URX", "UPE")
_MALFORMED: Final = ("DPE", "IH")
_NOT_VERIFIED: Final = "UAEX"

UNREADABLE: Final = (
    "the gateway does not take this request: it is malformed, or its path has dot segments, escaped slashes or"
    " backslashes"
)

AUTHORIZER_FAILED: Final = 500
"""The code that Envoy gives a request when it gets no answer from the authorizer, whose own answers are never this."""


DECLINED: Final = 425
"""The code by which the authorizer says 503: one of 5xx would count as its failure. The client gets 503."""


def status(code: int, message: str) -> dict[str, Any]:
    """Return a Status object of a failure."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": _REASONS[code],
        "code": code,
    }


def direct_reply(code: int, message: str) -> Message:
    """Return the part of a route that answers by itself."""
    return {
        "direct_response": {"status": code, "body": {"inline_string": json.dumps(status(code, message))}},
        "response_headers_to_add": [_header("content-type", _JSON)],
    }


def local_replies() -> Message:
    """Return how Envoy's own answers become Status objects. Those of the authorizer are such already."""
    failed = {"and_filter": {"filters": [_flags(_NOT_VERIFIED), _code(AUTHORIZER_FAILED)]}}
    declined = {"and_filter": {"filters": [_flags(_NOT_VERIFIED), _code(DECLINED)]}}
    return {
        "mappers": [
            {"filter": declined, "status_code": UNAVAILABLE},
            _mapper(_flags(*_NO_ROUTE), 404, "the gateway serves no control plane at this path"),
            _mapper(_flags(*_UNAVAILABLE), 503, "the API server of this control plane does not answer; retry"),
            _mapper(failed, 503, "the gateway cannot decide about this request now; retry"),
            _mapper(_either(_flags(*_MALFORMED), _code(400)), 400, UNREADABLE),
            _mapper(_code(408), 408, "the request did not arrive in time"),
        ]
    }


def _mapper(which: Message, code: int, message: str) -> Message:
    body = {"text_format_source": {"inline_string": json.dumps(status(code, message))}, "content_type": _JSON}
    headers = [_retry_after()] if code == UNAVAILABLE else []
    return {"filter": which, "status_code": code, "body_format_override": body, "headers_to_add": headers}


def _flags(*flags: str) -> Message:
    return {"response_flag_filter": {"flags": list(flags)}}


def _code(code: int) -> Message:
    value = {"default_value": code, "runtime_key": f"kplane.reply.{code}"}
    return {"status_code_filter": {"comparison": {"op": "EQ", "value": value}}}


def _either(*filters: Message) -> Message:
    return {"or_filter": {"filters": list(filters)}}


def _retry_after() -> Message:
    return _header("retry-after", RETRY_SECONDS)


def _header(key: str, value: str) -> Message:
    return {"header": {"key": key, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
