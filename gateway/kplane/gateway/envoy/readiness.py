"""Has requests wait while an API server is not ready: it starts again, for example with new certificates.

An API server listens for seconds before it knows the roles of its users, and answers 403 meanwhile. So Envoy asks each
API server for `/readyz`. While the answer is not 200, requests go to a second endpoint of the cluster, the waiting room
(`waiting_room.py`). It never answers, and closes the connection soon. Envoy tries again then, because it has not sent
the request.

An API server that ends refuses requests before the next check. It has not carried them out, and asks to retry
(`waitGroupWriteRetryAfterToResponse` of k8s.io/apiserver/pkg/server/filters/waitgroup.go). So Envoy tries those again.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

from kplane.gateway.envoy.messages import FILTERS, HTTP_OPTIONS, Message, typed, unix_socket

__all__ = ["ANSWER_HEADER", "RETRIED", "with_readiness"]

RETRIED: Final = "connect-failure,refused-stream,reset-before-request"
"""The failures after which Envoy tries a request again: no API server has seen it."""
_EXCLUDED: Final = (
    # Without etcd or keys, an API server answers users itself, and serves what its caches have.
    "etcd",
    "etcd-readiness",
    "kms-providers",
    # An API server that wakes is published before these (`backends/readiness.py` of the operator).
    "poststarthook/rbac/bootstrap-roles",
    "poststarthook/scheduling/bootstrap-system-priority-classes",
    "poststarthook/start-service-ip-repair-controllers",
)
"""Checks of `/readyz` that say nothing of the roles. `informer-sync`, which does, is among the rest."""
_PATH: Final = f"/readyz?{'&'.join(f'exclude={check}' for check in _EXCLUDED)}"
_USER: Final = "kplane-gateway"
_GROUP: Final = "system:masters"
"""Needs no role. So the answer does not depend on the roles that a tenant leaves to anonymous users."""
_INTERVAL: Final = "0.5s"
"""Two of them are shorter than the time in which an API server that was killed listens again."""
_UNUSED_INTERVAL: Final = "10s"
"""For clusters that Envoy has not connected to yet. A check takes an API server a millisecond of processor time."""
_UNREADY_INTERVAL: Final = "0.2s"
"""Also for clusters that Envoy has not connected to yet: the first clients of a wake come before it is ready."""
_TIMEOUT: Final = "1s"
"""Envoy uses a new cluster after the first check, and the confirmation of all changes waits for that."""
_READY: Final = 200
_REFUSED: Final = 401
"""The API server refuses the certificate of the check. Requests with tokens do not need this certificate."""
_FAILURES: Final = 2
"""Checks in a row without an answer. Another answer than expected counts at once."""
_CHECKING: Final = {"check": True}
_PRIORITY: Final = "envoy.extensions.retry.priority.previous_priorities.v3.PreviousPrioritiesConfig"
ANSWER_HEADER: Final = "x-kplane-answer"
"""What an answer of an API server is, for the decision about a retry. No client gets it."""
_ANSWER: Final = "%RESP(:STATUS)%/%RESP(RETRY-AFTER)%/%RESP(CONTENT-TYPE)%/%RESP(X-CONTENT-TYPE-OPTIONS)%"
"""Envoy compares one header with one text. So all that tells an answer from others is in this one."""
_ENDING: Final = "503/1/application/json/nosniff"
_MAX_RETRIES: Final = 50
"""The waiting room takes half a second of each. So a request waits for 25 s: many clients give up after 30 s."""


def with_readiness(cluster: Message, *, checked_by: Message, needs_certificate: bool, room: PurePosixPath) -> Message:
    """Return a cluster whose requests wait at the socket `room` while its API server is not ready.

    `checked_by` is the transport socket with the front-proxy certificate. `needs_certificate`: requests of the cluster
    use that too, and wait while the API server refuses it.
    """
    options = cluster["typed_extension_protocol_options"][HTTP_OPTIONS]
    assignment = cluster["load_assignment"]
    return {
        **cluster,
        "load_assignment": {**assignment, "endpoints": [*assignment["endpoints"], _waiting(room)]},
        "health_checks": [_check(needs_certificate=needs_certificate)],
        # Without this, Envoy would send requests to an API server that is not ready if no other endpoint is.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "transport_socket_matches": [{"name": "check", "match": _CHECKING, "transport_socket": checked_by}],
        "typed_extension_protocol_options": {
            HTTP_OPTIONS: {**options, "http_filters": _telling_answers(), "retry_policy": _retries()}
        },
    }


def _check(*, needs_certificate: bool) -> Message:
    identity = {"x-remote-user": _USER, "x-remote-group": _GROUP}
    answers = [_READY] if needs_certificate else [_READY, _REFUSED]
    return {
        "timeout": _TIMEOUT,
        "interval": _INTERVAL,
        "no_traffic_interval": _UNREADY_INTERVAL,
        "no_traffic_healthy_interval": _UNUSED_INTERVAL,
        "unhealthy_interval": _UNREADY_INTERVAL,
        "unhealthy_threshold": _FAILURES,
        "healthy_threshold": 1,
        "http_health_check": {
            # Otherwise the name of the cluster, which is no name of a host.
            "host": _USER,
            "path": _PATH,
            "expected_statuses": [{"start": code, "end": code + 1} for code in answers],
            "request_headers_to_add": [{"header": {"key": key, "value": value}} for key, value in identity.items()],
        },
        "transport_socket_match_criteria": _CHECKING,
    }


def _waiting(room: PurePosixPath) -> Message:
    endpoint = {"address": unix_socket(str(room)), "health_check_config": {"disable_active_health_check": True}}
    return {"priority": 1, "lb_endpoints": [{"endpoint": endpoint}]}


def _telling_answers() -> list[Message]:
    header = {"key": ANSWER_HEADER, "value": _ANSWER}
    told = {"append": {"header": header, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}}
    mutation = typed(f"{FILTERS}.http.header_mutation.v3.HeaderMutation", mutations={"response_mutations": [told]})
    codec = typed(f"{FILTERS}.http.upstream_codec.v3.UpstreamCodec")
    return [{"name": "answers", "typed_config": mutation}, {"name": "codec", "typed_config": codec}]


def _retries() -> Message:
    """Return the policy by which requests wait.

    While a request waits for its next try, Envoy does not count it as in flight; in the waiting room, it does. Between
    two stays there are three waits at most. Together they are shorter than the time between two looks (`presence.py`).
    """
    return {
        "retry_on": f"{RETRIED},retriable-headers",
        "retriable_headers": [{"name": ANSWER_HEADER, "string_match": {"exact": _ENDING}}],
        "num_retries": _MAX_RETRIES,
        # After two tries at an API server that takes no connection, two at the waiting room follow, and so on.
        "retry_priority": {"name": "previous-priorities", "typed_config": typed(_PRIORITY, update_frequency=2)},
        "retry_back_off": {"base_interval": "0.01s", "max_interval": "0.01s"},
    }
