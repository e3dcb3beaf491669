"""Keeps a directory of a store for each Bucket of each cluster, and deletes it with the Bucket.

python examples/finalizer/buckets.py --clusters clusters --store store
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import datetime as dt
import logging
import shutil
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Final

from kplane.provider import (
    CacheScope,
    Cluster,
    Manager,
    NotFound,
    ObjectKey,
    ProviderError,
    Request,
    Resource,
    Result,
    controller,
    run,
)
from kplane.provider.providers.file import FileProvider

log = logging.getLogger("buckets")

BUCKETS: Final = Resource("storage.example.com/v1", "Bucket", "buckets", namespaced=True)
FINALIZER: Final = "storage.example.com/directory"
LABEL: Final = "storage.example.com/bucket"
"""Label of the Bucket's Secret. The caches keep no other Secrets."""
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
        bucket = await found(cluster.cache.get(BUCKETS, request))
        if bucket is None:
            return None
        try:
            if "deletionTimestamp" in bucket["metadata"]:
                await self._remove(bucket, cluster)
                return None
            address = await self._provide(bucket, cluster)
        except Blocked as error:
            await report(bucket, cluster, {"status": "False", "reason": error.reason, "message": str(error)})
            raise
        ready = {"status": "True", "reason": "Provided", "message": ""}
        await report(bucket, cluster, ready, address=address)
        return Result(requeue_after_seconds=CHECK_SECONDS)

    async def _provide(self, bucket: Object, cluster: Cluster) -> str:
        metadata = bucket["metadata"]
        if FINALIZER not in metadata.get("finalizers", []):
            # First of all: no directory exists whose Bucket could go without a cleanup.
            await write_finalizers(bucket, cluster, [*metadata.get("finalizers", []), FINALIZER])
        try:
            address = await self._store.put(metadata["uid"], quota_mib=bucket["spec"]["quotaMiB"])
        except OSError as error:
            raise Blocked("StoreFailed", f"failed to make the directory: {error}") from error
        await write_secret(bucket, cluster, address=address)
        return address

    async def _remove(self, bucket: Object, cluster: Cluster) -> None:
        finalizers = bucket["metadata"].get("finalizers", [])
        if FINALIZER not in finalizers:
            return  # Cleaned up; a finalizer of others holds it.
        try:
            await self._store.delete(bucket["metadata"]["uid"])
        except OSError as error:
            raise Blocked("StoreFailed", f"failed to delete the directory: {error}") from error
        # Last of all: if the process ends before, the next one deletes again.
        others = [each for each in finalizers if each != FINALIZER]
        await found(write_finalizers(bucket, cluster, others))
        log.info("removed")


async def found(answer: Awaitable[Object]) -> Object | None:
    """Await an object; None if it does not exist."""
    try:
        return await answer
    except NotFound:
        return None


def key_of(bucket: Object) -> ObjectKey:
    """Return namespace and name."""
    return ObjectKey(bucket["metadata"]["namespace"], bucket["metadata"]["name"])


async def write_finalizers(bucket: Object, cluster: Cluster, finalizers: list[str]) -> Object:
    """Write the list of finalizers. Raises Conflict if another program has changed the Bucket since."""
    change = {"resourceVersion": bucket["metadata"]["resourceVersion"], "finalizers": finalizers}
    return await cluster.client.patch(BUCKETS, key_of(bucket), {"metadata": change})


async def write_secret(bucket: Object, cluster: Cluster, *, address: str) -> None:
    """Write the address into a Secret that Kubernetes deletes with the Bucket. Raises Blocked if others have it."""
    owner = bucket["metadata"]
    key = ObjectKey(owner["namespace"], f"{owner['name']}-bucket")
    data = {"address": base64.b64encode(address.encode()).decode()}
    # What the cache lacks may have been made a moment ago, or have no label.
    secret = await found(cluster.cache.get("v1/Secret", key)) or await found(cluster.client.get("v1/Secret", key))
    if secret is None:
        reference = {"apiVersion": BUCKETS.api_version, "kind": BUCKETS.kind, "name": owner["name"]}
        reference |= {"uid": owner["uid"], "controller": True}
        metadata = {**key._asdict(), "labels": {LABEL: "true"}, "ownerReferences": [reference]}
        await cluster.client.create("v1/Secret", {"metadata": metadata, "data": data})
    elif owner["uid"] not in [each["uid"] for each in secret["metadata"].get("ownerReferences", [])]:
        raise Blocked("SecretTaken", f"Secret {key} is not of this Bucket: delete or rename it")
    elif secret.get("data") != data:
        await cluster.client.patch("v1/Secret", key, {"data": data})


async def report(bucket: Object, cluster: Cluster, ready: Object, *, address: str | None = None) -> None:
    """Write the status if it changes."""
    metadata, before = bucket["metadata"], bucket.get("status", {})
    last: Object = before["conditions"][0] if before.get("conditions") else {}
    since = f"{dt.datetime.now(dt.UTC):%Y-%m-%dT%H:%M:%SZ}"
    if last.get("status") == ready["status"]:
        since = last["lastTransitionTime"]
    condition = {"type": "Ready", **ready, "lastTransitionTime": since}
    status = {**before, "observedGeneration": metadata["generation"], "conditions": [condition]}
    if address is not None:
        status["address"] = address
    if status != before:
        await cluster.client.patch(BUCKETS, key_of(bucket), {"status": status}, subresource="status")
        log.info(ready["reason"])


def make_manager(clusters: Path, *, store: Path) -> Manager:
    """Make the manager of all clusters that have a kubeconfig in a directory."""
    manager = Manager(
        None,
        FileProvider(directories=[clusters]),
        cache_scopes={"v1/Secret": CacheScope(label_selector=LABEL)},
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
