"""The values of options that several modules know. It imports nothing, so that `--help` stays fast."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Order", "Part"]


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
