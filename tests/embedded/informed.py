"""Informers of a control plane during a migration. They check for missed events and for older versions."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from kplane.provider import Client, ClusterConfig, Event, Informer
from kplane.provider.client.resources import CONFIG_MAPS, LEASES, Resource

from .ledger_kinds import WIDGETS

__all__ = ["informed"]

_EVENTS: Final = Resource("v1", "Event", "events", namespaced=True)
_FOLLOWED: Final = (CONFIG_MAPS, LEASES, _EVENTS, WIDGETS)

Versions = dict[tuple[str, str], tuple[str, int]]
"""UID and version by namespace and name."""


class _Watcher:
    """An informer, and the objects that its handler received."""

    def __init__(self, client: Client, resource: Resource) -> None:
        self.resource, self.told, self.wrong = resource, Versions(), list[str]()
        self.informer = Informer(client, resource)
        self.informer.add_handler(self._note)

    def _note(self, event: Event) -> None:
        metadata = event.object["metadata"]
        key, current = (metadata["namespace"], metadata["name"]), (metadata["uid"], int(metadata["resourceVersion"]))
        former = self.told.pop(key, None)
        if former is not None and current[1] < former[1]:
            self.wrong.append(f"{self.resource} {key} came with version {current[1]}, after {former[1]}")
        if event.kind != "DELETED":
            self.told[key] = current


@contextlib.asynccontextmanager
async def informed(config: ClusterConfig, *, eventually: Callable[..., Any]) -> AsyncIterator[None]:
    """Watch several kinds while the body runs. Raises AssertionError if an informer missed an event."""
    async with Client(config, field_manager="kplane") as client, contextlib.AsyncExitStack() as stack:
        watchers = [_Watcher(client, resource) for resource in _FOLLOWED]
        for each in watchers:
            stack.push_async_callback(each.informer.aclose)
            each.informer.start()
            await each.informer.wait_synced()
        yield
        for each in watchers:

            async def differs(each: _Watcher = each) -> list[Any]:
                listed = versions((await client.list(each.resource)).items)
                return sorted({*listed.items()} ^ {*versions(each.informer.list()).items()}) + sorted(
                    {*listed.items()} ^ {*each.told.items()}
                )

            # Components such as kube-controller-manager write Leases all the time.
            await eventually(differs, lambda found: found == [], timeout=30)
            assert each.wrong == []


def versions(objects: list[dict[str, Any]]) -> Versions:
    return {
        (item["metadata"]["namespace"], item["metadata"]["name"]): (
            item["metadata"]["uid"],
            int(item["metadata"]["resourceVersion"]),
        )
        for item in objects
    }
