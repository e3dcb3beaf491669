"""Serves `/metrics`, `/healthz` and `/readyz` of a manager."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from kplane.provider.errors import ProviderError
from kplane.provider.manager.checks import Checks
from kplane.provider.manager.manager import Manager
from kplane.provider.serving.listening import listening
from kplane.provider.serving.metrics import ManagerMetrics, Rendering, process_families, render_families

__all__ = ["Serving"]

log: Final = logging.getLogger(__name__)

_OWN_PATHS: Final = ("metrics", "healthz", "readyz")
_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_CLOSE_SECONDS: Final = 2.0


class Serving:
    """Answers Prometheus and the kubelet for as long as the manager runs: `manager.add(Serving(manager, port=8080))`.

    `/healthz` and `/readyz` answer 200 if all checks pass, otherwise 500. `?verbose` lists them, and `/readyz/<name>`
    runs one check. A manager that is stopping is not ready, and neither is one whose provider has not read all that
    stands for clusters (`HasSynced`). An unreachable cluster does not fail a check, because the other clusters go on.
    `cluster_labels` is that of `ManagerMetrics`. The server has no TLS and no authentication, so `host` is the loopback
    address by default. `port=0` takes a free port.

    `/metrics` also shows the metrics of `registry`, such as `prometheus_client.REGISTRY`, and of `collectors`. The
    registry is collected in a thread, as by other servers of prometheus_client. The collectors are collected in the
    loop: they may read the state of the program, and must not block. If two metrics have one name, the first is shown,
    and the other one is logged. `routes` are further routes: `[web.get("/debug", show)]` of `aiohttp.web`.

    Raises ProviderError if a route is below `/metrics`, `/healthz` or `/readyz`.
    """

    def __init__(
        self,
        manager: Manager,
        *,
        host: str = "127.0.0.1",
        port: int = 8080,
        cluster_labels: bool = True,
        registry: CollectorRegistry | None = None,
        collectors: Iterable[Collector] = (),
        routes: Iterable[web.AbstractRouteDef] = (),
    ) -> None:
        self._manager = manager
        self._host = host
        self._port = port
        self._registry = registry
        self._collectors = (ManagerMetrics(manager, cluster_labels=cluster_labels), *collectors)
        self._metrics = Rendering(self._render)
        self._duplicates: set[str] = set()
        self._routes = tuple(routes)
        for route in self._routes:
            _require_free(route)
        self._address: tuple[str, int] | None = None
        self.listening: Final = asyncio.Event()
        """Set while it answers."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens on. Raises ProviderError if it does not listen."""
        if self._address is None:
            raise ProviderError("the server does not listen now")
        return self._address

    async def run(self) -> None:
        """Serve until cancelled. Raises ListenFailed, an OSError, if the port is taken."""
        app = self._app()
        async with listening(app, host=self._host, port=self._port, close_seconds=_CLOSE_SECONDS) as address:
            self._address = address
            self.listening.set()
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self.listening.clear()
                self._address = None

    def _app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/metrics", self._show_metrics)
        for path, checks in (("healthz", self._manager.health_checks), ("readyz", self._manager.ready_checks)):
            question = _Question(path, checks, self._manager)
            app.router.add_get(f"/{path}", question.all)
            app.router.add_get(f"/{path}/{{name}}", question.one)
        app.add_routes(self._routes)
        return app

    async def _render(self) -> bytes:
        found = [family for collector in self._collectors for family in collector.collect()]
        return await asyncio.to_thread(self._render_with, found)

    def _render_with(self, found: Iterable[Metric]) -> bytes:
        """Render these metrics, those of the registry, and those of the process. Runs in a thread."""
        families: dict[str, Metric] = {}
        for family in (*found, *(self._registry.collect() if self._registry is not None else ())):
            if families.setdefault(family.name, family) is not family and family.name not in self._duplicates:
                self._duplicates.add(family.name)
                log.warning("/metrics leaves out a second metric named %s; rename one of the two", family.name)
        # The registry of prometheus_client has the metrics of the process, too.
        others = [family for family in process_families() if family.name not in families]
        return render_families([*others, *families.values()])

    async def _show_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=await self._metrics.text(), headers={"Content-Type": _TEXT})


def _require_free(route: web.AbstractRouteDef) -> None:
    path = route.path if isinstance(route, web.RouteDef) else route.prefix if isinstance(route, web.StaticDef) else ""
    if path.lstrip("/").partition("/")[0] in _OWN_PATHS:
        raise ProviderError(f"failed to add route {path!r}: Serving answers below it itself; choose another path")


class _Question:
    """Answers `/healthz` or `/readyz`."""

    def __init__(self, path: str, checks: Checks, manager: Manager) -> None:
        self._path = path
        self._checks = checks
        self._manager = manager

    async def all(self, request: web.Request) -> web.Response:
        """Run every check."""
        found = await self._ask()
        failed = any(found.values())
        lines = [f"[-]{name} failed: {why}" if why else f"[+]{name} ok" for name, why in found.items()]
        lines.append(f"{self._path} check {'failed' if failed else 'passed'}")
        text = "\n".join(lines) + "\n" if failed or "verbose" in request.query else "ok"
        return web.Response(text=text, status=500 if failed else 200)

    async def one(self, request: web.Request) -> web.Response:
        """Run one check."""
        name = request.match_info["name"]
        found = await self._ask(only=name)
        if name not in found:
            return web.Response(text=f"there is no check {name!r}\n", status=404)
        why = found[name]
        return web.Response(text=f"{why}\n" if why else "ok", status=500 if why else 200)

    async def _ask(self, *, only: str | None = None) -> dict[str, str | None]:
        found: dict[str, str | None] = {"ping": None}
        if self._path == "readyz":
            found["manager"] = "the manager is about to end" if self._manager.stopping else None
        return {**found, **await self._checks.run(only=only)}
