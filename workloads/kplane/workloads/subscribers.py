"""Who wants to know of changes."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

__all__ = ["Subscribers"]

logger = logging.getLogger(__name__)


class Subscribers:
    """Callbacks that get the name of each component whose state changed."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[str], None]] = []

    def add(self, callback: Callable[[str], None]) -> Callable[[], None]:
        """Call back from now on; returns the function that ends it, which may be called again."""
        self._callbacks.append(callback)

        def remove() -> None:
            with contextlib.suppress(ValueError):
                self._callbacks.remove(callback)

        return remove

    def tell(self, name: str) -> None:
        """Call everybody. What one of them raises is logged, and keeps the others from nothing."""
        for callback in list(self._callbacks):
            try:
                callback(name)
            except Exception:
                logger.exception("A subscriber failed on a change of component %s", name)
