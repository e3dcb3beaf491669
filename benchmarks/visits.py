"""Clients of control planes behind the gateway. They never retry, and do not check whether a control plane sleeps."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Self

import aiohttp

from kplane.api.names import (
    KUBECONFIG_EXTERNAL_KEY,
    SLEEP_REQUESTED_ANNOTATION,
    kubeconfig_secret_name,
    management_namespace,
)
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import SECRETS
from kplane.provider.client.tls import ssl_context

__all__ = ["Answers", "Visitor", "fall_asleep", "published_config", "take_turns"]

_ANSWER_SECONDS: Final = 90.0
"""Longer than the time for which the gateway holds a request."""
_ASLEEP_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 0.1
_TURN_SECONDS: Final = 10.0
"""24 turns take longer than the idle time after which a control plane sleeps."""
_PAUSE_SECONDS: Final = 0.5
_NAMESPACE: Final = "/api/v1/namespaces/kube-system"
_NOTES: Final = "/api/v1/namespaces/default/configmaps"
_NOTE: Final = "visits"
_APPLY: Final = {"Content-Type": "application/apply-patch+yaml"}


class _WrongAnswer(Exception):
    """Raised for an unexpected response of a control plane."""


_FAILURES: Final = (aiohttp.ClientError, OSError, TimeoutError, _WrongAnswer)


async def published_config(client: Client, name: str, *, key: str) -> ClusterConfig:
    """Read a kubeconfig of a control plane with a client of the management cluster."""
    secret = await client.get(SECRETS, kubeconfig_secret_name(name), namespace=management_namespace(name))
    return ClusterConfig.from_kubeconfig(base64.b64decode(secret["data"][key]))


class Visitor:
    """A client of a control plane that uses the administrator's external kubeconfig."""

    def __init__(self, name: str, *, config: ClusterConfig) -> None:
        self.name: Final = name
        self._server = config.server
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=ssl_context(config)),
            headers={"Authorization": f"Bearer {config.token}"} if config.token is not None else {},
            timeout=aiohttp.ClientTimeout(total=_ANSWER_SECONDS),
        )
        self._noted: str | None = None

    @classmethod
    async def of(cls, client: Client, name: str) -> Visitor:
        """Create a visitor. `client` reads the kubeconfig from the management cluster."""
        return cls(name, config=await published_config(client, name, key=KUBECONFIG_EXTERNAL_KEY))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def ask(self) -> None:
        """Read namespace `kube-system`, which each control plane has."""
        namespace = await self._send("GET", _NAMESPACE)
        if namespace["metadata"]["name"] != "kube-system":
            raise _WrongAnswer(f"asked for kube-system, got {namespace['metadata']['name']}")

    async def work(self, note: str) -> None:
        """Check the note of the last call, write a new note, and list the ConfigMaps."""
        expected, self._noted = self._noted, None
        if expected is not None:
            config_map = await self._send("GET", f"{_NOTES}/{_NOTE}")
            if config_map["data"] != {"note": expected}:
                raise _WrongAnswer(f"wrote {expected}, and read {config_map['data']}")
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": _NOTE}, "data": {"note": note}}
        await self._send("PATCH", f"{_NOTES}/{_NOTE}?fieldManager=visitor&force=true", body)
        self._noted = note
        await self._send("GET", _NOTES)

    async def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        data, headers = (json.dumps(body).encode(), _APPLY) if body is not None else (None, {})
        async with self._session.request(method, f"{self._server}{path}", data=data, headers=headers) as answer:
            if answer.status not in {200, 201}:
                raise _WrongAnswer(f"{method} {path}: {answer.status} {(await answer.text())[:300]}")
            content: dict[str, Any] = await answer.json()
            return content


@dataclass(slots=True)
class Answers:
    """Latencies of the correct responses in seconds, and the errors of all other requests."""

    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    async def measure(self, visitor: Visitor, note: str = "") -> None:
        """Measure `Visitor.ask`, or `Visitor.work` if a note is given."""
        began = time.monotonic()
        try:
            await (visitor.work(note) if note else visitor.ask())
        except _FAILURES as error:
            self.errors.append(f"{visitor.name}: {type(error).__name__}: {error}")
        else:
            self.seconds.append(time.monotonic() - began)

    def percentile(self, share: float) -> float | None:
        """Return this percentile of the latencies in seconds, or None without a correct response."""
        ordered = sorted(self.seconds)
        return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 3) if ordered else None


async def take_turns(visitors: Sequence[Visitor], *, seconds: float) -> tuple[Answers, Answers]:
    """Let visitors work in turns of 10 seconds until the time is up.

    Returns the first answers of all turns, and the later answers.
    """
    first, others, ends, turn = Answers(), Answers(), time.monotonic() + seconds, 0
    while (begins := time.monotonic()) < ends:
        visitor = visitors[turn % len(visitors)]
        turn += 1
        await first.measure(visitor, f"turn {turn}")
        while time.monotonic() < min(ends, begins + _TURN_SECONDS):
            await others.measure(visitor, f"turn {turn}, after {time.monotonic() - begins} seconds")
            await asyncio.sleep(_PAUSE_SECONDS)
    return first, others


async def fall_asleep(client: Client, name: str) -> None:
    """Request sleep for a control plane, and wait for phase Hibernated. Raises TimeoutError."""
    annotations = {SLEEP_REQUESTED_ANNOTATION: datetime.now(UTC).isoformat()}
    await client.patch(CONTROL_PLANES, name, {"metadata": {"annotations": annotations}})
    async with asyncio.timeout(_ASLEEP_SECONDS):
        while (await client.get(CONTROL_PLANES, name)).get("status", {}).get("phase") != "Hibernated":  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)
