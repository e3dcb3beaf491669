"""What the checks look at: the objects of kplane, its programs, and the clock of the API server."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeVar

from kplane.api import (
    ControlPlane,
    ControlPlaneClass,
    ControlPlaneEndpoint,
    ControlPlaneRegistration,
    ControlPlaneSnapshot,
    ResourceModel,
)
from kplane.api.names import management_namespace
from kplane.cli.kubeconfigs import Management
from kplane.cli.programs import Programs, find_programs
from kplane.client import ClientError
from kplane.client.watching import read_as, served
from kplane.provider import ApiError, Client, NotFound
from kplane.provider.client.resources import NAMESPACES
from kplane.provider.client.transport import HttpRequest
from kplane.provider.client.wire import translated

__all__ = ["INSTALL", "KINDS", "UPGRADE_COMMAND", "Survey", "look"]

KINDS = (ControlPlane, ControlPlaneClass, ControlPlaneEndpoint, ControlPlaneRegistration, ControlPlaneSnapshot)
"""The kinds of kplane."""
INSTALL: Final = "kplane init"
UPGRADE_COMMAND: Final = "pip install --upgrade kplane"
"""Mends a command that is older than what it looks at."""

Kind = TypeVar("Kind", bound=ResourceModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Everything, as it was when `look` read it."""

    client: Client
    programs: Programs | None = None
    """None: there are none, or the user may not look for them."""
    control_planes: Sequence[ControlPlane] = ()
    classes: Sequence[ControlPlaneClass] = ()
    endpoints: Sequence[ControlPlaneEndpoint] = ()
    registrations: Sequence[ControlPlaneRegistration] = ()
    snapshots: Sequence[ControlPlaneSnapshot] = ()
    namespaces: Sequence[Mapping[str, Any]] = ()
    """Metadata of all namespaces."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """By kind: why it could not be read."""
    missing: Collection[str] = ()
    """The kinds of kplane that the API server does not serve."""
    cluster: Management = field(default_factory=Management)
    """How a command finds this cluster."""
    ahead: timedelta = timedelta()
    """How far the clock of the API server is ahead of this machine's."""
    looked_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    """By the clock of this machine."""

    @property
    def now(self) -> datetime:
        """The time of the look, by the clock of the API server."""
        return self.looked_at + self.ahead

    @property
    def serves_kinds(self) -> bool:
        """Whether something of kplane was installed on the cluster."""
        return ControlPlane.resource.kind not in self.missing

    @property
    def has_chart(self) -> bool:
        """Whether kplane may have been installed by its chart, so that values of the chart change it."""
        return self.programs is None or self.programs.namespace is not None

    @property
    def owners(self) -> Mapping[str, str]:
        """The control planes by their namespaces."""
        return {management_namespace(each.name): each.name for each in self.control_planes}


async def look(client: Client, *, cluster: Management | None = None) -> Survey:
    """Read everything. What the user may not read is noted; raises Unreachable if the API server does not answer.

    `cluster` is how a command finds it; None: as the current context.
    """
    unread: dict[str, str] = {}
    missing: list[str] = []
    ahead = await _ahead(client)

    async def read(kind: type[Kind]) -> list[Kind]:
        try:
            found = (await client.list(served(kind.resource))).items
            return [read_as(kind, each) for each in found]
        except NotFound:
            missing.append(kind.resource.kind)  # the check of definitions says so
            return []
        except (ApiError, ClientError) as error:
            unread[kind.resource.kind] = str(error)
            return []

    async def read_namespaces() -> list[dict[str, Any]]:
        try:
            return (await client.list(NAMESPACES, metadata_only=True)).items
        except ApiError as error:
            unread[NAMESPACES.kind] = str(error)
            return []

    async def read_programs() -> Programs | None:
        try:
            return await find_programs(client)
        except ApiError as error:
            unread["Pod"] = str(error)
            return None

    # Namespaces first: of one that is made meanwhile, the control plane is known.
    namespaces = await read_namespaces()
    return Survey(
        client=client,
        programs=await read_programs(),
        control_planes=await read(ControlPlane),
        classes=await read(ControlPlaneClass),
        endpoints=await read(ControlPlaneEndpoint),
        registrations=await read(ControlPlaneRegistration),
        snapshots=await read(ControlPlaneSnapshot),
        namespaces=namespaces,
        unread=unread,
        missing=missing,
        cluster=cluster or Management(),
        ahead=ahead,
    )


async def _ahead(client: Client) -> timedelta:
    """Compare the clocks by the time that the API server puts on its answers; that has whole seconds."""
    await client.probe("/version")
    sent = datetime.now(UTC)
    asked = HttpRequest("GET", "/version")
    with translated(server=client.config.server, asked=str(asked)):
        async with asyncio.timeout(client.timeout_seconds), client.transport.exchange(asked) as response:
            received = datetime.now(UTC)
            date = response.headers.get("Date")
    if date is None:
        return timedelta()
    return parsedate_to_datetime(date) + timedelta(seconds=0.5) - (sent + (received - sent) / 2)
