"""Runs etcd and kube-apiserver, and resets them on request, until standard input closes.

The API server runs without kube-controller-manager, which would write at any time, even after a reset. Each line on
standard input is a request, `prepare` or `clean`. The answer is a line of JSON on standard output. The first line there
is the address of the API server, without a request. A separate process keeps gRPC and its event loop out of the tests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import ssl
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import uvloop

from kplane.components.api_server import API_SERVER_PORTS, api_server_component, server_url, serving_hosts
from kplane.components.etcd import ETCD_PORTS, EtcdAccess, client_url, etcd_component
from kplane.data import Client, DataError
from kplane.data import Credentials as EtcdCredentials
from kplane.embedded.components import API_SERVER, ETCD, bound
from kplane.embedded.credentials import ADMINISTRATOR_GROUPS, Credentials, write_private
from kplane.embedded.errors import EmbeddedError, NotReadyInTime, leaves
from kplane.pki.errors import PkiError
from kplane.pki.primitives import issue_client
from kplane.testing.clean.api import Api
from kplane.testing.clean.cleaner import Cleaner
from kplane.workloads import Component, Phase, ProcessRuntime, WorkloadsError

__all__ = ["main"]

_log: Final = logging.getLogger("kplane.testing.clean")

_HOST: Final = "127.0.0.1"
_PREFIX: Final = "/registry/"
_READY_SECONDS: Final = 180.0
_HOPELESS_RESTARTS: Final = 4


def main() -> int:
    """Serve until standard input closes (status 0), or until a failure (status 1, the cause in the log)."""
    parser = argparse.ArgumentParser(prog="python -m kplane.testing.clean.server", allow_abbrev=False)
    parser.add_argument("--directory", type=Path, required=True, help="for data, credentials and logs")
    parser.add_argument("--programs", type=Path, action="append", required=True, help="where the programs are")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    status = 0
    try:
        uvloop.run(_serve(given.directory, programs=tuple(given.programs)))
    except* (DataError, EmbeddedError, OSError, PkiError, WorkloadsError) as group:
        for error in leaves(group):
            _log.critical("%s", error)
        status = 1
    return status


async def _serve(directory: Path, *, programs: tuple[Path, ...]) -> None:
    async with _running(directory, programs=programs) as (cleaner, described):
        _answer(described)
        async for line in _lines():
            match line:
                case "prepare":
                    _answer({"keys": await cleaner.prepare()})
                case "clean":
                    _answer(await cleaner.clean())
                case _:
                    raise EmbeddedError(f"failed to read the request {line!r}: use prepare or clean")


async def _lines() -> AsyncIterator[str]:
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    try:
        while line := await reader.readline():
            yield line.decode().strip()
    finally:
        transport.close()


def _answer(answer: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


@asynccontextmanager
async def _running(directory: Path, *, programs: tuple[Path, ...]) -> AsyncIterator[tuple[Cleaner, dict[str, Any]]]:
    began = time.monotonic()
    credentials = Credentials(directory / "credentials", host=_HOST)
    authorities = credentials.authorities
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(ProcessRuntime(directory / "runtime", programs=programs, host=_HOST))
        etcd_address = await runtime.reserve(ETCD, ports=ETCD_PORTS)
        address = await runtime.reserve(API_SERVER, ports=API_SERVER_PORTS)
        certificates = credentials.certificates(hosts=serving_hosts(address))
        if certificates.etcd_server is None:
            raise EmbeddedError("failed to start etcd: it has no serving certificate")
        etcd = etcd_component(
            ETCD, address=etcd_address, ca=authorities.etcd.certificate, server=certificates.etcd_server
        )
        server = api_server_component(
            API_SERVER,
            address=address,
            authorities=authorities,
            certificates=certificates,
            etcd=EtcdAccess(
                (client_url(etcd_address),), ca=authorities.etcd.certificate, client=certificates.etcd_client
            ),
            etcd_prefix=_PREFIX.rstrip("/"),
            etcd_shared=False,
        )
        stack.push_async_callback(runtime.stop, ETCD)
        await _run(runtime, bound(etcd, args=("--unsafe-no-fsync",)))
        stack.push_async_callback(runtime.stop, API_SERVER)
        # The plugin refuses Pods in a namespace without a ServiceAccount `default`, which only a controller makes.
        await _run(runtime, bound(server, args=("--disable-admission-plugins=ServiceAccount",)))

        kubeconfig = directory / "kubeconfig"
        content = credentials.kubeconfig(server_url(address), user="kubernetes-admin", groups=ADMINISTRATOR_GROUPS)
        write_private(kubeconfig, content=content)
        files = _etcd_files(directory / "etcd", credentials)
        client = await stack.enter_async_context(Client(client_url(etcd_address), credentials=files))
        api = await stack.enter_async_context(Api(server_url(address), tls=_tls(directory, credentials)))
        described = {"server": server_url(address), "kubeconfig": str(kubeconfig), "seconds": time.monotonic() - began}
        yield Cleaner(api, etcd=client, prefix=_PREFIX), described


def _etcd_files(directory: Path, credentials: Credentials) -> EtcdCredentials:
    authority = credentials.authorities.etcd
    pair = issue_client(authority, user="clean-api-server")
    directory.mkdir(mode=0o700, exist_ok=True)
    files = EtcdCredentials.in_directory(directory)
    write_private(files.ca, content=authority.certificate)
    write_private(files.certificate, content=pair.certificate)
    write_private(files.key, content=pair.key)
    return files


def _tls(directory: Path, credentials: Credentials) -> ssl.SSLContext:
    authorities = credentials.authorities
    pair = issue_client(authorities.client, user="clean-api-server", groups=ADMINISTRATOR_GROUPS)
    file = directory / "administrator.pem"
    write_private(file, content=pair.certificate + pair.key)
    tls = ssl.create_default_context(cadata=authorities.serving.certificate.decode())
    tls.load_cert_chain(file)
    return tls


async def _run(runtime: ProcessRuntime, component: Component) -> None:
    """Start a component and wait until it is ready."""
    changed = asyncio.Event()
    unsubscribe = runtime.subscribe(lambda name: changed.set() if name == component.name else None)
    try:
        await runtime.apply(component)
        async with asyncio.timeout(_READY_SECONDS):
            while (state := runtime.state(component.name)).phase is not Phase.READY:
                if state.restarts >= _HOPELESS_RESTARTS:
                    raise NotReadyInTime(f"failed to start {component.name}: {state.message}")
                await changed.wait()
                changed.clear()
    except TimeoutError:
        raise NotReadyInTime(f"failed to start {component.name}: not ready after {_READY_SECONDS:.0f} s") from None
    finally:
        unsubscribe()


if __name__ == "__main__":
    sys.exit(main())
