"""What a request does to the data of a control plane, told by its method, path and headers alone.

Patterns are of RE2 and of Python alike, and match a whole path with its query. A path that is written in an unusual
way, for example by percent-encoding, counts as one that changes and grows.
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
    "READS",
    "STREAMS",
    "changes",
    "every",
    "header_input",
    "header_is",
    "negated",
]

READS: Final = "GET|HEAD|OPTIONS"
"""Methods that change nothing."""
DOUBLE_SLASH: Final = "/clusters/[^/?]*/control-plane//.*"
"""Paths of clients that join a server URL with a slash at its end, and a path."""
_NAME: Final = "[^/?]+"
_BEGINNING: Final = "/clusters/[-a-z0-9]+/control-plane"
_END: Final = r"(?:[?].*)?"
_IN_CORE_NAMESPACE: Final = f"api/v1/namespaces/{_NAME}"

_UNCHANGING: Final = (
    f"{_BEGINNING}/(?:"
    # Streams to pods and nodes last for hours, and are no business of the API server's data.
    f"{_IN_CORE_NAMESPACE}/(?:pods|services)/{_NAME}/(?:exec|attach|portforward|proxy)(?:/[^?]*)?"
    f"|api/v1/nodes/{_NAME}/proxy(?:/[^?]*)?"
    # Reviews and tokens are answers, and are kept nowhere.
    f"|{_IN_CORE_NAMESPACE}/serviceaccounts/{_NAME}/token"
    f"|apis/authentication[.]k8s[.]io/{_NAME}/(?:tokenreviews|selfsubjectreviews)"
    f"|apis/authorization[.]k8s[.]io/{_NAME}/(?:namespaces/{_NAME}/localsubjectaccessreviews|subjectaccessreviews"
    "|selfsubjectaccessreviews|selfsubjectrulesreviews)"
    f"){_END}"
)

_STREAMS: Final = (
    f"{_IN_CORE_NAMESPACE}/(?:pods|services)/{_NAME}/(?:exec|attach|portforward|proxy|log)(?:[/?].*)?"
    f"|api/v1/nodes/{_NAME}/proxy(?:[/?].*)?"
)
STREAMS: Final = f"{_BEGINNING}/(?:{_STREAMS})"
"""Streams to pods and nodes. Unlike a watch, such a stream cannot continue on another connection."""

_LASTING: Final = f"{_BEGINNING}/(?:{_STREAMS}|(?:api/{_NAME}|apis/{_NAME}/{_NAME})/watch/.*|.*[?&](?:watch|follow)=.*)"
"""Requests that may be silent for hours, whether they have a body or not."""

_CREATED_IN_SPITE: Final = (
    # An eviction deletes; a binding is a field; without a request for a certificate, a node loses its own.
    f"{_BEGINNING}/(?:{_IN_CORE_NAMESPACE}/pods/{_NAME}/(?:eviction|binding)"
    f"|apis/certificates[.]k8s[.]io/{_NAME}/certificatesigningrequests){_END}"
)

_UPDATED_IN_SPITE: Final = (
    # Subresources of an object (status, scale, finalize).
    f"{_BEGINNING}/(?:api/{_NAME}|apis/{_NAME}/{_NAME})/(?:namespaces/{_NAME}/{_NAME}/{_NAME}/{_NAME}"
    f"|{_NAME}/{_NAME}/{_NAME}){_END}"
)

_LEASE: Final = f"{_BEGINNING}/apis/coordination[.]k8s[.]io/{_NAME}/namespaces/{_NAME}/leases/{_NAME}{_END}"
"""A PUT creates one that is not there. So each may have few bytes."""

_PATCHES: Final = "application/(?:json-patch|merge-patch|strategic-merge-patch)[+]json(?: *;.*)?"
"""Those that create nothing, as server-side apply does."""
_SMALL: Final = "[0-9]{1,3}"
"""A length in bytes: room for a patch that removes a finalizer."""
_FEW: Final = "[0-9]{1,4}"
"""A length in bytes: room for a Lease, and for a request for a certificate."""
_MODERATE: Final = "[0-9]{1,5}"
"""A length in bytes: room for the status of a node."""


def header_input(header: str) -> Message:
    """Return a header of a request, as a matcher's input."""
    return {
        "name": "header",
        "typed_config": typed("envoy.type.matcher.v3.HttpRequestHeaderMatchInput", header_name=header),
    }


def header_is(header: str, regex: str) -> Message:
    """Return the predicate that a request has a header, and that the whole of it matches."""
    match = {"safe_regex": {"google_re2": {}, "regex": regex}}
    return {"single_predicate": {"input": header_input(header), "value_match": match}}


def every(*predicates: Message) -> Message:
    """Return the predicate that all of these hold."""
    return {"and_matcher": {"predicate": list(predicates)}}


def negated(predicate: Message) -> Message:
    """Return the predicate that this one does not hold."""
    return {"not_matcher": predicate}


CARRIES: Final = {
    "or_matcher": {"predicate": [header_is("content-length", "0*[1-9][0-9]*"), header_is(CHUNKED_HEADER, ".+")]}
}
"""The predicate that a request of HTTP/1.1 has a body. Of HTTP/2, only those that say its length."""

ENDS_SOON: Final = every(CARRIES, negated(header_is(":path", _LASTING)))
"""The predicate that a request has a body, and is over soon after that has arrived."""

CHANGES: Final = every(negated(header_is(":method", READS)), negated(header_is(":path", _UNCHANGING)))
"""The predicate that a request may change what the control plane keeps."""

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
"""The predicate that a request may have the control plane keep more than before."""


def changes(method: str, path: str) -> bool:
    """Tell of a request what `CHANGES` tells Envoy of it."""
    return re.fullmatch(READS, method) is None and re.fullmatch(_UNCHANGING, path) is None
