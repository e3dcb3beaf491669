"""Reasons of the condition Running. The reference of conditions is generated from this list."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Reason"]


class Reason(StrEnum):
    """Reason of the condition Running."""

    INSTANCE_RUNNING = "InstanceRunning"
    """The instance runs and answers its health check."""
    STARTING = "Starting"
    """It starts, or waits for its turn to start."""
    UNREADY = "Unready"
    """Its process runs and does not answer its health check."""
    CREDENTIALS_REFUSED = "CredentialsRefused"
    """Its API server refuses what it accepted before. The operator then repairs rights and credentials."""
    BACKOFF = "Backoff"
    """It ended by itself; the message has its last words. mcm starts it again, with a growing wait."""
    BAD_FLAG = "BadFlag"
    """It refused its command line and ended; mcm starts it again, with a growing wait."""
    API_SERVER_NOT_HEALTHY = "APIServerNotHealthy"
    """It waited for its API server for 10 seconds and ended; mcm starts it again, with a growing wait."""
    LEASE_LOST = "LeaseLost"
    """It lost its Lease and ended; mcm starts it again, with a growing wait."""
    OUT_OF_MEMORY = "OutOfMemory"
    """It found no more memory, or took more than it may; mcm starts it again, with a growing wait."""
    KILLED = "Killed"
    """A signal ended it, for example of mcm after it did not answer for long; mcm starts it again."""
    API_SERVER_UNREACHABLE = "APIServerUnreachable"
    """It does not run, because its API server does not answer. mcm starts it when the API server does."""
    WEBHOOK_REFUSED = "WebhookRefused"
    """It does not run, because an admission webhook or policy of the control plane refuses its Lease, or holds it up.
    Mend or delete what the message names, or exclude namespace `kube-system` from its rules. mcm retries."""
    FOREIGN_CONTROLLER_MANAGER = "ForeignControllerManager"
    """It does not run, because another program works on the same control plane; the message names the holder."""
    CANNOT_START = "CannotStart"
    """mcm cannot start it; the message says why, and mcm retries."""
    STOP_FAILED = "StopFailed"
    """Its process does not end, or its files cannot be removed; mcm retries."""
    HEARTBEAT_STALE = "HeartbeatStale"
    """It is not known whether it runs, because its mcm does not renew the Lease in the control plane. The operator says
    so, in the place of mcm, which writes the condition again when it is back."""
    ENDED = "Ended"
    """Its process has ended, and nothing of it is left."""
