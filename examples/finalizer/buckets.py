"""Keeps a file in a store for each Bucket of each cluster, and deletes the file with the Bucket.

python examples/finalizer/buckets.py clusters store
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

from kplane.provider import CacheScope, Cluster, Manager, Request, Resource, controller, errors, objects, run
from kplane.provider.providers.file import FileProvider

BUCKETS: Final = Resource("storage.example.com/v1", "Bucket", "buckets", namespaced=True)
FINALIZER: Final = "storage.example.com/file"


class Buckets:
    """Reconciles Buckets. The uid of a Bucket names its file, so Buckets of the same name have different files."""

    def __init__(self, store: Path) -> None:
        self._store = store

    async def reconcile(self, request: Request, cluster: Cluster) -> None:
        """Bring the store, the Secret and the status in line with a Bucket."""
        bucket = await objects.or_none(cluster.cache.get(BUCKETS, request))
        if bucket is None:
            return
        failure: Exception | None = None
        ready: dict[str, Any] = {"reason": "Provided", "observed_generation": bucket["metadata"]["generation"]}
        file = self._store.absolute() / bucket["metadata"]["uid"]
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": f"{request.name}-bucket"}}
        try:
            if "deletionTimestamp" in bucket["metadata"]:
                # If the store is away, this fails: its files are not gone then.
                file.unlink(missing_ok=self._store.exists())
                # If the process ends before this write, the next process deletes again.
                await objects.remove_finalizer(cluster.client, bucket, FINALIZER)
                return
            # No file exists whose Bucket could go without a cleanup.
            bucket = await objects.add_finalizer(cluster.client, bucket, FINALIZER)
            file.write_text(f"{bucket['spec']['quotaMiB']} MiB\n")
            # Kubernetes deletes the Secret with the Bucket.
            await objects.apply_owned(cluster, bucket, [{**secret, "stringData": {"address": file.as_uri()}}])
        except (OSError, errors.ObjectTaken) as error:
            failure = error
            ready |= {"reason": type(error).__name__, "message": str(error)}
        await objects.update_status(
            cluster.client, bucket, lambda status: objects.set_condition(status, "Ready", failure is None, **ready)
        )
        if failure is not None:
            raise failure


if __name__ == "__main__":
    scopes = {"v1/Secret": CacheScope(label_selector=objects.OWNER_LABEL)}
    manager = Manager(None, FileProvider(directories=[sys.argv[1]]), cache_scopes=scopes, name="buckets")
    controller(manager).for_(BUCKETS).owns("v1/Secret").build(Buckets(Path(sys.argv[2])).reconcile)
    run(manager)
