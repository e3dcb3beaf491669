"""Runs mcm with the settings of a test, from environment variables.

- QUICK_MCM: shorter waits than in production, so that tests do not wait for timers.
- QUICK_MCM_LEASE_SECONDS: duration of the Lease of an instance.
- QUICK_MCM_APART: a separate instance Lease for each registration, so that several can have the same API server.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from kplane.mcm import fleet
from kplane.mcm import main as command
from kplane.mcm.instance import tenant_lease
from kplane.mcm.instance.start_gate import GatePace
from kplane.mcm.instance.tenant_lease import TenantLease
from kplane.provider import Cluster
from kplane.provider.coordination.lease import LeaseTimings


def lease_apart(cluster: Cluster, *, program: str, **more: Any) -> TenantLease:
    return TenantLease(cluster, program=f"{program}.{cluster.name}", **more)


if __name__ == "__main__":
    times: dict[str, float] = {}
    if seconds := int(os.environ.get("QUICK_MCM_LEASE_SECONDS", "0")):
        timings = LeaseTimings(duration_seconds=seconds, renew_deadline_seconds=0.75 * seconds, retry_seconds=1.0)
        tenant_lease.TIMINGS = timings  # type: ignore[misc]
        times |= {"look": 1.0, "retry": 1.0, "grace": timings.renew_deadline_seconds}
    if "QUICK_MCM" in os.environ:
        times |= {"look": 1.0, "retry": 1.0, "retry_maximum": 2.0}
    if "QUICK_MCM_APART" in os.environ:
        fleet.TenantLease = lease_apart  # type: ignore[assignment,misc]
    command.GatePace = functools.partial(GatePace, **times)  # type: ignore[assignment,misc]
    command.main()
