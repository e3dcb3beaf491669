"""Content of the page about control planes, as JSON values."""

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
    """Return the content of the page: totals, and a row for each control plane by name, with its resource usage."""
    services = _services(registrations)
    rows = [
        _row(control_plane, services.get(control_plane.name, []), usages.get(control_plane.name))
        for control_plane in sorted(control_planes, key=lambda each: each.name)
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
    """Return the registrations of each control plane."""
    registrations_by_name: dict[str, list[dict[str, Any]]] = {}
    for registration in registrations:
        running = find_condition(registration.status.conditions, RUNNING)
        summary = {
            "name": registration.name,
            "services": [str(service) for service in registration.status.services],
            "running": running.status if running is not None else "Unknown",
            "message": running.message if running is not None and running.status != "True" else "",
        }
        registrations_by_name.setdefault(registration.spec.control_plane_ref.name, []).append(summary)
    return registrations_by_name


def _row(found: ControlPlane, registrations: list[dict[str, Any]], usage: Usage | None) -> dict[str, Any]:
    status = found.status
    ready = find_condition(status.conditions, READY)
    hibernation, migration, storage = status.hibernation, status.migration, status.storage
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
            {
                "type": item.type,
                "status": item.status,
                "reason": item.reason,
                "message": item.message,
            }
            for item in status.conditions
        ],
        "asleep": {
            "since": _time(hibernation.since),
            "reason": hibernation.reason,
            "nextWake": _time(hibernation.next_wake),
        }
        if hibernation is not None
        else None,
        "migration": {"step": str(migration.step), "percent": migration.percent, "message": migration.message}
        if migration is not None and migration.step is not None and not migration.step.is_cut
        else None,
        "registrations": registrations,
        "endpoints": [{"type": str(item.type), "url": item.url} for item in status.endpoints],
    }


def _memory(usage: Usage | None) -> int | None:
    """Return the bytes of its API server, its etcd and its controllers, as far as they are known."""
    if usage is None:
        return None
    sizes = [size for size in (usage.memory_bytes, usage.controllers_bytes) if size is not None]
    return sum(sizes) if sizes else None


def _time(value: datetime | None) -> str | None:
    return value.isoformat() if value is not None else None
