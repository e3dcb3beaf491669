"""Bootstrap of Envoy: paths of its files, authorizer, administration interface, and memory limit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

import orjson

from kplane.gateway.envoy.clusters import clusters
from kplane.gateway.envoy.host_names import domains_of
from kplane.gateway.envoy.listener import Serving, listener
from kplane.gateway.envoy.messages import Message, file_source, typed, unix_socket
from kplane.gateway.envoy.names import AUTHORIZER, BACKLOG
from kplane.gateway.envoy.routing import routing
from kplane.gateway.routes import Route

__all__ = ["MEMORY_BYTES", "Layout", "bootstrap", "candidate"]

_NODE: Final = {"id": "gateway", "cluster": "kplane"}

_STATS: Final = (
    {"prefix": "server."},
    {"prefix": "listener_manager."},
    {"prefix": "listener."},
    {"prefix": "cluster_manager."},
    {"prefix": "http.gateway."},
    {"prefix": "sds."},
    # Keep only these statistics of each API server: all statistics take more memory than the rest of a cluster.
    {"suffix": ".upstream_rq_total"},
    {"suffix": ".upstream_rq_active"},
    {"suffix": ".upstream_cx_active"},
    # Envoy recognizes clusters in use by this statistic (`readiness.py`).
    {"suffix": ".upstream_cx_total"},
    {"suffix": ".upstream_cx_connect_fail"},
    {"suffix": ".upstream_rq_completed"},
    {"suffix": ".upstream_rq_401"},
    {"suffix": ".upstream_rq_2xx"},
    {"suffix": ".upstream_rq_4xx"},
    {"suffix": ".upstream_rq_5xx"},
    {"suffix": ".upstream_rq_pending_overflow"},
    {"suffix": ".rate_limited"},
    {"suffix": ".upstream_rq_pending_active"},
    {"suffix": ".update_rejected"},
)


_RUNTIME: Final = {
    # Limit for the size of compiled patterns. All patterns are the gateway's own, so the limit may be high.
    "re2.max_program_size.error_level": 1000,
    # By default the heap includes free memory of the allocator, so Envoy refused requests for ever after a peak.
    "envoy.reloadable_features.fixed_heap_use_allocated": True,
}
"""Values of Envoy's runtime that never change."""

_CHANGED: Final = {"name": "changed", "admin_layer": {}}
"""Layer of the runtime for values that the controller sets while Envoy runs."""

MEMORY_BYTES: Final = 1 << 30
"""Default memory limit of Envoy in bytes."""
_HEAP_PARTS: Final = 3, 4
"""Share of the memory for the heap. The binary, and free pages that Envoy has not returned yet, need the rest."""
_HEAP: Final = "envoy.resource_monitors.fixed_heap"
_LARGEST_FIRST: Final = 17
"""Exponent of the minimum buffer size, 2^17 bytes, of streams that Envoy resets while the heap is nearly full. The
streams with the largest buffers are reset first.
"""

_LIMIT: Final = "envoy.resource_monitors.global_downstream_max_connections"
_MONITORS: Final = "envoy.extensions.resource_monitors"
_ACTIONS: Final = "envoy.overload_actions"
_MOST_CONNECTIONS: Final = typed(
    f"{_MONITORS}.downstream_connections.v3.DownstreamConnectionsConfig",
    max_active_downstream_connections=50_000,
)

_AUTHORIZER_LIMITS: Final = ("max_connections", "max_pending_requests", "max_requests")
"""Limits of requests to the authorizer. By default, Envoy allows 1,024, about as many as may wait for a wake-up."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths of the files that Envoy and the controller share, in a directory of the gateway alone."""

    directory: PurePosixPath

    @property
    def bootstrap(self) -> PurePosixPath:
        """Bootstrap of Envoy."""
        return self.directory / "bootstrap.json"

    @property
    def listeners(self) -> PurePosixPath:
        """Listeners.

        Each kind of resource has its own directory, since Envoy rereads a file after a rename in its directory.
        """
        return self.directory / "listeners" / "listeners.json"

    @property
    def routes(self) -> PurePosixPath:
        """Route configuration."""
        return self.directory / "routes" / "routes.json"

    @property
    def clusters(self) -> PurePosixPath:
        """Clusters of API servers."""
        return self.directory / "clusters" / "clusters.json"

    @property
    def serving(self) -> PurePosixPath:
        """Directory of the serving certificate."""
        return self.directory / "serving"

    @property
    def authorizer(self) -> PurePosixPath:
        """Socket of the authorizer."""
        return self.directory / "run" / "authorizer.sock"

    @property
    def holder(self) -> PurePosixPath:
        """Socket of the holder, which holds connections to sleeping control planes."""
        return self.directory / "run" / "holder.sock"

    @property
    def waiting_room(self) -> PurePosixPath:
        """Socket of the waiting room, for requests whose API server is not ready."""
        return self.directory / "run" / "waiting-room.sock"

    @property
    def changes(self) -> PurePosixPath:
        """Log file of Envoy for mutating requests in flight."""
        return self.directory / "run" / "changes.log"

    @property
    def administration(self) -> PurePosixPath:
        """Socket of Envoy's administration interface, for the controller alone."""
        return self.directory / "run" / "envoy.sock"


