"""Finds what is wrong on a management cluster, and the command that mends it."""

from __future__ import annotations

from kplane.cli.doctor.examination import Examination, examine
from kplane.cli.doctor.finding import Finding, Severity

__all__ = ["Examination", "Finding", "Severity", "examine"]
