"""Keeps a directory of a store for each Bucket of each cluster, and deletes it with the Bucket.

python examples/finalizer/buckets.py --clusters clusters --store store
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
from pathlib import Path
from typing import Any, Final

from kplane.provider import (
    CacheScope,
    Cluster,
    Manager,
    ProviderError,
    Request,
    Resource,
    Result,
    controller,
    run,
)
from kplane.provider.errors import ObjectTaken
from kplane.provider.objects import (
    OWNER_LABEL,
    add_finalizer,
    apply_owned,
    or_none,
    remove_finalizer,
    set_condition,
    update_status,
)
from kplane.provider.providers.file import FileProvider

log = logging.getLogger("buckets")

BUCKETS: Final = Resource("storage.example.com/v1", "Bucket", "buckets", namespaced=True)
FINALIZER: Final = "storage.example.com/directory"
CHECK_SECONDS: Final = 300.0
"""The store sends no events, so the operator looks after its directories from time to time."""

Object = dict[str, Any]


class Blocked(ProviderError):
    """The Bucket cannot be served now: the status says why, and the reconcile is retried."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason: Final = reason


class Store:
    """A directory that stands for the API of a cloud. Each call may be repeated, also if it was cut off halfway."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def put(self, name: str, *, quota_mib: int) -> str:
        """Make a bucket, or set its quota. Returns its address. Raises OSError."""
        return await asyncio.to_thread(self._put, name, quota_mib)

    async def delete(self, name: str) -> None:
        """Delete a bucket with all that is in it, if it exists. Raises OSError."""
        await asyncio.to_thread(self._delete, name)

    def _put(self, name: str, quota_mib: int) -> str:
        bucket = self._directory / name
        bucket.mkdir(exist_ok=True)
        # Readers find no empty quota while a repeated call writes it again.
        written = bucket / "quota.new"
        written.write_text(f"{quota_mib} MiB\n")
        written.replace(bucket / "quota")
        return bucket.absolute().as_uri()

    def _delete(self, name: str) -> None:
        # It fails if the store itself is away: its buckets are not gone then.
        if (bucket := self._directory / name) in self._directory.iterdir():
            shutil.rmtree(bucket)


class Buckets:
    """Reconciles Buckets.

    In the store, a bucket is named by its uid. So a Bucket of the same name, in another cluster or later, is another.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def reconcile(self, request: Request, cluster: Cluster) -> Result | None:
        """Bring the store, the Secret and the status in line with a Bucket."""
        bucket = await or_none(cluster.cache.get(BUCKETS, request))
        if bucket is None:
            return None
        try:
            if "deletionTimestamp" in bucket["metadata"]:
                await self._remove(bucket, cluster)
                return None
            # First of all: no directory exists whose Bucket could go without a cleanup.
            bucket = await add_finalizer(cluster.client, bucket, FINALIZER)
            address = await self._provide(bucket, cluster)
        except Blocked as error:
            await report(bucket, cluster, ready=False, reason=error.reason, message=str(error))
            raise
        await report(bucket, cluster, ready=True, reason="Provided", address=address)
        return Result(requeue_after_seconds=CHECK_SECONDS)

    async def _provide(self, bucket: Object, cluster: Cluster) -> str:
        metadata = bucket["metadata"]
        try:
            address = await self._store.put(metadata["uid"], quota_mib=bucket["spec"]["quotaMiB"])
        except OSError as error:
            raise Blocked("StoreFailed", f"failed to make the directory: {error}") from error
        secret = {"metadata": {"name": f"{metadata['name']}-bucket"}, "stringData": {"address": address}}
        try:
            # Kubernetes deletes it with the Bucket.
            await apply_owned(cluster, bucket, [{"apiVersion": "v1", "kind": "Secret", **secret}])
        except ObjectTaken as error:
            raise Blocked("SecretTaken", str(error)) from error
        return address

    async def _remove(self, bucket: Object, cluster: Cluster) -> None:
        if FINALIZER not in bucket["metadata"].get("finalizers", []):
            return  # Cleaned up; a finalizer of others holds it.
        try:
            await self._store.delete(bucket["metadata"]["uid"])
        except OSError as error:
            raise Blocked("StoreFailed", f"failed to delete the directory: {error}") from error
        # Last of all: if the process ends before, the next one deletes again.
        await remove_finalizer(cluster.client, bucket, FINALIZER)
        log.info("removed")


async def report(
    bucket: Object, cluster: Cluster, *, ready: bool, reason: str, message: str = "", address: str | None = None
) -> None:
    """Write the status if it changes."""
    generation = bucket["metadata"]["generation"]

    def change(status: Object) -> None:
        status["observedGeneration"] = generation
        if address is not None:
            status["address"] = address
        if set_condition(status, "Ready", ready, reason=reason, message=message, observed_generation=generation):
            log.info(reason)

    await update_status(cluster.client, bucket, change)


def make_manager(clusters: Path, *, store: Path) -> Manager:
    """Make the manager of all clusters that have a kubeconfig in a directory."""
    manager = Manager(
        None,
        FileProvider(directories=[clusters]),
        cache_scopes={"v1/Secret": CacheScope(label_selector=OWNER_LABEL)},
        name="buckets",
    )
    buckets = Buckets(Store(store))
    controller(manager).for_(BUCKETS).owns("v1/Secret").build(buckets.reconcile)
    return manager


def read_command_line() -> argparse.Namespace:
    """Read where clusters and store are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", type=Path, required=True, help="directory of kubeconfigs")
    parser.add_argument("--store", type=Path, required=True, help="directory for the buckets")
    return parser.parse_args()


if __name__ == "__main__":
    given = read_command_line()
    run(make_manager(given.clusters, store=given.store))