def bootstrap(layout: Layout, *, memory_bytes: int = MEMORY_BYTES) -> bytes:
    """Return the bootstrap of Envoy. It names the other files, and does not depend on their content."""
    return _text(
        {
            **_common(layout, memory_bytes=memory_bytes),
            "static_resources": {"clusters": [_authorizer(layout)]},
            "dynamic_resources": {
                "lds_config": file_source(str(layout.listeners)),
                "cds_config": file_source(str(layout.clusters)),
            },
        }
    )


def candidate(layout: Layout, *, serving: Serving, routes: Iterable[Route]) -> bytes:
    """Return a configuration with the content of all files, for the validation by Envoy."""
    listed = list(routes)
    listening = listener(
        serving, routes=routing(listed), secrets=None, changes=layout.changes, domains=domains_of(listed)
    )
    api_servers = clusters(listed, holder=layout.holder, waiting_room=layout.waiting_room)
    upstreams = [_authorizer(layout), *api_servers]
    common = _common(layout, memory_bytes=MEMORY_BYTES)
    return _text({**common, "static_resources": {"listeners": [listening], "clusters": upstreams}})


def _common(layout: Layout, *, memory_bytes: int) -> Message:
    return {
        "node": _NODE,
        "admin": {"address": unix_socket(str(layout.administration))},
        "stats_config": {"stats_matcher": {"inclusion_list": {"patterns": list(_STATS)}}},
        "layered_runtime": {"layers": [{"name": "static", "static_layer": _RUNTIME}, _CHANGED]},
        "overload_manager": _overload(memory_bytes),
    }


def _overload(memory_bytes: int) -> Message:
    """Return Envoy's actions before its memory is exhausted: reset large streams, then refuse requests with 503."""
    part, whole = _HEAP_PARTS
    heap = typed(f"{_MONITORS}.fixed_heap.v3.FixedHeapConfig", max_heap_size_bytes=memory_bytes * part // whole)
    nearly_full = {"name": _HEAP, "scaled": {"scaling_threshold": 0.8, "saturation_threshold": 0.95}}
    return {
        "refresh_interval": "0.25s",
        "resource_monitors": [
            {"name": _LIMIT, "typed_config": _MOST_CONNECTIONS},
            {"name": _HEAP, "typed_config": heap},
        ],
        "buffer_factory_config": {"minimum_account_to_track_power_of_two": _LARGEST_FIRST},
        "actions": [
            {"name": f"{_ACTIONS}.shrink_heap", "triggers": [{"name": _HEAP, "threshold": {"value": 0.8}}]},
            {"name": f"{_ACTIONS}.reset_high_memory_stream", "triggers": [nearly_full]},
            {"name": f"{_ACTIONS}.stop_accepting_requests", "triggers": [{"name": _HEAP, "threshold": {"value": 0.9}}]},
        ],
    }


def _authorizer(layout: Layout) -> Message:
    endpoint = {"endpoint": {"address": {"pipe": {"path": str(layout.authorizer)}}}}
    return {
        "name": AUTHORIZER,
        "type": "STATIC",
        "connect_timeout": "1s",
        # Each waiting request has a connection of its own. Requests to awake control planes need further connections.
        "circuit_breakers": {"thresholds": [dict.fromkeys(_AUTHORIZER_LIMITS, BACKLOG)]},
        "load_assignment": {"cluster_name": AUTHORIZER, "endpoints": [{"lb_endpoints": [endpoint]}]},
    }


def _text(message: Message) -> bytes:
    return orjson.dumps(message)
