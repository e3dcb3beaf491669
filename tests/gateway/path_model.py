"""Ambiguous paths, which programs may parse differently, and a model of the routing of Envoy."""

from __future__ import annotations

import re

from kplane.gateway.envoy.routing import AMBIGUOUS_PATH

__all__ = ["BEGINNINGS", "PIECES", "TENANTS", "routed"]

TENANTS = ("one", "two", "on", "one-two")

PIECES = (
    *(
        "/",
        "//",
        "/./",
        "/../",
        "..",
        ".",
        "\\",
        "%2f",
        "%2F",
        "%5c",
        "%2e",
        "%2E%2e",
        "%00",
        "%252e",
        "%3f",
        "?",
        "#",
        ";",
    ),
    *("clusters", "Clusters", "control-plane", "Control-Plane", "api", "%63lusters", "x"),
    *(*TENANTS, "ONE", "tw%6f"),
    *(f"/clusters/{name}/control-plane" for name in TENANTS),
)
BEGINNINGS = ("/", "/clusters/one/control-plane", "/clusters/one/control-plane/", "/clusters/one-two/control-plane/")


def routed(path: str) -> str | None:
    """Return the control plane to which Envoy routes a path, or None. Ambiguous paths have no route."""
    if re.fullmatch(AMBIGUOUS_PATH, path):
        return None
    bare = path.partition("?")[0]
    tenants = [name for name in TENANTS if f"{bare}/".startswith(f"/clusters/{name}/control-plane/")]
    assert len(tenants) <= 1
    return tenants[0] if tenants else None
