"""Bootstrap of Envoy: limits of requests to the authorizer, and the memory limit."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import orjson

from kplane.gateway.envoy.bootstrap import Layout, bootstrap
from kplane.gateway.envoy.names import AUTHORIZER, BACKLOG

LAYOUT = Layout(PurePosixPath("/run/gateway"))


def test_bootstrap_limits_authorizer_by_its_backlog_alone() -> None:
    """Envoy allows 1,024 requests by default, and 1,000 may wait in the authorizer."""
    document: Any = orjson.loads(bootstrap(LAYOUT))
    (cluster,) = document["static_resources"]["clusters"]
    assert cluster["name"] == AUTHORIZER
    limits = {"max_connections": BACKLOG, "max_pending_requests": BACKLOG, "max_requests": BACKLOG}
    assert cluster["circuit_breakers"]["thresholds"] == [limits]
