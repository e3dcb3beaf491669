"""Lease by which a replica of the gateway reports its presence and its progress."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from kplane.api.names import IN_FLIGHT_ANNOTATION, SERVED_ANNOTATION
from kplane.gateway.control_planes import Progress
from kplane.gateway.data_plane import DataPlane
from kplane.gateway.presence import Presence, read_newest_progress, replica_of
from kplane.provider import Client
from kplane.provider.aio.cancellation import end_tasks


def test_replica_name_is_unique_and_stable_per_directory(tmp_path: Path) -> None:
    first_directory, second_directory = tmp_path / "one", tmp_path / "two"
    for directory in (first_directory, second_directory):
        directory.mkdir()
    assert replica_of(first_directory) != replica_of(second_directory)
    assert replica_of(first_directory) == replica_of(first_directory)


class Leases:
    """Fake client that records the annotations of each write of the Lease."""

    def __init__(self) -> None:
        self.written: list[dict[str, str]] = []
        self.items: list[dict[str, Any]] = []

    async def apply(self, _: Any, lease: dict[str, Any], *, force: bool) -> None:
        self.written.append(lease["metadata"]["annotations"])

    async def list(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(items=self.items)


class Plane:
    held: Mapping[str, Any] = {}
    in_flight: Mapping[str, Any] = {}

    async def quiet(self) -> Mapping[str, str]:
        return {}


async def test_presence_batches_many_changes_into_few_lease_writes(eventually: Callable[..., Any]) -> None:
    leases, served = Leases(), list[Progress]()
    presence = Presence(
        cast("Client", leases),
        cast("DataPlane", Plane()),
        namespace="kplane-gateway",
        replica="replica",
        served=lambda: served[-1] if served else None,
    )
    assert not presence.is_current
    task = asyncio.create_task(presence.run())
    try:
        await eventually(lambda: leases.written)
        assert SERVED_ANNOTATION not in leases.written[-1], "a replica that starts serves nothing yet"
        assert presence.is_current
        for version in range(1, 101):
            served.append(Progress(7, version))
            presence.look()
            await asyncio.sleep(0)
        progress = {"controlplanes": "7", "secrets": "100"}
        await eventually(
            lambda: json.loads(leases.written[-1].get(SERVED_ANNOTATION, "{}")), lambda last: last == progress
        )
        assert len(leases.written) <= 3
    finally:
        await end_tasks([task])


async def test_presence_annotates_changes_in_flight_until_they_end(eventually: Callable[..., Any]) -> None:
    leases, plane = Leases(), Plane()
    presence = Presence(cast("Client", leases), cast("DataPlane", plane), namespace="kplane-gateway", replica="replica")
    task = asyncio.create_task(presence.run())
    try:
        await eventually(lambda: leases.written)
        assert IN_FLIGHT_ANNOTATION not in leases.written[-1]
        plane.in_flight = {"uid-one": {"count": 1, "oldest": []}}
        presence.look()
        annotation = await eventually(lambda: leases.written[-1].get(IN_FLIGHT_ANNOTATION))
        assert json.loads(annotation) == plane.in_flight
        plane.in_flight = {}
        presence.look()
        await eventually(lambda: IN_FLIGHT_ANNOTATION not in leases.written[-1])
    finally:
        await end_tasks([task])


async def test_newest_progress_is_that_of_live_replicas() -> None:
    leases = Leases()
    now = datetime.now(UTC)

    def lease(served: str | None, *, age: float) -> dict[str, Any]:
        annotations = {} if served is None else {SERVED_ANNOTATION: served}
        spec = {"renewTime": (now - timedelta(seconds=age)).isoformat()}
        return {"metadata": {"annotations": annotations}, "spec": spec}

    listed = [
        lease('{"controlplanes": "7", "secrets": "3"}', age=1),
        lease('{"controlplanes": "5", "secrets": "4"}', age=14),
        lease(None, age=1),
        lease("damaged", age=1),
        lease('{"controlplanes": "99", "secrets": "99"}', age=16),
        {"metadata": {}},
    ]
    leases.items = listed
    assert await read_newest_progress(cast("Client", leases), namespace="kplane-gateway") == (7, 4)
    leases.items = []
    assert await read_newest_progress(cast("Client", leases), namespace="kplane-gateway") == (0, 0)
