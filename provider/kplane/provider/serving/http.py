"""HTTP server of a manager: `/metrics`, `/healthz` and `/readyz`."""

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
from kplane.provider.manager.checks import CheckResult, Checks
from kplane.provider.manager.manager import Manager
from kplane.provider.serving.listening import listening
from kplane.provider.serving.metrics import ManagerMetrics, Rendering, process_families, render_families

__all__ = ["Serving"]

log: Final = logging.getLogger(__name__)

_OWN_PATHS: Final = ("metrics", "healthz", "readyz")
_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_CLOSE_SECONDS: Final = 2.0


class Serving:
    """Serves Prometheus and the kubelet while the manager runs: `manager.add(Serving(manager, port=8080))`.

    `/healthz` and `/readyz` answer 200 if all checks pass, otherwise 500. `?verbose` lists the checks, and
    `/readyz/<name>` runs a single check. A manager is not ready while it stops, and until its provider has found its
    clusters (`HasSynced`). An unreachable cluster fails no check, because other clusters continue. `cluster_labels` is
    passed to `ManagerMetrics`. The server has no TLS and no authentication, so the default of `host` is the loopback
    address. `port=0` takes a free port.

    `/metrics` also shows the metrics of `registry`, such as `prometheus_client.REGISTRY`, and of `collectors`. The
    registry is collected in a thread, as by other servers of prometheus_client. The collectors are collected in the
    loop: they may read the state of the program, and must not block. If two metrics have the same name, the first
    metric is shown, and the second is logged. `routes` are further routes: `[web.get("/debug", show)]` of
    `aiohttp.web`.

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
        """Event that is set while the server accepts connections."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the listening socket. Raises ProviderError if the server does not listen."""
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
            handler = _ChecksHandler(path, checks, self._manager)
            app.router.add_get(f"/{path}", handler.all)
            app.router.add_get(f"/{path}/{{name}}", handler.single)
        app.add_routes(self._routes)
        return app

    async def _render(self) -> bytes:
        collected = [family for collector in self._collectors for family in collector.collect()]
        return await asyncio.to_thread(self._render_with, collected)

    def _render_with(self, collected: Iterable[Metric]) -> bytes:
        """Render these metrics, and the metrics of the registry and of the process. Runs in a thread."""
        families: dict[str, Metric] = {}
        for family in (*collected, *(self._registry.collect() if self._registry is not None else ())):
            if families.setdefault(family.name, family) is not family and family.name not in self._duplicates:
                self._duplicates.add(family.name)
                log.warning("/metrics leaves out a second metric named %s; rename one of the two", family.name)
        # `registry` may have the metrics of the process, as the registry of prometheus_client does.
        of_process = [family for family in process_families() if family.name not in families]
        return render_families([*of_process, *families.values()])

    async def _show_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=await self._metrics.text(), headers={"Content-Type": _TEXT})


def _require_free(route: web.AbstractRouteDef) -> None:
    path = route.path if isinstance(route, web.RouteDef) else route.prefix if isinstance(route, web.StaticDef) else ""
    if path.lstrip("/").partition("/")[0] in _OWN_PATHS:
        raise ProviderError(f"failed to add route {path!r}: Serving answers below it itself; choose another path")


class _ChecksHandler:
    """Handles requests for `/healthz` or `/readyz`."""

    def __init__(self, path: str, checks: Checks, manager: Manager) -> None:
        self._path = path
        self._checks = checks
        self._manager = manager

    async def all(self, request: web.Request) -> web.Response:
        """Run every check."""
        results = await self._run_checks()
        failed = any(result.failure for result in results.values())
        lines = [_line(name, result) for name, result in results.items()]
        lines.append(f"{self._path} check {'failed' if failed else 'passed'}")
        text = "\n".join(lines) + "\n" if failed or "verbose" in request.query else "ok"
        return web.Response(text=text, status=500 if failed else 200)

    async def single(self, request: web.Request) -> web.Response:
        """Run the check that the path names."""
        name = request.match_info["name"]
        results = await self._run_checks(only=name)
        if name not in results:
            return web.Response(text=f"there is no check {name!r}\n", status=404)
        cause = results[name].failure
        return web.Response(text=f"{cause}\n" if cause else "ok", status=500 if cause else 200)

    async def _run_checks(self, *, only: str | None = None) -> dict[str, CheckResult]:
        """Return the result of each check by name."""
        results = {"ping": CheckResult()}
        if self._path == "readyz":
            results["manager"] = CheckResult("the manager is about to end" if self._manager.stopping else None)
        return {**results, **await self._checks.results(only=only)}


def _line(name: str, result: CheckResult) -> str:
    if result.failure:
        return f"[-]{name} failed: {result.failure}"
    return f"[+]{name} ok: {result.note}" if result.note else f"[+]{name} ok"
