"""Values that several modules know, such as those of options. It imports nothing, so that `--help` stays fast."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

__all__ = ["DEMO_MARKER", "Driver", "Order", "Part"]

DEMO_MARKER: Final = ".kplane-demo"
"""File in the directory of each demo."""


class Driver(StrEnum):
    """The values of `kplane up --driver`: what the management cluster consists of."""

    PROCESS = "process"
    KIND = "kind"


class Part(StrEnum):
    """The values of `kplane logs --of`."""

    API_SERVER = "apiserver"
    CONTROLLERS = "controllers"
    SCHEDULER = "scheduler"
    ETCD = "etcd"


class Order(StrEnum):
    """The values of `kplane top --sort`."""

    NAME = "name"
    BYTES = "bytes"
    MEMORY = "memory"
    REQUESTS = "requests"
