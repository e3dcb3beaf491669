"""Finds the process of a registration's instance in the process table, independently of mcm's report."""

from __future__ import annotations

from kplane.embedded.handle import Handle
from kplane.mcm.describe.controllers import component_name
from kplane.workloads import find_processes

__all__ = ["instance_of"]


async def instance_of(handle: Handle, registration: str) -> int | None:
    """Find the process of a registration's instance; None if there is none."""
    found = find_processes(handle.mcm_directory / component_name(registration))
    return found[0] if found else None
