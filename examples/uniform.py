"""Keeps the ConfigMap default/settings the same in each cluster that has a kubeconfig in a directory.

python examples/uniform.py clusters
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

from kplane.provider import CacheScope, Cluster, Manager, ObjectKey, Request, controller, enqueue_mapped, run
from kplane.provider.objects import create_or_update
from kplane.provider.providers.file import FileProvider

log = logging.getLogger("uniform")

KEY: Final = ObjectKey("default", "settings")
SCOPES: Final = {
    "v1/ConfigMap": CacheScope(namespaces=(KEY.namespace,), name=KEY.name),
    "v1/Namespace": CacheScope(name=KEY.namespace),
}


def restore(settings: dict[str, Any]) -> None:
    """Set the data. Labels and annotations of others stay."""
    settings["data"] = {"colour": "green", "level": "3"}


async def reconcile(request: Request, cluster: Cluster) -> None:
    """Create the ConfigMap, or undo what others changed in its data."""
    metadata = {"namespace": request.namespace, "name": request.name}
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    outcome = await create_or_update(cluster.client, settings, restore, cache=cluster.cache)
    log.info(outcome.result)


if __name__ == "__main__":
    manager = Manager(None, FileProvider(directories=[sys.argv[1]]), cache_scopes=SCOPES, name="uniform")
    builder = controller(manager).for_("v1/ConfigMap")
    # A cluster without the ConfigMap sends no event of it. Its namespace leads to the same request.
    builder.watches("v1/Namespace", enqueue_mapped(lambda _cluster, _namespace: [KEY])).build(reconcile)
    run(manager)
