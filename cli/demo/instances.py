"""Which process is the instance of a registration, told by the system and not by mcm."""

from __future__ import annotations

from pathlib import Path

from embedded.handle import Handle
from mcm.configuration import component_name
from workloads import find_processes

__all__ = ["instance_of"]


async def instance_of(handle: Handle, registration: str) -> int | None:
    """Find the process of a registration's instance by the marker in its environment; None where there is none."""
    marker = f"KPLANE_COMPONENT={handle.mcm_directory / component_name(registration)}".encode()
    for pid in find_processes(handle.mcm_directory):
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended since it was found
        if marker in environment:
            return pid
    return None
