"""Serves `/metrics`, `/healthz` and `/readyz` of a manager."""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

from kplane.provider.errors import ProviderError
from kplane.provider.manager.checks import Checks
from kplane.provider.manager.manager import Manager
from kplane.provider.serving.listening import listening
from kplane.provider.serving.metrics import ManagerMetrics, Rendering

__all__ = ["Serving"]

_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_CLOSE_SECONDS: Final = 2.0


class Serving:
    """Answers Prometheus and the kubelet for as long as the manager runs: `manager.add(Serving(manager, port=8080))`.

    `/healthz` and `/readyz` answer 200 if all checks pass, otherwise 500. `?verbose` lists them, and `/readyz/<name>`
    runs one check. A manager that is stopping is not ready, and neither is one whose provider has not read all that
    stands for clusters (`HasSynced`). An unreachable cluster does not fail a check, because the other clusters go on.
    `cluster_labels` is that of `ManagerMetrics`. The server has no TLS and no authentication, so `host` is the loopback
    address by default. `port=0` takes a free port.
    """

    def __init__(
        self, manager: Manager, *, host: str = "127.0.0.1", port: int = 8080, cluster_labels: bool = True
    ) -> None:
        self._manager = manager
        self._host = host
        self._port = port
        self._metrics = Rendering(ManagerMetrics(manager, cluster_labels=cluster_labels).render)
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
        return app

    async def _show_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=await self._metrics.text(), headers={"Content-Type": _TEXT})


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
