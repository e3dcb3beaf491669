"""Access to an address inside of the management cluster from this machine, through a pod behind it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from typing import Any, Final
from urllib.parse import urlsplit

from kplane.cli.errors import CliError
from kplane.cli.kubeconfigs import Management
from kplane.provider import Client, ClusterConfig, ProviderError

__all__ = ["forwarded", "forwarding", "is_inside"]

_SERVICE: Final = re.compile(r"(?P<service>[a-z0-9-]+)\.(?P<namespace>[a-z0-9-]+)\.svc")
_HOST: Final = "127.0.0.1"


def is_inside(document: dict[str, Any]) -> bool:
    """Return whether the server of a kubeconfig is a Service, whose name only the management cluster resolves."""
    return _SERVICE.fullmatch(urlsplit(document["clusters"][0]["cluster"]["server"]).hostname or "") is not None


@contextlib.asynccontextmanager
async def forwarding(document: dict[str, Any], *, to: Management) -> AsyncIterator[dict[str, Any]]:
    """Forward a port of this machine to the Service of a kubeconfig, and yield the kubeconfig for this port.

    `to` is the management cluster. The server is still verified by its name. Raises CliError if no port can be
    forwarded. A connection that fails later is closed, and the cause is logged as a warning.
    """
    [cluster] = document["clusters"]
    address = urlsplit(cluster["cluster"]["server"])
    host = address.hostname or ""
    service = _SERVICE.fullmatch(host)
    if service is None:
        raise CliError(f"{host} is not the name of a Service")
    async with contextlib.AsyncExitStack() as stack:
        try:
            config = ClusterConfig.default(context=to.context, environment=to.environment)
            client = await stack.enter_async_context(Client(config, field_manager="kplane-cli"))
            forward = await stack.enter_async_context(
                client.pods.port_forward_service(
                    service["service"], address.port or 443, namespace=service["namespace"], local_host=_HOST
                )
            )
        except ProviderError as error:
            raise CliError(f"failed to forward a port to {host}: {error}") from error
        local = f"{address.scheme}://{_HOST}:{forward.port}{address.path}"
        changed = {**cluster["cluster"], "server": local, "tls-server-name": host}
        yield {**document, "clusters": [{**cluster, "cluster": changed}]}


@contextlib.contextmanager
def forwarded(document: dict[str, Any], *, to: Management) -> Iterator[dict[str, Any]]:
    """Forward a port as `forwarding` does, for a caller that blocks: a thread transfers the data.

    Entry waits until the port is open. Exit closes the connections, and waits for the end of the thread.
    """
    opened, left = Future[dict[str, Any]](), Future[None]()

    async def forward() -> None:
        async with forwarding(document, to=to) as changed:
            opened.set_result(changed)
            await asyncio.Event().wait()

    async def forward_until_left() -> None:
        work = asyncio.create_task(forward(), name="forward a port to a control plane")
        asyncio.wrap_future(left).add_done_callback(lambda _: work.cancel())
        with contextlib.suppress(asyncio.CancelledError):
            await work

    def run() -> None:
        try:
            asyncio.run(forward_until_left())
        except BaseException as error:
            if opened.done():
                raise
            opened.set_exception(error)

    thread = threading.Thread(target=run, name="forward a port to a control plane")
    thread.start()
    try:
        yield opened.result()
    finally:
        left.set_result(None)
        thread.join()
