"""Serves the page on this machine, for one person: with the rights of that person's kubeconfig, and read-only."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import resources
from typing import Final, Generic, TypeVar

from aiohttp import web

from kplane.api import ControlPlane, ControlPlaneRegistration, ResourceModel
from kplane.cli.programs import Programs, find_programs
from kplane.cli.ui.fleet import show_fleet
from kplane.cli.usage import Usage, UsageMeter
from kplane.client import ControlPlanes
from kplane.client.watching import follow
from kplane.provider import Client, ProviderError
from kplane.provider.errors import Forbidden

__all__ = ["Measured", "serve"]

_HOST: Final = "127.0.0.1"
_MEASURED_SECONDS: Final = 10.0
"""Programs are asked so seldom, as the table does not need more."""
_FILES: Final = {
    "": ("page.html", "text/html"),
    "page.css": ("page.css", "text/css"),
    "page.js": ("page.js", "text/javascript"),
}
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none';"
        " form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

Kind = TypeVar("Kind", bound=ResourceModel)


@dataclass(slots=True)
class Measured:
    """Keeps what control planes take."""

    usages: Mapping[str, Usage] = field(default_factory=dict)
    problems: Sequence[str] = ()
    """What is not known, and why."""
    looked_at: datetime | None = None
    """When the API server answered last, by the clock of this machine."""

    async def measure(self, control_planes: ControlPlanes) -> None:
        meter: UsageMeter | None = None
        while True:
            try:
                if meter is None:
                    meter = UsageMeter(control_planes, await _programs(control_planes.client))
                self.usages = {each.name: each for each in await meter.look()}
                self.looked_at = datetime.now(UTC)
                self.problems = list(meter.problems)
            except ProviderError as error:
                self.problems = [str(error)]
            await asyncio.sleep(_MEASURED_SECONDS)


async def _programs(client: Client) -> Programs | None:
    """Find the programs of kplane; a user who may not look for them sees the rest."""
    try:
        return await find_programs(client)
    except Forbidden:
        return None


@dataclass(slots=True)
class _Known(Generic[Kind]):
    """Keeps the objects of one kind as they are now."""

    objects: dict[str, Kind] = field(default_factory=dict)

    async def follow(self, control_planes: ControlPlanes, kind: type[Kind]) -> None:
        async with contextlib.aclosing(follow(control_planes.client, kind)) as changes:
            async for change in changes:
                if change.type == "DELETED":
                    self.objects.pop(change.object.name, None)
                else:
                    self.objects[change.object.name] = change.object


async def serve(control_planes: ControlPlanes, *, port: int, ready: Callable[[str], None]) -> None:
    """Serve the page on 127.0.0.1 until it is cancelled. Tells `ready` its address, which has a key in it.

    The key keeps other users of the machine, and pages of other sites, away. `port` 0 takes a free one. Raises OSError
    if the port is taken, and `kplane.provider.ProviderError` if the API server refuses to list.
    """
    known, registered, measured = _Known[ControlPlane](), _Known[ControlPlaneRegistration](), Measured()
    key = secrets.token_urlsafe(24)
    app = web.Application()

    async def fleet(_: web.Request) -> web.Response:
        content = show_fleet(known.objects.values(), registered.objects.values(), usages=measured.usages)
        around = {
            "server": control_planes.client.config.server,
            "unknown": list(measured.problems),
            "lookedAt": measured.looked_at.isoformat() if measured.looked_at is not None else None,
        }
        return web.json_response({**around, **content}, headers=_HEADERS)

    app.router.add_get(f"/{key}/fleet", fleet)
    for name, (file, content_type) in _FILES.items():
        app.router.add_get(f"/{key}/{name}", _answer(file, content_type=content_type))
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(known.follow(control_planes, ControlPlane), name="ui: control planes")
            tasks.create_task(registered.follow(control_planes, ControlPlaneRegistration), name="ui: registrations")
            tasks.create_task(measured.measure(control_planes), name="ui: use")
            async with _listening(app, port=port) as chosen:
                ready(f"http://{_HOST}:{chosen}/{key}/")
                await asyncio.Event().wait()
    except ExceptionGroup as group:
        raise group.exceptions[0] from None


def _answer(file: str, *, content_type: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    body = resources.files("kplane.cli.ui").joinpath(file).read_bytes()

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type=content_type, charset="utf-8", headers=_HEADERS)

    return answer


@contextlib.asynccontextmanager
async def _listening(app: web.Application, *, port: int) -> AsyncIterator[int]:
    """Listen inside of this context, at the port that is returned."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, _HOST, port).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
