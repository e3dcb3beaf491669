"""HTTP server of /healthz, /readyz and /metrics."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Final

import aiohttp
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from kplane.api.configuration import HostPort
from kplane.gateway.controller import Controller
from kplane.gateway.data_plane import DataPlane
from kplane.gateway.envoy.names import RATE_LIMIT
from kplane.provider.serving.listening import listening

__all__ = ["Collected", "serve_status"]

_CLUSTER: Final = re.compile(r"cluster\.([^./]+)(?:/[^.]+)?\.(upstream_[a-z_0-9]+)")
_RATE_LIMITED: Final = f"{RATE_LIMIT}.http_local_rate_limit.rate_limited"
_ANSWERS: Final = {f"upstream_rq_{code}": code for code in ("2xx", "4xx", "5xx")}
_COUNTERS: Final = {
    "upstream_rq_total": ("kplane_gateway_requests", "Requests to the API server of a control plane"),
    "upstream_cx_connect_fail": ("kplane_gateway_failed_connections", "Connections to it that failed"),
    "upstream_rq_pending_overflow": (
        "kplane_gateway_requests_over_limit",
        "Requests that were refused because too many were in flight",
    ),
}
_GAUGES: Final = {
    "upstream_rq_active": ("kplane_gateway_requests_in_flight", "Requests in flight, watches among them"),
    "upstream_cx_active": ("kplane_gateway_connections", "Connections to the API server of a control plane"),
}


@contextlib.asynccontextmanager
async def serve_status(listen: HostPort, *, controller: Controller, plane: DataPlane) -> AsyncIterator[None]:
    """Serve the endpoints while the context is open.

    `/healthz` returns 200 while the event loop runs. `/readyz` returns 200 while Envoy uses the configuration that was
    published last. Raises ListenFailed if the gateway cannot listen on the address.
    """

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        if await plane.ready():
            return web.Response(text=f"ok{f'; {controller.problem}' if controller.problem else ''}\n")
        reason = controller.problem or "Envoy does not serve the present configuration"
        failure = await plane.failure()
        return web.Response(text=f"{reason}{f': {failure}' if failure else ''}\n", status=503)

    async def metrics(_: web.Request) -> web.Response:
        registry = CollectorRegistry()
        registry.register(Collected(controller, await _numbers(plane), waiting=plane.waiting, held=len(plane.held)))
        body = await asyncio.to_thread(generate_latest, registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    async with listening(app, host=listen.host, port=listen.port, flag="--listen"):
        yield


async def _numbers(plane: DataPlane) -> Mapping[str, int]:
    try:
        return await plane.numbers()
    except (OSError, aiohttp.ClientError, TimeoutError):
        return {}


class Collected(Collector):
    """Metrics of a scrape.

    Series exist only for control planes with a route, so that requests to other paths create none.
    """

    def __init__(self, controller: Controller, numbers: Mapping[str, int], *, waiting: int, held: int) -> None:
        self._controller = controller
        self._numbers = numbers
        self._waiting = waiting
        self._held = held

    @override
    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        served = sum(route.upstream is not None for route in self._controller.routes)
        yield GaugeMetricFamily("kplane_gateway_control_planes", "Control planes that are served", value=served)
        text = "Requests and connections that wait for control planes that wake"
        yield GaugeMetricFamily("kplane_gateway_waiting_requests", text, value=self._waiting)
        names = {route.key: route.cluster_path for route in self._controller.routes}
        sums: dict[str, dict[str, int]] = {}
        for stat, value in self._numbers.items():
            match = _CLUSTER.fullmatch(stat)
            if match is not None and match[1] in names:
                values = sums.setdefault(match[2], {})
                values[names[match[1]]] = values.get(names[match[1]], 0) + value
        text = "Control planes whose changes wait"
        yield GaugeMetricFamily("kplane_gateway_held_control_planes", text, value=self._held)
        text = "Requests that were refused because too many came in a second"
        yield CounterMetricFamily("kplane_gateway_requests_over_rate", text, value=self._numbers.get(_RATE_LIMITED, 0))
        text = "Answers of the API server of a control plane"
        answers = CounterMetricFamily("kplane_gateway_answers", text, labels=["control_plane", "code"])
        for stat, code in _ANSWERS.items():
            for path, value in sums.get(stat, {}).items():
                answers.add_metric([path, code], value)
        yield answers
        for stat, (name, text) in _COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=["control_plane"])
            for path, value in sums.get(stat, {}).items():
                counter.add_metric([path], value)
            yield counter
        for stat, (name, text) in _GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=["control_plane"])
            for path, value in sums.get(stat, {}).items():
                gauge.add_metric([path], value)
            yield gauge
