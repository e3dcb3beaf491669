"""Responses of the gateway itself: Status objects, as API servers send them."""

from __future__ import annotations

import json
from typing import Any, Final

from kplane.gateway.envoy.credentials import of_unknown
from kplane.gateway.envoy.messages import Message
from kplane.gateway.envoy.metadata import LIMITED_BY, LONGEST_BODY, shown
from kplane.gateway.envoy.names import CONNECTION_BUFFER, LIMITED_BY_HEADER
from kplane.gateway.envoy.requests import DOUBLE_SLASH, PROXIED, READS

__all__ = [
    "AUTHORIZER_FAILED",
    "DECLINED",
    "FULL",
    "RETRY_SECONDS",
    "TOO_LONG",
    "UNAVAILABLE",
    "UNKNOWN_PATH",
    "UNREADABLE",
    "body_of",
    "direct_reply",
    "local_replies",
    "refusing",
    "status",
    "unauthorized",
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
"""Values of metav1.StatusReason by status code. Other codes have no reason."""

_JSON: Final = "application/json"
RETRY_SECONDS: Final = "1"

UNAVAILABLE: Final = 503
LOST: Final = 504
"""Status code of a request that an API server received and may have executed."""

_NO_ROUTE: Final = ("NR",)
_LOST: Final = ("UC", "UR", "LR", "UPE")
"""Flags of Envoy if the connection ended or broke after Envoy had sent the request."""
_UNAVAILABLE: Final = ("NC", "UH", "UF", "URX", "OM")
"""Flags of Envoy if no API server received the request."""
_OVERFLOW: Final = "UO"
_TOO_MANY: Final = 429
_MALFORMED: Final = ("DPE", "IH")
_NOT_VERIFIED: Final = "UAEX"

UNREADABLE: Final = (
    "the gateway does not take this request: it is malformed, or its path has dot segments, escaped slashes or"
    " backslashes"
)
_DOUBLED: Final = (
    "the gateway does not take this request: its path has // at /clusters/NAME/control-plane; remove the second slash"
    " from the server URL of your client"
)
UNKNOWN_PATH: Final = (
    "the gateway serves no control plane at this path; paths begin with /clusters/NAME/control-plane; your client may"
    " drop the path of the server URL"
)

AUTHORIZER_FAILED: Final = 500
"""Status code of a request without a response from the authorizer, which never uses this code itself."""


DECLINED: Final = 425
"""Status code of the authorizer that stands for 503. Envoy would take a 5xx code for a failure of the authorizer."""

FULL: Final = 507
"""Status code of routes that refuse growth beyond the storage quota. The client gets 403, as from a ResourceQuota."""
TOO_LONG: Final = 413

_LIMITED_BY: Final = f"{shown(LIMITED_BY)}%REQ({LIMITED_BY_HEADER})%"
"""Origin of a limit, from the route or from the authorizer."""


_HAS_NO_LENGTH: Final = {"header_filter": {"header": {"name": "content-length", "present_match": False}}}
_DELETES: Final = {"header_filter": {"header": {"name": ":method", "string_match": {"exact": "DELETE"}}}}
"""The gateway itself reads the body of a deletion without Content-Length; see `bodies.py`."""


def refusing(code: int) -> Message:
    """Return the part of a route that refuses all requests. `local_replies` has the message for the code."""
    return {"direct_response": {"status": code}}


def status(code: int, message: str) -> dict[str, Any]:
    """Return a Status object for a failure."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": _REASONS.get(code, ""),
        "code": code,
    }


def body_of(code: int, message: str) -> str:
    """Return the body of a response, formatted as by API servers."""
    return json.dumps(status(code, message), separators=(",", ":")) + "\n"


def direct_reply(code: int, message: str) -> Message:
    """Return the part of a route that responds by itself."""
    return {
        "direct_response": {"status": code, "body": {"inline_string": body_of(code, message)}},
        "response_headers_to_add": [_header("content-type", _JSON)],
    }


def unauthorized() -> Message:
    """Return the part of a route that responds as an API server does to an unknown client."""
    reply = direct_reply(401, "Unauthorized")
    return {**reply, "response_headers_to_add": [*reply["response_headers_to_add"], *_OF_API_SERVERS]}


def local_replies() -> Message:
    """Return the configuration that turns Envoy's own responses into Status objects.

    Responses of the authorizer are Status objects already.
    """
    failed = _every(_flags(_NOT_VERIFIED), _code(AUTHORIZER_FAILED))
    declined = _every(_flags(_NOT_VERIFIED), _code(DECLINED))
    return {
        "mappers": [
            {"filter": declined, "status_code": UNAVAILABLE},
            {
                "filter": _every(_flags(_NOT_VERIFIED), _code(_TOO_MANY)),
                "status_code": _TOO_MANY,
            },
            {
                "filter": {"and_filter": {"filters": [_flags(_NOT_VERIFIED), _code(401)]}},
                "headers_to_add": list(_OF_API_SERVERS),
            },
            *_limits(),
            _mapper(_flags(*_NO_ROUTE), 404, UNKNOWN_PATH),
            # client-go repeats each request whose response has Retry-After, even if the request was executed already.
            # Without a gateway, it repeats a GET after a lost connection, so reads deviate from 504 here.
            _mapper(_every(_flags(*_LOST), _reads()), UNAVAILABLE, "the API server of this control plane ended; retry"),
            _mapper(_flags(*_LOST), LOST, "the API server of this control plane ended; it may have made the change"),
            _mapper(_flags(*_UNAVAILABLE), 503, "the API server of this control plane does not answer; retry"),
            _mapper(failed, 503, "the gateway cannot decide about this request now; retry"),
            # Keep all other responses of the authorizer, which are complete.
            {"filter": _flags(_NOT_VERIFIED)},
            _mapper(_every(_code(400), _header_is(":path", DOUBLE_SLASH)), 400, _DOUBLED),
            _mapper(_either(_flags(*_MALFORMED), _code(400)), 400, UNREADABLE),
            _mapper(_code(403), 403, "the gateway passes on upgrades to websocket and SPDY/3.1 alone"),
            _mapper(_code(408), 408, "the request did not arrive in time"),
            _mapper(_code(426), 426, "the gateway takes HTTP/2 or HTTP/1.1"),
            _mapper(_code(431), 431, "the headers of this request are too large for the gateway"),
            _mapper(_code(LOST), LOST, "the API server of this control plane did not answer in time"),
        ]
    }


def _limits() -> list[Message]:
    more = "retry after the time in Retry-After, or ask for a higher limit"
    in_flight = (
        f"{_LIMITED_BY} allows no more requests of this control plane in flight (limits.requestsInFlight); {more}"
    )
    rate = f"{_LIMITED_BY} allows no more requests of this control plane a second (limits.requestsPerSecond); {more}"
    longest = f"{shown(LONGEST_BODY)} bytes that {_LIMITED_BY} allows (limits.requestBytes)"
    long = f"the body of this request is longer than the {longest}; send less at a time, or ask for a higher limit"
    no_length = f"this request has no Content-Length to hold against the {longest}; send it with a Content-Length"
    deletion = (
        f"the body of this deletion is longer than the {longest}, or than the {CONNECTION_BUFFER} bytes that the"
        " gateway reads of a body without a Content-Length; send less, or send it with a Content-Length"
    )
    full = (
        f"this control plane has reached the storage quota of {_LIMITED_BY} (virtual.storage.quota), which allows"
        " deletions, and changes that keep what is there; delete objects, or ask for a higher quota"
    )
    unknown = (
        "too many requests with credentials that the gateway cannot verify come from this client address; retry after"
        " the time in Retry-After"
    )
    of_stranger = _every(of_unknown(), _code(TOO_LONG), _HAS_NO_LENGTH, _DELETES)
    return [
        # Not 413: a client without a verified credential must not learn which names exist.
        {**_mapper(of_stranger, 401, "Unauthorized"), "headers_to_add": list(_OF_API_SERVERS)},
        _mapper(_every(of_unknown(), _either(_flags(_OVERFLOW), _code(_TOO_MANY))), _TOO_MANY, unknown),
        _mapper(_flags(_OVERFLOW), _TOO_MANY, in_flight),
        _mapper(_code(_TOO_MANY), _TOO_MANY, rate),
        _mapper(_every(_code(TOO_LONG), _HAS_NO_LENGTH, _DELETES), TOO_LONG, deletion),
        _mapper(_every(_code(TOO_LONG), _HAS_NO_LENGTH), TOO_LONG, no_length),
        _mapper(_code(TOO_LONG), TOO_LONG, long),
        _mapper(_code(FULL), 403, full),
    ]


def _mapper(which: Message, code: int, message: str) -> Message:
    body = {
        "text_format_source": {"inline_string": json.dumps(status(code, message))},
        "omit_empty_values": True,
        "content_type": _JSON,
    }
    headers = [_retry_after()] if code in {_TOO_MANY, UNAVAILABLE} else []
    return {"filter": which, "status_code": code, "body_format_override": body, "headers_to_add": headers}


def _flags(*flags: str) -> Message:
    return {"response_flag_filter": {"flags": list(flags)}}


def _code(code: int) -> Message:
    value = {"default_value": code, "runtime_key": f"kplane.reply.{code}"}
    return {"status_code_filter": {"comparison": {"op": "EQ", "value": value}}}


def _reads() -> Message:
    """Return a filter for requests that a client may repeat, because they change no data.

    Excludes requests that programs of the tenant handle, such as `pods/exec`: such a program may make changes.
    """
    return _every(_header_is(":method", READS), _header_is(":path", PROXIED, invert=True))


def _header_is(name: str, regex: str, *, invert: bool = False) -> Message:
    match = {"name": name, "string_match": {"safe_regex": {"regex": regex}}, "invert_match": invert}
    return {"header_filter": {"header": match}}


def _every(*filters: Message) -> Message:
    return {"and_filter": {"filters": list(filters)}}


def _either(*filters: Message) -> Message:
    return {"or_filter": {"filters": list(filters)}}


def _retry_after() -> Message:
    return _header("retry-after", RETRY_SECONDS)


def _header(key: str, value: str) -> Message:
    return {"header": {"key": key, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}


_OF_API_SERVERS: Final = (
    _header("cache-control", "no-cache, private"),
    # An API server names each request in this header, with the client's own name if there is one.
    _header("audit-id", "%REQ(AUDIT-ID?X-REQUEST-ID)%"),
)
"""Headers of an API server's response to an unknown client, for equal responses of the gateway."""
