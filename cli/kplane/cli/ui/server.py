"""Server of the page on this machine, for a single user: with the rights of the user's kubeconfig, and read-only."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Generic, TypeVar

from kplane.api import ControlPlane, ControlPlaneRegistration, ResourceModel
from kplane.cli.programs import Programs, find_programs
from kplane.cli.ui.fleet import show_fleet
from kplane.cli.ui.page import serving
from kplane.cli.usage import Usage, UsageMeter
from kplane.client import ControlPlanes
from kplane.client.watching import follow
from kplane.provider import Client, ProviderError
from kplane.provider.errors import Forbidden

__all__ = ["Measured", "serve"]

_MEASURED_SECONDS: Final = 10.0
"""Period of the measurements, which is short enough for the table."""

Kind = TypeVar("Kind", bound=ResourceModel)


@dataclass(slots=True)
class Measured:
    """Resource usage of control planes, measured repeatedly."""

    usages: Mapping[str, Usage] = field(default_factory=dict)
    problems: Sequence[str] = ()
    """Unknown values, with the causes."""
    looked_at: datetime | None = None
    """Time of the last answer of the API server, by the clock of this machine."""

    async def measure(self, control_planes: ControlPlanes) -> None:
        meter: UsageMeter | None = None
        while True:
            try:
                if meter is None:
                    meter = UsageMeter(control_planes, await _programs(control_planes.client))
                self.usages = {usage.name: usage for usage in await meter.look()}
                self.looked_at = datetime.now(UTC)
                self.problems = list(meter.problems)
            except ProviderError as error:
                self.problems = [str(error)]
            await asyncio.sleep(_MEASURED_SECONDS)


async def _programs(client: Client) -> Programs | None:
    """Return the programs of kplane; None if the user has no right to search for them."""
    try:
        return await find_programs(client)
    except Forbidden:
        return None


@dataclass(slots=True)
class _Known(Generic[Kind]):
    """Current objects of a kind."""

    objects: dict[str, Kind] = field(default_factory=dict)

    async def follow(self, control_planes: ControlPlanes, kind: type[Kind]) -> None:
        async with contextlib.aclosing(follow(control_planes.client, kind)) as changes:
            async for change in changes:
                if change.type == "DELETED":
                    self.objects.pop(change.object.name, None)
                else:
                    self.objects[change.object.name] = change.object


async def serve(control_planes: ControlPlanes, *, port: int, ready: Callable[[str], None]) -> None:
    """Serve the page until cancelled, and pass its address to `ready`. Port 0 chooses a free port.

    Raises OSError if the port is in use, and `kplane.provider.ProviderError` if the API server refuses to list.
    """
    control_plane_objects, registered, measured = _Known[ControlPlane](), _Known[ControlPlaneRegistration](), Measured()

    def fleet() -> Mapping[str, Any]:
        return {
            "server": control_planes.client.config.server,
            "unknown": list(measured.problems),
            "lookedAt": measured.looked_at.isoformat() if measured.looked_at is not None else None,
            **show_fleet(control_plane_objects.objects.values(), registered.objects.values(), usages=measured.usages),
        }

    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(control_plane_objects.follow(control_planes, ControlPlane), name="ui: control planes")
            tasks.create_task(registered.follow(control_planes, ControlPlaneRegistration), name="ui: registrations")
            tasks.create_task(measured.measure(control_planes), name="ui: use")
            async with serving(fleet, port=port) as address:
                ready(address)
                await asyncio.Event().wait()
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
