"""Bootstrap of Envoy: limits of requests to the authorizer, and the memory limit."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import orjson

from kplane.gateway.envoy.bootstrap import Layout, bootstrap, candidate
from kplane.gateway.envoy.names import AUTHORIZER, BACKLOG

from .fleet import serving

LAYOUT = Layout(PurePosixPath("/run/gateway"))


def test_bootstrap_limits_authorizer_by_its_backlog_alone() -> None:
    """Envoy allows 1,024 requests by default, and 1,000 may wait in the authorizer."""
    document: Any = orjson.loads(bootstrap(LAYOUT))
    (cluster,) = document["static_resources"]["clusters"]
    assert cluster["name"] == AUTHORIZER
    limits = {"max_connections": BACKLOG, "max_pending_requests": BACKLOG, "max_requests": BACKLOG}
    assert cluster["circuit_breakers"]["thresholds"] == [limits]


def test_bootstrap_sheds_load_before_memory_is_exhausted() -> None:
    """Three quarters of the memory are for the heap. Streams with large buffers end before new requests get 503."""
    manager: Any = orjson.loads(bootstrap(LAYOUT, memory_bytes=400 << 20))["overload_manager"]
    monitors = {monitor["name"]: monitor["typed_config"] for monitor in manager["resource_monitors"]}
    heap = "envoy.resource_monitors.fixed_heap"
    assert monitors[heap]["max_heap_size_bytes"] == 300 << 20
    assert monitors["envoy.resource_monitors.global_downstream_max_connections"]["max_active_downstream_connections"]
    triggers = {action["name"].rpartition(".")[2]: action["triggers"] for action in manager["actions"]}
    scaled = {"scaling_threshold": 0.8, "saturation_threshold": 0.95}
    assert triggers == {
        "shrink_heap": [{"name": heap, "threshold": {"value": 0.8}}],
        "reset_high_memory_stream": [{"name": heap, "scaled": scaled}],
        "stop_accepting_requests": [{"name": heap, "threshold": {"value": 0.9}}],
    }
    # Without this size, Envoy tracks no buffers and resets no stream.
    assert manager["buffer_factory_config"] == {"minimum_account_to_track_power_of_two": 17}


def test_candidate_has_overload_manager_of_bootstrap() -> None:
    """Envoy validates what it starts with."""
    validated: Any = orjson.loads(candidate(LAYOUT, serving=serving(), routes=[]))
    assert validated["overload_manager"] == orjson.loads(bootstrap(LAYOUT))["overload_manager"]
