"""Connection to the API of a control plane from this machine."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import yaml

from kplane.cli.kubeconfigs import management
from kplane.cli.port_forward import forwarding, is_inside
from kplane.client import ControlPlanes
from kplane.provider import Client, ClusterConfig

__all__ = ["reached"]


@contextlib.asynccontextmanager
async def reached(
    control_planes: ControlPlanes, name: str, *, internal: bool, context: str | None
) -> AsyncIterator[Client]:
    """Connect to a control plane as its administrator. A sleeping control plane is woken first.

    If only the management cluster resolves the address, a port is forwarded to it. Raises the errors of
    `ControlPlanes.kubeconfig`, and CliError if no port can be forwarded.
    """
    await control_planes.ensure_awake(name)
    document = yaml.safe_load(await control_planes.restored_kubeconfig(name, internal=internal))
    async with contextlib.AsyncExitStack() as stack:
        if not internal and is_inside(document):
            document = await stack.enter_async_context(forwarding(document, to=management(context)))
        async with Client(ClusterConfig.from_kubeconfig(document), field_manager="kplane-cli") as client:
            yield client
