"""Input of the checks: the objects of kplane, its programs, and the clock of the API server."""

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
"""Kinds of kplane."""
INSTALL: Final = "kplane init"
UPGRADE_COMMAND: Final = "pip install --upgrade kplane"
"""Upgrade of a command that is older than the installation."""

Kind = TypeVar("Kind", bound=ResourceModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Objects and programs at the time when `look` read them."""

    client: Client
    programs: Programs | None = None
    """None if there are no programs, or if the user may not search for them."""
    control_planes: Sequence[ControlPlane] = ()
    classes: Sequence[ControlPlaneClass] = ()
    endpoints: Sequence[ControlPlaneEndpoint] = ()
    registrations: Sequence[ControlPlaneRegistration] = ()
    snapshots: Sequence[ControlPlaneSnapshot] = ()
    namespaces: Sequence[Mapping[str, Any]] = ()
    """Metadata of all namespaces."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """By kind: the error of a list request."""
    missing: Collection[str] = ()
    """Kinds of kplane that the API server does not serve."""
    cluster: Management = field(default_factory=Management)
    """Address of this cluster for commands."""
    ahead: timedelta = timedelta()
    """Time by which the clock of the API server is ahead of this machine's."""
    looked_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    """Time of the read, by the clock of this machine."""

    @property
    def now(self) -> datetime:
        """Time of the read, by the clock of the API server."""
        return self.looked_at + self.ahead

    @property
    def serves_kinds(self) -> bool:
        """Whether the cluster serves the kinds of kplane."""
        return ControlPlane.resource.kind not in self.missing

    @property
    def has_chart(self) -> bool:
        """Whether kplane may have been installed by its chart, so that values of the chart change it."""
        return self.programs is None or self.programs.namespace is not None

    @property
    def owners(self) -> Mapping[str, str]:
        """Names of control planes by their namespaces."""
        return {management_namespace(control_plane.name): control_plane.name for control_plane in self.control_planes}


async def look(client: Client, *, cluster: Management | None = None) -> Survey:
    """Read all objects. Refused requests are recorded; raises Unreachable if the API server does not answer.

    `cluster` is the address of the cluster for commands; None for the current context.
    """
    unread: dict[str, str] = {}
    missing: list[str] = []
    ahead = await _ahead(client)

    async def read(kind: type[Kind]) -> list[Kind]:
        try:
            items = (await client.list(served(kind.resource))).items
            return [read_as(kind, item) for item in items]
        except NotFound:
            missing.append(kind.resource.kind)  # the check of definitions reports it
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

    # Namespaces come first: the control plane of a namespace that is created meanwhile is then in the later list.
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
    """Compare the clocks by the header Date of an answer, which has whole seconds."""
    await client.probe("/version")
    sent = datetime.now(UTC)
    request = HttpRequest("GET", "/version")
    with translated(server=client.config.server, asked=str(request)):
        async with asyncio.timeout(client.timeout_seconds), client.transport.exchange(request) as response:
            received = datetime.now(UTC)
            date = response.headers.get("Date")
    if date is None:
        return timedelta()
    return parsedate_to_datetime(date) + timedelta(seconds=0.5) - (sent + (received - sent) / 2)
