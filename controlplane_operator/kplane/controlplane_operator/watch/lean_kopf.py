"""Imports kopf without the clients of Kubernetes that it loads if they are installed.

kopf accepts their objects in functions that the operator does not call. The official client takes 10 MiB.
In this process, kopf does not know the models of those clients from then on.
"""

from __future__ import annotations

import sys

__all__ = ["kopf"]

_absent = [name for name in ("kubernetes", "kubernetes_asyncio", "pykube") if name not in sys.modules]
for _name in _absent:
    # An import of it fails, as if it were not installed.
    sys.modules[_name] = None  # type: ignore[assignment]
try:
    import kopf
finally:
    for _name in _absent:
        del sys.modules[_name]
