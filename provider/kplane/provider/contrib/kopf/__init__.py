"""Runs the handlers of a kopf operator against a fleet."""

from __future__ import annotations

from kplane.provider.contrib.kopf.bridge import KopfAware

__all__ = ["KopfAware"]
