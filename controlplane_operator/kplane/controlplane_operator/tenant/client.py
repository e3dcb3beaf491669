"""How tenants' API servers are talked to: whoever runs one, or may write in it, may mean harm.

A tenant has as many calls under way as reconciles work on it: one for the control plane, one for its add-ons, one for
its endpoint. Over all tenants that may be three times the workers and those that wait without one, 432 of 16 workers.
So what their answers take together is bounded as well, whatever their number: see `tenant_client`.
"""

from __future__ import annotations

import re
from typing import Any, Final

from kplane.provider import Allowance, AnswerLimits, Client, ClusterConfig, Connections

__all__ = ["reported_version", "tenant_client"]

_CALL_SECONDS: Final = 5.0
"""How long a tenant's API server may take to answer one call."""
_MIB: Final = 1024**2
_LIMITS: Final = AnswerLimits(
    # etcd takes 1.5 MiB of an object, and managedFields may double that.
    answer_bytes=4 * _MIB,
    list_bytes=4 * _MIB,
    values=250_000,
    together=Allowance(96 * _MIB),
)
"""Parsed, one answer of the worst kind takes 29 MiB: three of them fit beside each other."""
_MAX_VERSION: Final = 63
"""What the CRDs have room for."""
_VERSION: Final = re.compile(r"[0-9A-Za-z][-+.0-9A-Za-z]*")


def tenant_client(
    config: ClusterConfig, *, timeout_seconds: float | None = None, connections: Connections | None = None
) -> Client:
    """Make a client for the API server of a control plane, or of whoever answers in its place.

    It takes 4 MiB in of one answer, and of all pages of a list together, with 250,000 values at most, and 96 MiB of
    memory over all tenants at once, not counting answers that need less than 64 KiB; beyond, it raises AnswerTooLarge.
    """
    seconds = _CALL_SECONDS if timeout_seconds is None else timeout_seconds
    return Client(config, timeout_seconds=seconds, connections=connections, limits=_LIMITS)


def reported_version(answer: Any) -> str:
    """Return the version that `/version` answers with; `unknown` where that is none, and cut where it is too long.

    The number is in front: what is cut is what somebody's build has added to it.
    """
    version = answer.get("gitVersion") if isinstance(answer, dict) else None
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        return "unknown"
    return version if len(version) <= _MAX_VERSION else version[:_MAX_VERSION].rstrip("-+.")
