"""Names the cluster that the current task works on."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Final

from kplane.provider.aio.setting import Setting

__all__ = ["LOCAL", "cluster_context", "current_cluster", "title_of"]

LOCAL: Final = ""
"""Name of the cluster in which the manager runs; upstream's LocalCluster."""

_current: Final[ContextVar[str | None]] = ContextVar("cluster of the reconcile under way", default=None)


def current_cluster() -> str | None:
    """Return the name of the cluster of the current reconcile, None outside of one. New tasks inherit it."""
    return _current.get()


def cluster_context(name: str) -> AbstractContextManager[None]:
    """Set the current cluster inside of this context; controllers do so around each reconcile."""
    return Setting(_current, name)


def title_of(name: str) -> str:
    """Return the title of a cluster for log messages: `cluster acme`, or `local cluster`, which has no name."""
    return "local cluster" if name == LOCAL else f"cluster {name}"
