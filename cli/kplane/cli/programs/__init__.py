"""Programs of kplane: their location, readiness, answers and logs.

The programs are pods of the management cluster, or processes of this machine.
"""

from __future__ import annotations

from kplane.cli.programs.base import Program, Programs, Replica
from kplane.cli.programs.found import find_programs

__all__ = ["Program", "Programs", "Replica", "find_programs"]
