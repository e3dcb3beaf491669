"""Clients for tenants' API servers, whose owners and users are not trusted.

Up to three reconciles call one tenant at once: of the control plane, its add-ons and its endpoint. With 16 workers, and
those that wait without one, that is 432 calls. So the memory of all answers together is bounded: see `tenant_client`.
"""

from __future__ import annotations

import re
from typing import Any, Final

from kplane.provider import Client, ClusterConfig
from kplane.provider.client.connections import Connections
from kplane.provider.client.limits import Allowance, AnswerLimits

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
    """Make a client for the API server of a control plane.

    It reads at most 4 MiB and 250,000 values of one answer, and of all pages of a list. Over all tenants, it takes at
    most 96 MiB of memory, without answers below 64 KiB. Beyond that it raises AnswerTooLarge.
    """
    seconds = _CALL_SECONDS if timeout_seconds is None else timeout_seconds
    return Client(config, timeout_seconds=seconds, field_manager="kplane", connections=connections, limits=_LIMITS)


def reported_version(answer: Any) -> str:
    """Return the version that `/version` answers with; `unknown` where that is none, and cut where it is too long.

    The number is in front: what is cut is what somebody's build has added to it.
    """
    version = answer.get("gitVersion") if isinstance(answer, dict) else None
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        return "unknown"
    return version if len(version) <= _MAX_VERSION else version[:_MAX_VERSION].rstrip("-+.")
