"""Reasons of the condition Running."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Reason"]


class Reason(StrEnum):
    """Why the condition Running is as it is."""

    INSTANCE_RUNNING = "InstanceRunning"
    """The only one with which it is True."""
    STARTING = "Starting"
    UNREADY = "Unready"
    """Its process is there and does not answer its health check."""
    CREDENTIALS_REFUSED = "CredentialsRefused"
    """It runs, and its API server refuses what it accepted before. The operator then repairs rights and credentials."""
    BACKOFF = "Backoff"
    """It ended by itself, and is started again later and later."""
    BAD_FLAG = "BadFlag"
    """As BACKOFF, and so the others down to KILLED: it refused its command line."""
    API_SERVER_NOT_HEALTHY = "APIServerNotHealthy"
    """It waited for its API server for 10 seconds."""
    LEASE_LOST = "LeaseLost"
    OUT_OF_MEMORY = "OutOfMemory"
    KILLED = "Killed"
    API_SERVER_UNREACHABLE = "APIServerUnreachable"
    """It is not run, because its API server does not answer; it is, when that does."""
    FOREIGN_CONTROLLER_MANAGER = "ForeignControllerManager"
    """It is not run, because another one works on the same control plane."""
    CANNOT_START = "CannotStart"
    STOP_FAILED = "StopFailed"
    ENDED = "Ended"
    """Nothing of it is left."""
