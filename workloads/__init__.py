"""Runs components: one description, and a runtime that has it run."""

from workloads.component import (
    DATA,
    FILES,
    SCRATCH,
    Component,
    File,
    Lifetime,
    Port,
    Probe,
    Reach,
    Resources,
    RestartPolicy,
)
from workloads.errors import ProgramFailed, ProgramTimedOut, RuntimeFailure, WorkloadsError
from workloads.orphans import end_processes, find_processes
from workloads.pace import Pace
from workloads.process_runtime import ProcessRuntime
from workloads.program import run_program
from workloads.runtime import Address, ComponentState, ExternalAddress, Phase, Runtime
from workloads.watchdog import Watchdog

__all__ = [
    "DATA",
    "FILES",
    "SCRATCH",
    "Address",
    "Component",
    "ComponentState",
    "ExternalAddress",
    "File",
    "Lifetime",
    "Pace",
    "Phase",
    "Port",
    "Probe",
    "ProcessRuntime",
    "ProgramFailed",
    "ProgramTimedOut",
    "Reach",
    "Resources",
    "RestartPolicy",
    "Runtime",
    "RuntimeFailure",
    "Watchdog",
    "WorkloadsError",
    "end_processes",
    "find_processes",
    "run_program",
]
