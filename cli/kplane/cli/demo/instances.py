"""Process IDs of mcm and of its instances, from the process table, independently of mcm's report."""

from __future__ import annotations

from kplane.cli.errors import DemoFailed
from kplane.embedded import components
from kplane.embedded.handle import Handle
from kplane.mcm.describe.controllers import component_name
from kplane.workloads import find_processes

__all__ = ["instance_of", "instances", "mcm_process"]


async def instance_of(handle: Handle, registration: str) -> int | None:
    """Return the process ID of a registration's instance; None if no process runs."""
    pids = find_processes(handle.mcm_directory / component_name(registration))
    return pids[0] if pids else None


async def instances(handle: Handle) -> list[int]:
    """Return the process IDs of all instances."""
    return find_processes(handle.mcm_directory)


def mcm_process(handle: Handle) -> int:
    """Return the process ID of mcm. Raises `DemoFailed` if mcm does not run."""
    pids = find_processes(handle.directory / "runtime" / components.MCM)
    if not pids:
        raise DemoFailed(f"failed to find the process of mcm; see its log below {handle.directory / 'runtime'}")
    return pids[0]
