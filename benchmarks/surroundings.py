"""Starts API servers, and an Envoy that serves an API server at many paths, for a fleet of adopted control planes."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import importlib.resources
import random
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from kplane.components.api_server import API_SERVER_PORTS, api_server_component, server_url, serving_hosts
from kplane.components.etcd import ETCD_PORTS, EtcdAccess, client_url, etcd_component
from kplane.controlplane_operator.tenant.tokens import request_token
from kplane.embedded.components import MANAGEMENT, bound
from kplane.embedded.credentials import ADMINISTRATOR_GROUPS, Credentials, write_private
from kplane.pki.primitives import create_authority, issue_serving
from kplane.provider import AlreadyExists, Client, ClusterConfig, ProviderError
from kplane.provider.client.resources import (
    CLUSTER_ROLE_BINDINGS,
    NAMESPACES,
    ROLE_BINDINGS,
    SECRETS,
    SERVICE_ACCOUNTS,
)
from kplane.provider.errors import Forbidden
from kplane.workloads import Component, Phase, ProcessRuntime

__all__ = [
    "SECRETS_READER",
    "ApiServer",
    "administrator_token",
    "free_port",
    "may_read",
    "open_namespace",
    "run_component",
    "shared_address",
    "silent_servers",
    "start_api_server",
]

_HOST: Final = "127.0.0.1"
_PORTS: Final = range(10240, 16384)
"""Port range below the ports of components, and below the kernel's ports for outgoing connections."""
_RANDOM: Final = random.SystemRandom()
"""Hypothesis seeds the common generator, so that two processes of pytest-xdist would choose the same ports."""
_READY_SECONDS: Final = 120.0
_SILENT_CONNECTIONS: Final = 1024
_POLL_SECONDS: Final = 0.05
_LIFETIME: Final = dt.timedelta(hours=24)
_ACCOUNT: Final = "benchmark"
_ACCOUNT_NAMESPACE: Final = "kplane-system"
_PATH_OF_IDENTITY: Final = "^/clusters/([^/]+)/control%-plane/api/v1/namespaces/kube%-system$"
"""Lua pattern that captures the name of the tenant."""
SECRETS_READER: Final = "kplane-controlplane-operator-secrets-reader"
"""Name of a ClusterRole of an embedded cluster, and of its RoleBindings."""


@dataclass(frozen=True, slots=True)
class ApiServer:
    """Gives access to a plain etcd and kube-apiserver, without controllers."""

    url: str
    credentials: Credentials

    def kubeconfig(self, user: str = "kubernetes-admin", *, groups: tuple[str, ...] = ADMINISTRATOR_GROUPS) -> bytes:
        """Issue a kubeconfig for a user, by default an administrator."""
        return self.credentials.kubeconfig(self.url, user=user, groups=groups)

    def administrator(self) -> ClusterConfig:
        """Return an administrator's access."""
        return ClusterConfig.from_kubeconfig(self.kubeconfig())


async def start_api_server(runtime: ProcessRuntime, name: str, *, directory: Path) -> ApiServer:
    """Run an API server with an etcd without fsync, until the runtime ends."""
    credentials = Credentials(directory / f"{name}-credentials", host=_HOST)
    etcd_at = await runtime.reserve(f"{name}-etcd", ports=ETCD_PORTS)
    served_at = await runtime.reserve(name, ports=API_SERVER_PORTS)
    certificates = credentials.certificates(hosts=serving_hosts(served_at))
    if certificates.etcd_server is None:
        raise RuntimeError("the etcd has no serving certificate")
    ca = credentials.authorities.etcd.certificate
    etcd = etcd_component(f"{name}-etcd", address=etcd_at, ca=ca, server=certificates.etcd_server)
    await run_component(runtime, bound(etcd, args=("--unsafe-no-fsync",)))
    api_server = api_server_component(
        name,
        address=served_at,
        authorities=credentials.authorities,
        certificates=certificates,
        etcd=EtcdAccess((client_url(etcd_at),), ca, certificates.etcd_client),
        etcd_prefix="/registry",
        etcd_shared=False,
    )
    await run_component(runtime, bound(api_server, env=MANAGEMENT))
    return ApiServer(server_url(served_at), credentials)


async def run_component(runtime: ProcessRuntime, component: Component) -> None:
    """Run a component, and wait until it is ready."""
    await runtime.apply(component)
    async with asyncio.timeout(_READY_SECONDS):
        while runtime.state(component.name).phase is not Phase.READY:  # noqa: ASYNC110 - a few times in a run
            await asyncio.sleep(_POLL_SECONDS)


