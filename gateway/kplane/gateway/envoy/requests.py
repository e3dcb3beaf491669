"""Effects of requests on the data of a control plane, by method, path and headers alone.

The patterns are valid for both RE2 and Python, and match a whole path with its query. A path in an unusual form, for
example with percent-encoding, counts as a path of a mutating and growing request.
"""

from __future__ import annotations

import re
from typing import Final

from kplane.gateway.envoy.messages import Message, typed
from kplane.gateway.envoy.names import CHUNKED_HEADER

__all__ = [
    "CARRIES",
    "CHANGES",
    "DOUBLE_SLASH",
    "ENDS_SOON",
    "GROWS",
    "PROXIED",
    "READS",
    "STREAMS",
    "changes",
    "every",
    "header_input",
    "header_is",
    "negated",
]

READS: Final = "GET|HEAD|OPTIONS"
"""Methods of requests that change no data."""
DOUBLE_SLASH: Final = "/(?:/+clusters/|clusters/(?:/|[^/?]+/(?:/|control-plane//))).*"
"""Paths with two slashes before, in or after `/clusters/NAME/control-plane`.

Such a client joins a path to a URL with a slash at its end.
"""
_NAME: Final = "[^/?]+"
_BEGINNING: Final = "/clusters/[-a-z0-9]+/control-plane"
_END: Final = r"(?:[?].*)?"
_IN_CORE_NAMESPACE: Final = f"api/v1/namespaces/{_NAME}"

_UNCHANGING: Final = (
    f"{_BEGINNING}/(?:"
    # Streams to pods and nodes last for hours, and do not change the data of the API server.
    f"{_IN_CORE_NAMESPACE}/(?:pods|services)/{_NAME}/(?:exec|attach|portforward|proxy)(?:/[^?]*)?"
    f"|api/v1/nodes/{_NAME}/proxy(?:/[^?]*)?"
    # API servers respond with reviews and tokens, and do not store them.
    f"|{_IN_CORE_NAMESPACE}/serviceaccounts/{_NAME}/token"
    f"|apis/authentication[.]k8s[.]io/{_NAME}/(?:tokenreviews|selfsubjectreviews)"
    f"|apis/authorization[.]k8s[.]io/{_NAME}/(?:namespaces/{_NAME}/localsubjectaccessreviews|subjectaccessreviews"
    "|selfsubjectaccessreviews|selfsubjectrulesreviews)"
    f"){_END}"
)

_PROXIED: Final = (
    f"{_IN_CORE_NAMESPACE}/(?:pods|services)/{_NAME}/(?:exec|attach|portforward|proxy)(?:[/?].*)?"
    f"|api/v1/nodes/{_NAME}/proxy(?:[/?].*)?"
)
PROXIED: Final = f"(?:{_BEGINNING})?/(?:{_PROXIED})"
"""Paths of requests that a program of the tenant handles, which may make changes also after a GET. Also matches the
path after the route has removed the prefix of the control plane.
"""

_STREAMS: Final = f"{_PROXIED}|{_IN_CORE_NAMESPACE}/pods/{_NAME}/log(?:[/?].*)?"
STREAMS: Final = f"{_BEGINNING}/(?:{_STREAMS})"
"""Paths of streams to pods and nodes. Unlike a watch, such a stream cannot continue on another connection."""

_LASTING: Final = f"{_BEGINNING}/(?:{_STREAMS}|(?:api/{_NAME}|apis/{_NAME}/{_NAME})/watch/.*|.*[?&](?:watch|follow)=.*)"
"""Paths of requests that may be silent for hours, with or without a body."""

_CREATED_IN_SPITE: Final = (
    # An eviction deletes a pod, and a binding sets a field. Without a CertificateSigningRequest, a node loses its
    # certificate.
    f"{_BEGINNING}/(?:{_IN_CORE_NAMESPACE}/pods/{_NAME}/(?:eviction|binding)"
    f"|apis/certificates[.]k8s[.]io/{_NAME}/certificatesigningrequests){_END}"
)

