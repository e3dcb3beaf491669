"""Requests that fail, or are warned about, as a test asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from kplane.provider.client.kinds import KindName, parse_kind
from kplane.provider.client.resources import Resource
from kplane.provider.errors import ApiError, Unreachable

__all__ = ["Fault", "Faults", "Verb", "Warned"]

Verb = Literal["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"]
"""A verb of RBAC: what a request does."""


@dataclass(slots=True)
class Fault:
    """Fails so many requests of one verb for one kind."""

    error: ApiError | Unreachable
    verb: Verb
    kind: KindName
    left: int
    takes_effect: bool


@dataclass(slots=True)
class Warned:
    """Warns about so many requests of one verb for one kind."""

    text: str
    verb: Verb
    kind: KindName
    left: int


class Faults:
    """Knows which of the next requests fail, and which are warned about."""

    def __init__(self) -> None:
        self._faults: Final[list[Fault]] = []
        self._warned: Final[list[Warned]] = []
        self.outage: Unreachable | None = None
        """The error of every request, while the API server is down."""

    def warn(self, warned: Warned) -> None:
        """Add a warning."""
        self._warned.append(warned)

    def warnings(self, verb: Verb, resource: Resource) -> Iterator[str]:
        """Yield the warnings about a request, and count them."""
        kind = parse_kind(resource)
        for warned in self._warned:
            if warned.left > 0 and (warned.verb, warned.kind) == (verb, kind):
                warned.left -= 1
                yield warned.text

    def add(self, fault: Fault) -> None:
        """Add a fault; those that were added before come first."""
        self._faults.append(fault)

    def next(self, verb: Verb, resource: Resource) -> Fault | None:
        """Return the fault of a request, and count it; None if it does not fail."""
        kind = parse_kind(resource)
        for fault in self._faults:
            if fault.left > 0 and (fault.verb, fault.kind) == (verb, kind):
                fault.left -= 1
                return fault
        return None
