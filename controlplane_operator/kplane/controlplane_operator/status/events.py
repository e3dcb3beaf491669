"""Kubernetes Events about objects: for people, best effort, and without delay for the caller."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from kplane.api import ResourceModel
from kplane.provider import AlreadyExists, Client, ProviderError
from kplane.provider.client.resources import EVENTS

__all__ = ["Events"]

_log: Final = logging.getLogger(__name__)

_WAITING_AT_MOST: Final = 1000
_MESSAGE_AT_MOST: Final = 1024
_NAMESPACE: Final = "default"
"""Namespace in which Kubernetes keeps the Events of cluster-scoped objects."""
_COMPONENT: Final = "controlplane-operator"


@dataclass(frozen=True, slots=True)
class _Event:
    name: str
    body: dict[str, Any]


class Events:
    """Recorder of Events, which `run` posts. A repeated Event increases the count of the first Event."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._waiting: asyncio.Queue[_Event] = asyncio.Queue(_WAITING_AT_MOST)

    def record(self, about: ResourceModel, *, reason: str, message: str, warning: bool = False) -> None:
        """Queue an Event and return at once. If the queue is full, the Event is dropped."""
        try:
            self._waiting.put_nowait(_event(about, reason=reason, message=message, warning=warning))
        except asyncio.QueueFull:
            _log.warning("dropped the Event %s of %s: %s", reason, about.name, message)

    async def run(self) -> None:
        """Post queued Events until cancelled. Failures are only logged."""
        while True:
            event = await self._waiting.get()
            try:
                await self._post(event)
            except ProviderError as error:
                _log.info("cannot post an Event: %s", error)

    async def _post(self, event: _Event) -> None:
        try:
            await self._client.create(EVENTS, event.body)
        except AlreadyExists:
            existing = await self._client.get(EVENTS, event.name, namespace=_NAMESPACE)
            update = {"count": int(existing.get("count") or 1) + 1, "lastTimestamp": event.body["lastTimestamp"]}
            await self._client.patch(EVENTS, event.name, update, namespace=_NAMESPACE)


def _event(about: ResourceModel, *, reason: str, message: str, warning: bool) -> _Event:
    message = message if len(message) <= _MESSAGE_AT_MOST else f"{message[: _MESSAGE_AT_MOST - 1]}…"
    kind = about.resource.kind
    digest = hashlib.sha256("\0".join((kind, about.metadata.uid or "", reason, message)).encode()).hexdigest()[:16]
    name = f"{about.name[:200].rstrip('.-')}.{digest}"
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    body = {
        "metadata": {"name": name, "namespace": _NAMESPACE},
        "involvedObject": {
            "apiVersion": about.resource.api_version,
            "kind": kind,
            "name": about.name,
            "uid": about.metadata.uid,
        },
        "type": "Warning" if warning else "Normal",
        "reason": reason,
        "message": message,
        "source": {"component": _COMPONENT},
        "reportingComponent": _COMPONENT,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    return _Event(name, body)
