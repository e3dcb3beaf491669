"""The programs of kplane: where they run, whether they are ready, what they say and what they log.

They are pods of the management cluster, or processes of this machine.
"""

from __future__ import annotations

from kplane.cli.programs.base import Program, Programs, Replica
from kplane.cli.programs.found import find_programs

__all__ = ["Program", "Programs", "Replica", "find_programs"]
