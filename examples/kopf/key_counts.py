"""A kopf operator as it is written for one cluster: it notes the number of keys of each ConfigMap that asks for it.

kopf run --all-namespaces examples/kopf/key_counts.py
"""

from __future__ import annotations

from typing import Any

import kopf

KEYS = "demo/keys"


@kopf.on.event("v1", "configmaps", labels={"demo": "count"})
def count(body: kopf.Body, patch: kopf.Patch, logger: kopf.Logger, **_: Any) -> None:
    """Write the number into an annotation."""
    keys = str(len(body.get("data", {})))
    if body.metadata.annotations.get(KEYS) != keys:
        patch.metadata.annotations[KEYS] = keys
    logger.info("it has %s keys", keys)
