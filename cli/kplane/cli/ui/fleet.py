"""What the page shows of the control planes, as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from kplane.api import (
    READY,
    RUNNING,
    ControlPlane,
    ControlPlanePhase,
    ControlPlaneRegistration,
    find_condition,
)
from kplane.cli.usage import Usage

__all__ = ["show_fleet"]


def show_fleet(
    control_planes: Iterable[ControlPlane],
    registrations: Iterable[ControlPlaneRegistration],
    *,
    usages: Mapping[str, Usage],
) -> dict[str, Any]:
    """Return the content of the page: totals, and one row for each control plane, by name, with what it takes."""
    services = _services(registrations)
    rows = [
        _row(each, services.get(each.name, []), usages.get(each.name))
        for each in sorted(control_planes, key=lambda each: each.name)
    ]
    phases = [row["phase"] for row in rows]
    totals = {
        "controlPlanes": len(rows),
        "phases": {phase: phases.count(phase) for phase in sorted(set(phases))},
        "keys": sum(row["keys"] or 0 for row in rows),
        "bytes": sum(row["bytes"] or 0 for row in rows),
        "memory": sum(row["memory"] or 0 for row in rows),
        "migrating": sum(row["migration"] is not None for row in rows),
    }
    return {"totals": totals, "controlPlanes": rows}


def _services(registrations: Iterable[ControlPlaneRegistration]) -> Mapping[str, list[dict[str, Any]]]:
    """Map each control plane to its registrations."""
    found: dict[str, list[dict[str, Any]]] = {}
    for each in registrations:
        running = find_condition(each.status.conditions, RUNNING)
        shown = {
            "name": each.name,
            "services": [str(service) for service in each.status.services],
            "running": running.status if running is not None else "Unknown",
            "message": running.message if running is not None and running.status != "True" else "",
        }
        found.setdefault(each.spec.control_plane_ref.name, []).append(shown)
    return found


def _row(found: ControlPlane, registrations: list[dict[str, Any]], usage: Usage | None) -> dict[str, Any]:
    status = found.status
    ready = find_condition(status.conditions, READY)
    asleep, moving, storage = status.hibernation, status.migration, status.storage
    return {
        "name": found.name,
        "class": found.spec.class_ref.name if found.spec.class_ref is not None else None,
        "home": "Adopted" if found.spec.endpoint_ref is not None else str(found.home.mode),
        "phase": str(status.phase or ControlPlanePhase.PENDING),
        "created": _time(found.metadata.creation_timestamp),
        "version": status.version,
        "keys": storage.keys if storage is not None else None,
        "bytes": storage.bytes if storage is not None else None,
        "memory": _memory(usage),
        "rate": usage.rate if usage is not None else None,
        "why": f"{ready.reason}: {ready.message}" if ready is not None and ready.status != "True" else "",
        "conditions": [
            {"type": each.type, "status": each.status, "reason": each.reason, "message": each.message}
            for each in status.conditions
        ],
        "asleep": {"since": _time(asleep.since), "reason": asleep.reason, "nextWake": _time(asleep.next_wake)}
        if asleep is not None
        else None,
        "migration": {"step": str(moving.step), "percent": moving.percent, "message": moving.message}
        if moving is not None and moving.step is not None and not moving.step.is_cut
        else None,
        "registrations": registrations,
        "endpoints": [{"type": str(each.type), "url": each.url} for each in status.endpoints],
    }


def _memory(usage: Usage | None) -> int | None:
    """Return the bytes of its API server, its etcd and its controllers, as far as they are known."""
    if usage is None:
        return None
    known = [each for each in (usage.memory_bytes, usage.controllers_bytes) if each is not None]
    return sum(known) if known else None


def _time(value: datetime | None) -> str | None:
    return value.isoformat() if value is not None else None
