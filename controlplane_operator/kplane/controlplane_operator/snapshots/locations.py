"""Locations of the files of ControlPlaneSnapshots, and names for the objects."""

from __future__ import annotations

from typing import Final

from kplane.api import ControlPlaneSnapshot
from kplane.api.names import IMPORTED_FROM_ANNOTATION
from kplane.controlplane_operator.snapshots.catalog import ArchiveName
from kplane.controlplane_operator.status.partial import PartialSnapshot
from kplane.controlplane_operator.watch.cache import Object

__all__ = ["file_name", "imported_from", "location_of", "possible_names"]

_UID_LENGTH: Final = 8
_LONGEST_NAME: Final = 253


def file_name(snapshot: ControlPlaneSnapshot | PartialSnapshot) -> str:
    """Return the name of the file that the operator writes. The name contains the uid, so each snapshot has its own."""
    return ArchiveName(snapshot.name, snapshot.metadata.uid or "").file


def imported_from(obj: Object) -> str | None:
    """Return the location that a snapshot is imported from; None for a snapshot that this operator writes."""
    location: str | None = (obj["metadata"].get("annotations") or {}).get(IMPORTED_FROM_ANNOTATION)
    return location


def location_of(obj: Object) -> str | None:
    """Return the location of the file; None while a snapshot that this operator writes is not completed."""
    location: str | None = (obj.get("status") or {}).get("location")
    return location or imported_from(obj)


def possible_names(name: str, *, uid: str) -> tuple[str, str]:
    """Return the two candidates for the name of an object.

    The first candidate is the name itself. The second has a part of `uid`, for the case that another object has the
    name.
    """
    suffix = f"-{uid[:_UID_LENGTH]}"
    return name, f"{name[: _LONGEST_NAME - len(suffix)]}{suffix}"
