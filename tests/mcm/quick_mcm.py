"""Runs mcm with shorter waits than in production, so that its tests wait for what it does and not for its clock."""

from __future__ import annotations

import functools

from kplane.mcm import main as command
from kplane.mcm.instance.start_gate import GatePace

if __name__ == "__main__":
    command.GatePace = functools.partial(GatePace, look=1.0, retry_maximum=2.0)  # type: ignore[assignment,misc]
    command.main()
