"""Events of a control plane and of its related objects, in order of time."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Self

from kplane.api import ControlPlane, ControlPlaneEndpoint, ControlPlaneRegistration, ControlPlaneSnapshot
from kplane.api.names import API_VERSION, management_namespace
from kplane.client.watching import follow_objects, served
from kplane.provider import Client
from kplane.provider.client.resources import EVENTS

__all__ = ["ControlPlaneEvents", "KubernetesEvent"]

_CLUSTER_SCOPED: Final = "default"
"""Namespace of the Events of cluster-scoped objects."""
_REFERRING: Final = (ControlPlaneRegistration, ControlPlaneSnapshot)
"""Kinds with a `spec.controlPlaneRef`."""
_NEVER: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesEvent:
    """An Event of `v1` or `events.k8s.io/v1`."""

    last: datetime
    """The time of the last occurrence."""
    type: str
    """Normal or Warning."""
    reason: str
    kind: str
    """Kind of the involved object."""
    name: str
    """Name of the involved object."""
    uid: str
    """UID of the involved object; empty if the Event has none."""
    count: int
    """The number of occurrences."""
    message: str
    raw: Mapping[str, Any] = field(repr=False)
    """The Event object of the API server."""

    @classmethod
    def read(cls, obj: Mapping[str, Any]) -> Self:
        """Return the Event of an object of `v1`."""
        about = obj.get("involvedObject") or {}
        series = obj.get("series") or {}
        moments = (
            series.get("lastObservedTime"),
            obj.get("lastTimestamp"),
            obj.get("eventTime"),
            obj.get("firstTimestamp"),
            (obj.get("metadata") or {}).get("creationTimestamp"),
        )
        return cls(
            last=next((datetime.fromisoformat(moment) for moment in moments if moment), _NEVER),
            type=obj.get("type") or "Normal",
            reason=obj.get("reason") or "",
            kind=about.get("kind") or "",
            name=about.get("name") or "",
            uid=about.get("uid") or "",
            count=series.get("count") or obj.get("count") or 1,
            message=(obj.get("message") or "").strip(),
            raw=obj,
        )

    @property
    def about(self) -> str:
        """The involved object, as `Kind/name`."""
        return f"{self.kind}/{self.name}"


class ControlPlaneEvents:
    """Reads and follows the Events of a control plane.

    These are the Events of the ControlPlane, of its registrations, endpoint and snapshots, and of its namespace.
    """

    def __init__(self, client: Client, control_plane: ControlPlane) -> None:
        self._client = client
        self._name = control_plane.name
        self._namespace = management_namespace(control_plane.name)
        endpoint = control_plane.spec.endpoint_ref
        self._related = {
            (ControlPlane.resource.kind, control_plane.name),
            (ControlPlaneEndpoint.resource.kind, endpoint.name if endpoint is not None else control_plane.name),
        }
        self._unrelated: set[tuple[str, str]] = set()

    async def read(self) -> Sequence[KubernetesEvent]:
        """Return the existing Events, the latest last."""
        await self._relate()
        kplane = f"involvedObject.apiVersion={API_VERSION}"
        objects = [
            *(await self._client.list(EVENTS, namespace=_CLUSTER_SCOPED, field_selector=kplane)).items,
            *(await self._client.list(EVENTS, namespace=self._namespace)).items,
        ]
        events = [KubernetesEvent.read(event) for event in objects]
        return sorted([event for event in events if self._is_related(event)], key=lambda each: each.last)

    async def follow(self) -> AsyncGenerator[KubernetesEvent, None]:
        """Yield the existing Events, the latest last, then each new or repeated Event, without an end."""
        seen = set[str]()
        for existing in await self.read():
            seen.add(existing.raw["metadata"]["resourceVersion"])
            yield existing
        changes = follow_objects(self._client, EVENTS, namespaces=(_CLUSTER_SCOPED, self._namespace))
        async with contextlib.aclosing(changes):
            async for change in changes:
                if change.kind == "DELETED" or change.resource_version in seen:
                    continue
                event = KubernetesEvent.read(change.object)
                if await self._is_of(event):
                    yield event

    async def _relate(self) -> None:
        """Record the registrations and snapshots of the control plane."""
        for kind in _REFERRING:
            response = await self._client.list(
                served(kind.resource), field_selector=f"spec.controlPlaneRef.name={self._name}", metadata_only=True
            )
            self._related |= {(kind.resource.kind, item["metadata"]["name"]) for item in response.items}

    async def _is_of(self, event: KubernetesEvent) -> bool:
        """Return whether an Event belongs to the control plane; objects that are not recorded yet are looked up."""
        involved = event.kind, event.name
        is_referring_kind = any(event.kind == kind.resource.kind for kind in _REFERRING)
        if is_referring_kind and involved not in self._related and involved not in self._unrelated:
            await self._relate()
            if involved not in self._related:
                self._unrelated.add(involved)
        return self._is_related(event)

    def _is_related(self, event: KubernetesEvent) -> bool:
        if event.raw["metadata"].get("namespace") == self._namespace:
            return True
        is_ours = event.raw["involvedObject"].get("apiVersion") == API_VERSION
        return is_ours and (event.kind, event.name) in self._related
