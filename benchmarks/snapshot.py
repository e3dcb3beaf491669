"""Measures snapshot, restore and clone of one control plane's data: `python -m benchmarks.snapshot --keys 10000`.

Fills an etcd with objects of 1 KiB, each with a uid and an owner reference. `--large N` adds N objects of 1.45 MB with
adjacent keys. Then runs the operator's code for snapshot, restore and clone, without API server and without the pauses
between reconciles. Prints JSON with the medians of all rounds:
- `snapshot_seconds`: read the data at a single revision, encrypt them, write them to a volume, and read the file again;
- `restore_seconds`: read the keys of the file, decrypt it, write its data below another prefix, and compare them;
- `clone_seconds`: copy the data below another prefix, with fresh uids.

All programs share this machine, so the result includes their load.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyrage

from benchmarks.mirror import scratch_etcd
from benchmarks.programs import print_result
from kplane.api import RestoreStatus
from kplane.binaries.programs import resolve
from kplane.controlplane_operator.backup.storage import Volume
from kplane.controlplane_operator.snapshots.origins import LivingOrigin, SavedOrigin
from kplane.controlplane_operator.snapshots.saving import Saved, save_snapshot
from kplane.controlplane_operator.snapshots.source import Source
from kplane.controlplane_operator.snapshots.storage import SnapshotStorage
from kplane.data import Client, Cloning, Operation, Owner, Pair, Put, claim, delete_owned, digest, write_copy

_ORIGINAL: Final = "/clusters/original/"
_COPY: Final = "/clusters/copy/"
_OWNER: Final = Owner(str(uuid.UUID(int=1)), "copy")
_FILE: Final = "benchmark.age"
_OBJECT_BYTES: Final = 600
_LARGE_BYTES: Final = 1_450_000
_BATCH: Final = 100


@dataclass(frozen=True, slots=True)
class Bench:
    """Runs the operations of a round."""

    client: Client
    storage: SnapshotStorage
    identity: pyrage.x25519.Identity

    async def snapshot(self) -> Saved:
        """Save the data to a file."""
        source = Source(self.client, _ORIGINAL, {"controlPlane": "original"})
        return await save_snapshot(source, to=self.storage, name=_FILE)

    async def restore(self, saved: Saved) -> None:
        """Restore the file below the prefix of the copy, and compare the data."""
        origin = SavedOrigin(self.storage, RestoreStatus(location=_FILE, sha256=saved.sha256), keys=[self.identity])
        async for _ in origin.pairs():
            pass

        async def check() -> None:
            if origin.archived is None or await digest(self.client, _COPY) != origin.archived.digest:
                raise RuntimeError("the data are not those that were saved")

        await claim(self.client, _COPY, owner=_OWNER)
        await write_copy(self.client, origin.pairs(), _COPY, owner=_OWNER, check=check)

    async def clone(self) -> None:
        """Clone the data with fresh uids below the prefix of the copy."""
        origin, cloning = LivingOrigin(Source(self.client, _ORIGINAL, {})), Cloning()

        async def cloned() -> AsyncIterator[Iterable[Pair]]:
            async for pairs in origin.pairs():
                yield await asyncio.to_thread(cloning.copied, pairs)

        async for pairs in origin.pairs():
            await asyncio.to_thread(cloning.learn, pairs)
        await claim(self.client, _COPY, owner=_OWNER)
        await write_copy(self.client, cloned(), _COPY, owner=_OWNER)

    async def clear(self, *, keys: int) -> None:
        """Delete the copy. Raises RuntimeError unless it had all objects."""
        deleted = await delete_owned(self.client, _COPY, owner=_OWNER)
        # The copy also has the key that marks it.
        if deleted != keys + 1:
            raise RuntimeError(f"the copy had {deleted} keys, and not {keys} and a mark")


async def _fill(client: Client, *, keys: int, large: int) -> None:
    generator, batch, owner = random.Random(keys), list[Operation](), ""  # noqa: S311 - reproducible
    value = generator.randbytes(_OBJECT_BYTES // 2).hex()
    for number in range(keys):
        name, uid = f"object-{number:06d}", str(uuid.UUID(int=generator.getrandbits(128), version=4))
        references = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner or uid}]
        metadata = {"name": name, "namespace": "default", "uid": uid, "ownerReferences": references}
        body = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "data": {"value": value}}
        batch.append(Put(f"{_ORIGINAL}configmaps/default/{name}".encode(), json.dumps(body).encode()))
        owner = uid
        if len(batch) == _BATCH or number == keys - 1:
            await client.apply(batch)
            batch = []
    for number in range(large):
        metadata = {"name": f"large-{number}", "namespace": "default", "uid": str(uuid.uuid4())}
        body = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "data": {"value": "x" * _LARGE_BYTES}}
        await client.put(f"{_ORIGINAL}configmaps/default/large-{number}".encode(), json.dumps(body).encode())


async def _run(*, keys: int, large: int, rounds: int, directory: Path) -> dict[str, Any]:
    load, identity = os.getloadavg(), pyrage.x25519.Identity.generate()
    durations: dict[str, list[float]] = {"snapshot": [], "restore": [], "clone": []}

    @contextlib.contextmanager
    def timed(what: str) -> Any:
        began = time.monotonic()
        yield
        durations[what].append(time.monotonic() - began)

    (directory / "volume").mkdir()
    async with scratch_etcd(directory, binaries=resolve()) as scratch:
        with contextlib.closing(SnapshotStorage(Volume(directory / "volume"), [identity.to_public()])) as storage:
            bench = Bench(scratch.client, storage, identity)
            await _fill(scratch.client, keys=keys, large=large)
            for _ in range(rounds):
                with timed("snapshot"):
                    snapshot = await bench.snapshot()
                with timed("restore"):
                    await bench.restore(snapshot)
                await bench.clear(keys=keys + large)
                with timed("clone"):
                    await bench.clone()
                await bench.clear(keys=keys + large)
    return {
        "keys": keys,
        "large": large,
        "bytes": snapshot.archived.size,
        **{f"{what}_seconds": round(statistics.median(each), 2) for what, each in durations.items()},
        "seconds_of_each_round": {what: [round(second, 2) for second in each] for what, each in durations.items()},
        "load_average": [round(each, 1) for each in (*load, *os.getloadavg())],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.snapshot", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=10_000, help="objects of the control plane (default: %(default)s)")
    parser.add_argument("--large", type=int, default=0, help="objects of 1.45 MB beside them (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is done (default: %(default)s)")
    given = parser.parse_args(arguments)
    if given.keys < 1 or given.rounds < 1 or given.large < 0:
        parser.error("--keys and --rounds need at least 1, and --large at least 0")
    with tempfile.TemporaryDirectory(prefix="kplane-benchmark-") as directory:
        result = asyncio.run(_run(keys=given.keys, large=given.large, rounds=given.rounds, directory=Path(directory)))
    print_result(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
