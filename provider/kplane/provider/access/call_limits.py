"""Limits for calls to a cluster, which its provider sets."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from kplane.provider.errors import KubeconfigError

__all__ = ["CallLimits"]


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Limits the calls to a cluster; None keeps the limit of the manager or the client.

    `timeout_seconds` limits a call with its retries, `connect_timeout_seconds` the making of a connection.
    `answer_bytes`, `list_bytes` and `values` are those of `AnswerLimits`. Raises KubeconfigError for a limit that is
    not above 0.
    """

    timeout_seconds: float | None = None
    connect_timeout_seconds: float | None = None
    answer_bytes: int | None = None
    list_bytes: int | None = None
    values: int | None = None

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if value is not None and not value > 0:
                raise KubeconfigError(f"{limit.name} of a cluster is {value!r}: give a number above 0, or None")

    def over(self, other: CallLimits) -> CallLimits:
        """Return these limits; limits that are None are those of `other`."""
        own = {limit.name: getattr(self, limit.name) for limit in fields(self)}
        return replace(other, **{name: value for name, value in own.items() if value is not None})
