"""Detection of problems on a management cluster, each with the command that solves it."""

from __future__ import annotations

from kplane.cli.doctor.examination import Examination, examine
from kplane.cli.doctor.finding import Finding, Severity

__all__ = ["Examination", "Finding", "Severity", "examine"]
