"""A gateway with a real Envoy, in front of two real API servers."""

from __future__ import annotations

import importlib.resources
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from kplane.gateway import routes
from kplane.gateway.data_plane import DataPlane
from kplane.gateway.envoy.listener import Serving
from kplane.gateway.program import EnvoyValidator
from kplane.gateway.routes import FrontProxy, Route, Upstream
from kplane.gateway.tokens import TokenTrust, read_token_keys
from kplane.gateway.waker import Waker
from kplane.pki.primitives import create_authority, issue_client, issue_serving
from kplane.provider import ClusterConfig
from kplane.workloads import ProcessRuntime
from tests.mcm.control_planes import Tenant, running_tenants

from .slow_server import SlowServer, slow_server

__all__ = ["Gateway", "running_tenants"]


@pytest.fixture(scope="session")
def envoy() -> Path:
    return Path(str(importlib.resources.files("envoy") / "_bin" / "envoy"))


@dataclass
class Gateway:
    plane: DataPlane
    waker: Waker
    serving: Serving
    ca: bytes
    tenants: dict[str, Tenant]
    directory: Path
    runtime: ProcessRuntime
    wakes: list[str]
    """Key of the control plane of each wake-up request."""
    routes: list[Route] = field(default_factory=list)

    @property
    def host(self) -> str:
        return f"{self.serving.host}:{self.serving.port}"

    def route(self, name: str, *, path: str | None = None, key: str | None = None) -> Route:
        tenant = self.tenants[name]
        pair = issue_client(tenant.authorities.front_proxy, user="front-proxy-client")
        front_proxy = FrontProxy(
            certificate=routes.KeyPair(pair.certificate, pair.key), client_ca=tenant.authorities.client_trust
        )
        upstream = Upstream.at(
            tenant.server,
            ca=tenant.authorities.serving_trust,
            front_proxy=front_proxy,
            trust=TokenTrust(keys=read_token_keys(tenant.authorities.service_account_trust)),
        )
        return Route(key=key or f"uid-{name}", cluster_path=path or name, upstream=upstream)

    def host_route(self, name: str, *, key: str | None = None) -> Route:
        """Return a route as `route` does, by host name."""
        upstream = Upstream.behind(self.tenants[name].server)
        return Route(key=key or f"uid-{name}", cluster_path=name, upstream=upstream, host=f"{name}.example.org")

    async def serve(self, *served: Route) -> Any:
        self.routes = list(served)
        return await self.plane.apply(served, serving=self.serving)

    def config(self, path: str, **identity: Any) -> ClusterConfig:
        return ClusterConfig(server=f"https://{self.host}/clusters/{path}/control-plane", ca_data=self.ca, **identity)

    def user(self, name: str, user: str = "jane", *, groups: tuple[str, ...] = (), path: str = "") -> ClusterConfig:
        """Return settings of a user with a client certificate of a tenant, at a path of this or another tenant."""
        pair = issue_client(self.tenants[name].authorities.client, user=user, groups=groups)
        return self.config(path or name, client_certificate=pair.certificate, client_key=pair.key)

    def tls(self, *, certificate: Path | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.ca.decode())
        if certificate is not None:
            context.load_cert_chain(certificate)
        return context


@pytest.fixture
async def gateway(
    envoy: Path, running_tenants: dict[str, Tenant], tmp_path: Path, hold_port: Callable[[], int]
) -> AsyncIterator[Gateway]:
    """Serves the tenants `one` and `two`."""
    authority = create_authority("gateway")
    pair = issue_serving(authority, common_name="gateway", hosts=["127.0.0.1", "localhost"])
    serving = Serving(host="127.0.0.1", port=hold_port(), certificate=routes.KeyPair(pair.certificate, pair.key))
    directory = tmp_path / "gateway"
    directory.mkdir(mode=0o700)
    wakes: list[str] = []

    async def request(route: Route, at: datetime) -> None:
        wakes.append(route.key)

    waker = Waker(request)
    async with ProcessRuntime(tmp_path / "runtime", programs=[]) as runtime:
        plane = DataPlane(
            directory,
            validate=EnvoyValidator(envoy, directory=directory),
            program=envoy,
            runtime=runtime,
            waker=waker,
            workers=1,
        )
        gateway = Gateway(plane, waker, serving, authority.certificate, running_tenants, directory, runtime, wakes)
        async with plane.running():
            try:
                assert await gateway.serve(gateway.route("one"), gateway.route("two")) == {}
                yield gateway
            finally:
                sys.stdout.write(runtime.log_path("envoy").read_text()[-8000:])
                await plane.stop()


@pytest.fixture
async def slow(envoy: Path, tmp_path: Path, hold_port: Callable[[], int]) -> AsyncIterator[SlowServer]:
    """Serves control plane `one` with a fake API server."""
    async with slow_server(envoy, tmp_path, hold_port=hold_port) as server:
        yield server
