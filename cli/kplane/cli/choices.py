"""Values that several modules share, such as the values of options.

Imports no module of kplane, so `--help` stays fast.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

__all__ = ["DEMO_MARKER", "Driver", "Order", "Part"]

DEMO_MARKER: Final = ".kplane-demo"
"""File in the directory of each demo."""


class Driver(StrEnum):
    """Values of `kplane up --driver`: the kind of management cluster."""

    PROCESS = "process"
    KIND = "kind"


class Part(StrEnum):
    """Values of `kplane logs --of`."""

    API_SERVER = "apiserver"
    CONTROLLERS = "controllers"
    SCHEDULER = "scheduler"
    ETCD = "etcd"


class Order(StrEnum):
    """Values of `kplane top --sort`."""

    NAME = "name"
    BYTES = "bytes"
    MEMORY = "memory"
    REQUESTS = "requests"