@contextlib.asynccontextmanager
async def shared_address(backend: ClusterConfig, *, directory: Path) -> AsyncIterator[ClusterConfig]:
    """Serve an API server below each /clusters/<path>/control-plane with Envoy, and yield its address and credentials.

    Each path has its own identity, the uid of namespace `kube-system`, as in a fleet of many API servers. All other
    responses are the same at all paths. `backend` is the administrator's access, with the CA. The credentials are a
    token, because a client certificate does not pass a proxy that ends TLS.
    """
    authority = create_authority("shared-address")
    serving = issue_serving(authority, common_name="envoy", hosts=[_HOST])
    port = free_port()
    write_private(directory / "serving.crt", content=serving.certificate)
    write_private(directory / "serving.key", content=serving.key)
    write_private(directory / "backend-ca.crt", content=backend.ca_data or b"")
    configuration = yaml.safe_dump(_envoy(port, backend=backend.server, directory=directory))
    write_private(directory / "envoy.yaml", content=configuration.encode())
    program = importlib.resources.files("envoy") / "_bin" / "envoy"
    arguments = ("--config-path", str(directory / "envoy.yaml"), "--use-dynamic-base-id", "--concurrency", "1")
    with (directory / "envoy.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            str(program), *arguments, "--log-level", "warn", stdout=log, stderr=log
        )
    try:
        async with Client(backend, field_manager="kplane") as client:
            token = await administrator_token(client)
        config = ClusterConfig(server=f"https://{_HOST}:{port}", ca_data=authority.certificate, token=token)
        await _answers(config.with_server(f"{config.server}/clusters/any/control-plane"))
        yield config
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def administrator_token(client: Client) -> str:
    """Issue a token of an administrator, for proxies that end TLS."""
    with contextlib.suppress(AlreadyExists):
        await client.create(NAMESPACES, {"metadata": {"name": _ACCOUNT_NAMESPACE}})
    await client.apply(SERVICE_ACCOUNTS, {"metadata": {"name": _ACCOUNT, "namespace": _ACCOUNT_NAMESPACE}}, force=True)
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    subject = {"kind": "ServiceAccount", "name": _ACCOUNT, "namespace": _ACCOUNT_NAMESPACE}
    binding = {"metadata": {"name": _ACCOUNT}, "roleRef": role, "subjects": [subject]}
    await client.apply(CLUSTER_ROLE_BINDINGS, binding, force=True)
    token = await request_token(client, service_account=_ACCOUNT, lifetime=_LIFETIME)
    return token.value


async def _answers(config: ClusterConfig) -> None:
    async with asyncio.timeout(_READY_SECONDS), Client(config, field_manager="kplane") as client:
        while True:
            try:
                await client.request("GET", "/version")
            except ProviderError:
                await asyncio.sleep(_POLL_SECONDS)
            else:
                return


@contextlib.contextmanager
def silent_servers(number: int) -> Iterator[list[str]]:
    """Yield the URLs of servers that never answer. The kernel accepts their connections."""
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(socket.create_server((_HOST, 0), backlog=_SILENT_CONNECTIONS)) for _ in range(number)
        ]
        yield [f"https://{_HOST}:{server.getsockname()[1]}" for server in servers]


def free_port() -> int:
    """Find a free port. A random choice makes a conflict before its use improbable."""
    for port in _RANDOM.sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((_HOST, port))
            return port
    raise OSError(f"failed to find a free port on {_HOST}: {_PORTS.start} to {_PORTS.stop - 1} are in use")


def _identities(port: int) -> str:
    """Return a Lua filter that answers for namespace `kube-system`, with a different uid at each path."""
    metadata = f"""'{{"name": "kube-system", "uid": "{port}-' .. tenant .. '"}}'"""
    return "\n".join(
        (
            "function envoy_on_request(request)",
            "  local headers = request:headers()",
            f'  local tenant = headers:get(":path"):match("{_PATH_OF_IDENTITY}")',
            '  if tenant and headers:get(":method") == "GET" then',
            f"""    local body = '{{"apiVersion": "v1", "kind": "Namespace", "metadata": ' .. {metadata} .. '}}'""",
            '    request:respond({[":status"] = "200", ["content-type"] = "application/json"}, body)',
            "  end",
            "end",
        )
    )


def _envoy(port: int, *, backend: str, directory: Path) -> dict[str, Any]:
    host, _, backend_port = backend.removeprefix("https://").rpartition(":")
    filters = "type.googleapis.com/envoy.extensions.filters"
    tls = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3"
    rewrite = {"pattern": {"regex": "^/clusters/[^/]+/control-plane/"}, "substitution": "/"}
    route = {"match": {"prefix": "/clusters/"}, "route": {"cluster": "all", "timeout": "0s", "regex_rewrite": rewrite}}
    manager = {
        "@type": f"{filters}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "tenants",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [
            {
                "name": "identities",
                "typed_config": {
                    "@type": f"{filters}.http.lua.v3.Lua",
                    "default_source_code": {"inline_string": _identities(port)},
                },
            },
            {"name": "router", "typed_config": {"@type": f"{filters}.http.router.v3.Router"}},
        ],
    }
    certificate = {
        "certificate_chain": {"filename": f"{directory}/serving.crt"},
        "private_key": {"filename": f"{directory}/serving.key"},
    }
    downstream = {
        "@type": f"{tls}.DownstreamTlsContext",
        "common_tls_context": {"tls_certificates": [certificate], "alpn_protocols": ["h2", "http/1.1"]},
    }
    trust = {"trusted_ca": {"filename": f"{directory}/backend-ca.crt"}}
    upstream = {"@type": f"{tls}.UpstreamTlsContext", "common_tls_context": {"validation_context": trust}}
    chain = {
        "filters": [{"name": "http", "typed_config": manager}],
        "transport_socket": {"name": "tls", "typed_config": downstream},
    }
    listener = {"name": "shared", "address": _address(_HOST, port), "filter_chains": [chain]}
    cluster = {
        "name": "all",
        "connect_timeout": "5s",
        "load_assignment": {
            "cluster_name": "all",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _address(host, int(backend_port))}}]}],
        },
        "transport_socket": {"name": "tls", "typed_config": upstream},
    }
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


async def open_namespace(client: Client, namespace: str = "default", *, role: str = SECRETS_READER) -> None:
    """Bind a role for the Secrets of a namespace to the operator of an embedded cluster, as its owner does."""
    body = {
        "metadata": {"name": role, "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": "controlplane-operator", "namespace": "kplane-system"}],
    }
    await client.apply(ROLE_BINDINGS, body, force=True)


async def may_read(client: Client, namespace: str) -> bool:
    """Return whether the user of a client may list the Secrets of a namespace. A new binding takes a moment."""
    try:
        await client.list(SECRETS, namespace=namespace)
    except Forbidden:
        return False
    return True