_UPDATED_IN_SPITE: Final = (
    # Subresources of an object (status, scale, finalize).
    f"{_BEGINNING}/(?:api/{_NAME}|apis/{_NAME}/{_NAME})/(?:namespaces/{_NAME}/{_NAME}/{_NAME}/{_NAME}"
    f"|{_NAME}/{_NAME}/{_NAME}){_END}"
)

_LEASE: Final = f"{_BEGINNING}/apis/coordination[.]k8s[.]io/{_NAME}/namespaces/{_NAME}/leases/{_NAME}{_END}"
"""Paths of Leases. A PUT creates a Lease that does not exist, so the length of each request is limited."""

_PATCHES: Final = "application/(?:json-patch|merge-patch|strategic-merge-patch)[+]json(?: *;.*)?"
"""Content types of patches that create no object, unlike server-side apply."""
_SMALL: Final = "[0-9]{1,3}"
"""Length in bytes of up to three digits, enough for a patch that removes a finalizer."""
_FEW: Final = "[0-9]{1,4}"
"""Length in bytes of up to four digits, enough for a Lease or a CertificateSigningRequest."""
_MODERATE: Final = "[0-9]{1,5}"
"""Length in bytes of up to five digits, enough for the status of a node."""


def header_input(header: str) -> Message:
    """Return a request header as input of a matcher."""
    return {
        "name": "header",
        "typed_config": typed("envoy.type.matcher.v3.HttpRequestHeaderMatchInput", header_name=header),
    }


def header_is(header: str, regex: str) -> Message:
    """Return a predicate for requests with a header whose whole value matches a regular expression."""
    match = {"safe_regex": {"google_re2": {}, "regex": regex}}
    return {"single_predicate": {"input": header_input(header), "value_match": match}}


def every(*predicates: Message) -> Message:
    """Return a predicate that holds if all these predicates hold."""
    return {"and_matcher": {"predicate": list(predicates)}}


def negated(predicate: Message) -> Message:
    """Return a predicate that holds if this predicate does not hold."""
    return {"not_matcher": predicate}


CARRIES: Final = {
    "or_matcher": {"predicate": [header_is("content-length", "0*[1-9][0-9]*"), header_is(CHUNKED_HEADER, ".+")]}
}
"""Predicate for requests with a body. Of HTTP/2, it includes only requests with a Content-Length."""

ENDS_SOON: Final = every(CARRIES, negated(header_is(":path", _LASTING)))
"""Predicate for requests that have a body and end soon after the body has arrived."""

CHANGES: Final = every(negated(header_is(":method", READS)), negated(header_is(":path", _UNCHANGING)))
"""Predicate for mutating requests, which may change the stored data of a control plane."""

GROWS: Final = every(
    CHANGES,
    negated(header_is(":method", "DELETE")),
    negated(
        every(
            header_is(":method", "POST"),
            header_is(":path", _CREATED_IN_SPITE),
            header_is("content-length", _FEW),
        )
    ),
    negated(
        every(
            header_is(":method", "PUT|PATCH"),
            header_is(":path", _LEASE),
            header_is("content-length", _FEW),
        )
    ),
    negated(
        every(
            header_is(":method", "PUT|PATCH"),
            header_is(":path", _UPDATED_IN_SPITE),
            header_is("content-length", _MODERATE),
        )
    ),
    negated(
        every(
            header_is(":method", "PATCH"),
            header_is("content-type", _PATCHES),
            header_is("content-length", _SMALL),
        )
    ),
)
"""Predicate for growing requests, which may increase the stored data of a control plane."""


def changes(method: str, path: str) -> bool:
    """Return whether a request is mutating, by the same rules as `CHANGES`."""
    return re.fullmatch(READS, method) is None and re.fullmatch(_UNCHANGING, path) is None
