"""Clients for tenants' API servers, whose owners and users are not trusted.

Up to three reconciles call a tenant at once: of the control plane, its add-ons and its endpoint. With 16 workers, and
the reconciles that wait without a worker, that is 432 calls. So the memory of all answers together is bounded: see
`tenant_client`.
"""

from __future__ import annotations

import re
from typing import Any, Final

from kplane.provider import Client, ClusterConfig
from kplane.provider.client.connections import Connections
from kplane.provider.client.limits import Allowance, AnswerLimits

__all__ = ["reported_version", "tenant_client"]

_CALL_SECONDS: Final = 5.0
"""Timeout of a call to a tenant's API server."""
_MIB: Final = 1024**2
_LIMITS: Final = AnswerLimits(
    # etcd accepts 1.5 MiB for an object, and managedFields may double that.
    answer_bytes=4 * _MIB,
    list_bytes=4 * _MIB,
    values=250_000,
    together=Allowance(96 * _MIB),
)
"""A parsed answer of the worst kind takes 29 MiB, so three of them fit into the allowance."""
_MAX_VERSION: Final = 63
"""Maximum length of a version, as in the CRDs."""
_VERSION: Final = re.compile(r"[0-9A-Za-z][-+.0-9A-Za-z]*")


def tenant_client(
    config: ClusterConfig, *, timeout_seconds: float | None = None, connections: Connections | None = None
) -> Client:
    """Return a client for the API server of a control plane.

    The client reads at most 4 MiB and 250,000 values of an answer, and of all pages of a list. Over all tenants,
    answers take at most 96 MiB of memory, without answers below 64 KiB. Beyond these limits the client raises
    AnswerTooLarge.
    """
    seconds = _CALL_SECONDS if timeout_seconds is None else timeout_seconds
    return Client(config, timeout_seconds=seconds, field_manager="kplane", connections=connections, limits=_LIMITS)


def reported_version(answer: Any) -> str:
    """Return the version in an answer of `/version`; `unknown` if it is invalid, truncated if it is too long.

    The number comes first, so truncation removes only suffixes of a custom build.
    """
    version = answer.get("gitVersion") if isinstance(answer, dict) else None
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        return "unknown"
    return version if len(version) <= _MAX_VERSION else version[:_MAX_VERSION].rstrip("-+.")
