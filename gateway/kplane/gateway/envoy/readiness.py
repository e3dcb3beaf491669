"""Readiness checks: requests wait while an API server is not ready, for example during a restart with new certificates.

An API server listens for seconds before it has the roles of its users, and responds with 403 until then. So Envoy
requests `/readyz` of each API server. While the response is not 200, requests go to a second endpoint of the cluster,
the waiting room (`waiting_room.py`). The waiting room closes each connection without a response. Envoy then retries the
request, since it has not sent any part of it.

An API server that stops refuses requests before the next check. It has not executed them, and asks for a retry
(`waitGroupWriteRetryAfterToResponse` of k8s.io/apiserver/pkg/server/filters/waitgroup.go). So Envoy retries these
requests too.

Connections to host names go to the holder (`holder.py`) while an API server is not ready. Envoy closes a client's
connection with that of the server, so the holder waits with the client.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Final

from kplane.gateway.envoy.messages import FILTERS, HTTP_OPTIONS, TLS, Message, typed, unix_socket

__all__ = ["ANSWER_HEADER", "READY_PATH", "READY_STATUSES", "RETRIED", "with_host_readiness", "with_readiness"]

RETRIED: Final = "connect-failure,refused-stream,reset-before-request"
"""Conditions under which Envoy retries a request. No API server has received the request in any of them."""
_EXCLUDED: Final = (
    # Without etcd or its KMS provider, an API server responds with its own errors, and serves reads from its caches.
    "etcd",
    "etcd-readiness",
    "kms-providers",
    # The operator publishes an API server that wakes up before these checks succeed (its `backends/readiness.py`).
    "poststarthook/rbac/bootstrap-roles",
    "poststarthook/scheduling/bootstrap-system-priority-classes",
    "poststarthook/start-service-ip-repair-controllers",
)
"""Checks of `/readyz` without relation to roles. `informer-sync` is related to roles, and stays among the checks."""
READY_PATH: Final = f"/readyz?{'&'.join(f'exclude={check}' for check in _EXCLUDED)}"
_USER: Final = "kplane-gateway"
_GROUP: Final = "system:masters"
"""Group that needs no role. So the response does not depend on the roles that a tenant leaves to anonymous users."""
_IDENTITY: Final = MappingProxyType({"x-remote-user": _USER, "x-remote-group": _GROUP})
_INTERVAL: Final = "0.5s"
"""Interval of checks. Two intervals are shorter than the time in which a killed API server listens again."""
_UNUSED_INTERVAL: Final = "10s"
"""Interval for clusters to which Envoy has not connected yet. A check takes an API server a millisecond of CPU time."""
_UNREADY_INTERVAL: Final = "0.2s"
"""Interval while an API server is not ready. It also applies to clusters to which Envoy has not connected yet: the
first clients of a wake-up arrive before the API server is ready.
"""
_TIMEOUT: Final = "1s"
"""Timeout of a check. Envoy uses a new cluster after its first check, which delays the confirmation of all changes."""
_READY: Final = 200
_REFUSED: Final = 401
"""Status code if the API server refuses the certificate of the check, which requests with tokens do not need."""
READY_STATUSES: Final = (_READY, _REFUSED)
"""Status codes of an API server that is ready. With 401, it refuses the credential of the check, or its absence."""
_FAILURES: Final = 2
"""Number of consecutive checks without a response that make an API server unready. An unexpected status code does so at
once.
"""
_CHECKING: Final = {"check": True}
_HOLDING: Final = {"held": True}
_MATCH: Final = "envoy.transport_socket_match"
"""Metadata of an endpoint that select its transport socket."""
_PRIORITY: Final = "envoy.extensions.retry.priority.previous_priorities.v3.PreviousPrioritiesConfig"
ANSWER_HEADER: Final = "x-kplane-answer"
"""Header that summarizes the response of an API server, for the decision about a retry. Clients do not receive it."""
_ANSWER: Final = "%RESP(:STATUS)%/%RESP(RETRY-AFTER)%/%RESP(CONTENT-TYPE)%/%RESP(X-CONTENT-TYPE-OPTIONS)%"
"""Format of this header. Envoy compares a single header with a text, so all distinctive parts of a response
are in it.
"""
_ENDING: Final = "503/1/application/json/nosniff"
_MAX_RETRIES: Final = 50
"""Maximum number of retries. The waiting room takes half a second for each, so that a request waits for 25 s at most.
Many clients give up after 30 s.
"""


def with_readiness(cluster: Message, *, checked_by: Message, needs_certificate: bool, room: PurePosixPath) -> Message:
    """Return a cluster whose requests wait at the socket `room` while its API server is not ready.

    `checked_by` is the transport socket with the front-proxy certificate. `needs_certificate` is True if the requests
    of the cluster also use this certificate. They then wait while the API server refuses it.
    """
    options = cluster["typed_extension_protocol_options"][HTTP_OPTIONS]
    check = _check([_READY] if needs_certificate else READY_STATUSES, identity=_IDENTITY)
    return {
        **_with_second_endpoint(cluster, _unchecked(unix_socket(str(room))), check=check),
        "transport_socket_matches": [_socket("check", _CHECKING, checked_by)],
        "typed_extension_protocol_options": {
            HTTP_OPTIONS: {**options, "http_filters": _telling_answers(), "retry_policy": _retries()}
        },
    }


def with_host_readiness(cluster: Message, *, held: Message, held_by: Message) -> Message:
    """Return a cluster of a host name whose connections go to the holder while its API server is not ready.

    `held` is the address of the holder, and `held_by` the transport socket to it. The gateway has no credential and no
    CA for API servers at host names. So the check is anonymous, and does not verify the server, which gets nothing.
    """
    context = typed(f"{TLS}.UpstreamTlsContext", common_tls_context={"alpn_protocols": ["http/1.1"]})
    holder = {**_unchecked(held), "metadata": {"filter_metadata": {_MATCH: _HOLDING}}}
    return {
        **_with_second_endpoint(cluster, holder, check=_check(READY_STATUSES)),
        "transport_socket_matches": [
            _socket("check", _CHECKING, {"name": "tls", "typed_config": context}),
            _socket("held", _HOLDING, held_by),
        ],
    }


def _with_second_endpoint(cluster: Message, endpoint: Message, *, check: Message) -> Message:
    assignment = cluster["load_assignment"]
    second = {"priority": 1, "lb_endpoints": [endpoint]}
    return {
        **cluster,
        "load_assignment": {**assignment, "endpoints": [*assignment["endpoints"], second]},
        "health_checks": [check],
        # By default, Envoy sends requests to an unready API server if no other endpoint is ready.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
    }


def _socket(name: str, match: Message, transport_socket: Message) -> Message:
    return {"name": name, "match": match, "transport_socket": transport_socket}


def _check(statuses: Iterable[int], *, identity: Mapping[str, str] = MappingProxyType({})) -> Message:
    return {
        "timeout": _TIMEOUT,
        "interval": _INTERVAL,
        "no_traffic_interval": _UNREADY_INTERVAL,
        "no_traffic_healthy_interval": _UNUSED_INTERVAL,
        "unhealthy_interval": _UNREADY_INTERVAL,
        "unhealthy_threshold": _FAILURES,
        "healthy_threshold": 1,
        "http_health_check": {
            # The default is the name of the cluster, which is not a host name.
            "host": _USER,
            "path": READY_PATH,
            "expected_statuses": [{"start": code, "end": code + 1} for code in statuses],
            "request_headers_to_add": [{"header": {"key": key, "value": value}} for key, value in identity.items()],
        },
        "transport_socket_match_criteria": _CHECKING,
    }


def _unchecked(address: Message) -> Message:
    return {"endpoint": {"address": address, "health_check_config": {"disable_active_health_check": True}}}


def _telling_answers() -> list[Message]:
    header = {"key": ANSWER_HEADER, "value": _ANSWER}
    response_mutation = {"append": {"header": header, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}}
    mutation = typed(
        f"{FILTERS}.http.header_mutation.v3.HeaderMutation", mutations={"response_mutations": [response_mutation]}
    )
    codec = typed(f"{FILTERS}.http.upstream_codec.v3.UpstreamCodec")
    return [{"name": "answers", "typed_config": mutation}, {"name": "codec", "typed_config": codec}]


def _retries() -> Message:
    """Return the retry policy by which requests wait.

    Between two tries, Envoy does not count a request as in flight; in the waiting room, it does. Between two stays
    there are three delays at most. Their sum is shorter than the time between two looks of `presence.py`.
    """
    return {
        "retry_on": f"{RETRIED},retriable-headers",
        "retriable_headers": [{"name": ANSWER_HEADER, "string_match": {"exact": _ENDING}}],
        "num_retries": _MAX_RETRIES,
        # Two tries at an API server that accepts no connection are followed by two tries at the waiting room, and so
        # on.
        "retry_priority": {"name": "previous-priorities", "typed_config": typed(_PRIORITY, update_frequency=2)},
        "retry_back_off": {"base_interval": "0.01s", "max_interval": "0.01s"},
    }
