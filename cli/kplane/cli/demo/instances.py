"""Finds mcm and the instance of a registration in the process table, independently of mcm's report."""

from __future__ import annotations

from kplane.cli.errors import DemoFailed
from kplane.embedded import components
from kplane.embedded.handle import Handle
from kplane.mcm.describe.controllers import component_name
from kplane.workloads import find_processes

__all__ = ["instance_of", "instances", "mcm_process"]


async def instance_of(handle: Handle, registration: str) -> int | None:
    """Find the process of a registration's instance; None if there is none."""
    found = find_processes(handle.mcm_directory / component_name(registration))
    return found[0] if found else None


async def instances(handle: Handle) -> list[int]:
    """Find the processes of all instances."""
    return find_processes(handle.mcm_directory)


def mcm_process(handle: Handle) -> int:
    """Find the process of mcm. Raises `DemoFailed` if it does not run."""
    found = find_processes(handle.directory / "runtime" / components.MCM)
    if not found:
        raise DemoFailed(f"failed to find the process of mcm; see its log below {handle.directory / 'runtime'}")
    return found[0]
