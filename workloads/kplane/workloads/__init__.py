"""Runs components: a description of each component, and runtimes that run them."""

from kplane.workloads.component import (
    DATA,
    FILES,
    SCRATCH,
    Component,
    Fallback,
    File,
    Lifetime,
    Port,
    Preparation,
    Probe,
    Reach,
    Resources,
    RestartPolicy,
    Scheduling,
    Storage,
)
from kplane.workloads.errors import ProgramFailed, ProgramTimedOut, RuntimeFailure, WorkloadsError
from kplane.workloads.processes.inotify import inotify_shortage
from kplane.workloads.processes.launcher import landlock_version
from kplane.workloads.processes.pace import Pace
from kplane.workloads.processes.process import end_processes, find_processes
from kplane.workloads.processes.proctable import processor_seconds
from kplane.workloads.processes.program import run_program
from kplane.workloads.processes.runtime import ProcessRuntime
from kplane.workloads.processes.watchdog import Watchdog
from kplane.workloads.runtime import Address, ComponentState, Exposure, ExternalAddress, Phase, Runtime

__all__ = [
    "DATA",
    "FILES",
    "SCRATCH",
    "Address",
    "Component",
    "ComponentState",
    "Exposure",
    "ExternalAddress",
    "Fallback",
    "File",
    "Lifetime",
    "Pace",
    "Phase",
    "Port",
    "Preparation",
    "Probe",
    "ProcessRuntime",
    "ProgramFailed",
    "ProgramTimedOut",
    "Reach",
    "Resources",
    "RestartPolicy",
    "Runtime",
    "RuntimeFailure",
    "Scheduling",
    "Storage",
    "Watchdog",
    "WorkloadsError",
    "end_processes",
    "find_processes",
    "inotify_shortage",
    "landlock_version",
    "processor_seconds",
    "run_program",
]
