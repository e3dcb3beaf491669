"""Errors and warnings for requests, on demand of a test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from kplane.provider.client.kinds import KindName, parse_kind
from kplane.provider.client.resources import Resource
from kplane.provider.errors import ApiError, Unreachable

__all__ = ["Fault", "Faults", "Verb", "Warned"]

Verb = Literal["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"]
"""Verb of a request, as in RBAC."""


@dataclass(slots=True)
class Fault:
    """Error for the next `left` requests of a verb for a kind."""

    error: ApiError | Unreachable
    verb: Verb
    kind: KindName
    left: int
    takes_effect: bool


@dataclass(slots=True)
class Warned:
    """Warning for the next `left` requests of a verb for a kind."""

    text: str
    verb: Verb
    kind: KindName
    left: int


class Faults:
    """Pending errors and warnings of a cluster."""

    def __init__(self) -> None:
        self._faults: Final[list[Fault]] = []
        self._warned: Final[list[Warned]] = []
        self.outage: Unreachable | None = None
        """Error of every request while the API server is down; None otherwise."""

    def warn(self, warned: Warned) -> None:
        """Add a warning."""
        self._warned.append(warned)

    def warnings(self, verb: Verb, resource: Resource) -> Iterator[str]:
        """Yield the warnings for a request, and count the request."""
        kind = parse_kind(resource)
        for warned in self._warned:
            if warned.left > 0 and (warned.verb, warned.kind) == (verb, kind):
                warned.left -= 1
                yield warned.text

    def add(self, fault: Fault) -> None:
        """Add an error. Errors that were added before are used up first."""
        self._faults.append(fault)

    def next(self, verb: Verb, resource: Resource) -> Fault | None:
        """Return the error for a request, and count the request; None if the request does not fail."""
        kind = parse_kind(resource)
        for fault in self._faults:
            if fault.left > 0 and (fault.verb, fault.kind) == (verb, kind):
                fault.left -= 1
                return fault
        return None
