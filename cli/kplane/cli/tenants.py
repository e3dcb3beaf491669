"""Reaches the API of a control plane from this machine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import TypeVar

import yaml

from kplane.cli.kubeconfigs import management
from kplane.cli.port_forward import forwarded, is_inside
from kplane.client import ControlPlanes
from kplane.provider import Client, ClusterConfig

__all__ = ["reached"]

_Value = TypeVar("_Value")


@contextlib.asynccontextmanager
async def reached(
    control_planes: ControlPlanes, name: str, *, internal: bool, context: str | None
) -> AsyncIterator[Client]:
    """Connect to a control plane as its administrator; one that sleeps is woken first.

    If the address is known inside of the management cluster alone, a port is forwarded to it meanwhile. Raises what
    `ControlPlanes.kubeconfig` does, and CliError if no port can be forwarded.
    """
    await control_planes.ensure_awake(name)
    document = yaml.safe_load(await control_planes.restored_kubeconfig(name, internal=internal))
    async with contextlib.AsyncExitStack() as stack:
        if not internal and is_inside(document):
            forwarding = forwarded(document, to=management(context))
            document = await stack.enter_async_context(_in_threads(forwarding))
        async with Client(ClusterConfig.from_kubeconfig(document), field_manager="kplane-cli") as client:
            yield client


@contextlib.asynccontextmanager
async def _in_threads(manager: AbstractContextManager[_Value]) -> AsyncIterator[_Value]:
    """Enter and leave what blocks, and leave it also if this is cancelled while it is entered."""
    entering = asyncio.ensure_future(asyncio.to_thread(manager.__enter__))
    try:
        yield await asyncio.shield(entering)
    finally:
        await asyncio.wait({entering})
        if entering.exception() is None:
            await asyncio.to_thread(manager.__exit__, None, None, None)
