"""Import of kopf without the Kubernetes client libraries that it loads if they are installed.

kopf accepts their objects in functions that the operator does not call. The official client takes 10 MiB. In this
process, kopf does not know the models of those clients afterwards.
"""

from __future__ import annotations

import sys

__all__ = ["kopf"]

_absent = [name for name in ("kubernetes", "kubernetes_asyncio", "pykube") if name not in sys.modules]
for _name in _absent:
    # With this entry, an import fails as if the package were not installed.
    sys.modules[_name] = None  # type: ignore[assignment]
try:
    import kopf
finally:
    for _name in _absent:
        del sys.modules[_name]
