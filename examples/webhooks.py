"""Gives each ConfigMap of a namespace with the label `shop: yes` an owner, and refuses those without a price.

    kubectl apply -f examples/webhooks.yaml
    python examples/webhooks.py

The API server has to reach this machine at 127.0.0.1. For others, see docs/multicluster/webhooks.md.
"""

from __future__ import annotations

import os
from typing import Any

from kplane.provider import ClusterConfig, Manager, run
from kplane.provider.webhooks import Admission, Denied, SelfSigned, Webhooks

manager = Manager(ClusterConfig.default(), name="shop")
webhooks = Webhooks(
    manager,
    self_signed=SelfSigned("127.0.0.1", validating=("shop",), mutating=("shop",)),
    port=int(os.environ.get("PORT", "9443")),
)


@webhooks.mutate("v1/ConfigMap")
async def label(admission: Admission[dict[str, Any]]) -> None:
    """Note who wrote the ConfigMap first."""
    admission.object["metadata"].setdefault("annotations", {}).setdefault("shop/owner", admission.user.name)


@webhooks.validate("v1/ConfigMap")
async def check(admission: Admission[dict[str, Any]]) -> None:
    """Refuse a ConfigMap without a price. The user sees the message."""
    if "price" not in admission.object.get("data", {}):
        raise Denied("data.price is missing: add it", code=422)


manager.add(webhooks)
run(manager)
