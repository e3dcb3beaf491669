"""Gives control planes the fake nodes that they ask for by an annotation."""

from __future__ import annotations

import base64
import contextlib
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from kplane.api import ControlPlane
from kplane.api.names import (
    FAKE_NODES_ANNOTATION,
    KUBECONFIG_EXTERNAL_KEY,
    kubeconfig_secret_name,
    management_namespace,
)
from kplane.client.watching import served
from kplane.embedded.errors import FakeNodesInvalid
from kplane.embedded.kwok import KWOK_PORTS, have_nodes, kwok_component, release_leases
from kplane.provider import Client, ClusterConfig, Manager, NotFound, Request, Result, controller
from kplane.provider.client.resources import SECRETS
from kplane.workloads import ProcessRuntime

__all__ = ["FakeNodes", "wanted_nodes"]

logger = logging.getLogger(__name__)

_CONTROL_PLANES: Final = served(ControlPlane.resource)
_AT_ONCE: Final = 8
_WAITING: Final = 1000
"""How many reconciles may wait at once. One of a control plane that does not answer waits until its call times out."""
_GRACE_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 15.0
"""How often nodes and credentials of a control plane are compared with what they should be."""
_UNPUBLISHED_SECONDS: Final = 1.0
_COUNT: Final = re.compile(r"[0-9]{1,4}")


def wanted_nodes(control_plane: Mapping[str, Any]) -> int:
    """Return how many fake nodes a control plane asks for. Raises `FakeNodesInvalid`."""
    value = (control_plane["metadata"].get("annotations") or {}).get(FAKE_NODES_ANNOTATION, "0")
    if not _COUNT.fullmatch(value):
        raise FakeNodesInvalid(f"{FAKE_NODES_ANNOTATION} is {value!r}; use a number from 0 to 9999")
    if int(value) and (control_plane.get("spec") or {}).get("endpointRef") is not None:
        raise FakeNodesInvalid(f"an adopted control plane gets no fake nodes; remove {FAKE_NODES_ANNOTATION}")
    return int(value)


class FakeNodes:
    """Keeps a kwok and Node objects for each control plane with `FAKE_NODES_ANNOTATION`, as an async context manager.

    Each kwok is a process of its own, which ends with this one. On entry, the components of an earlier run begin again.
    `config` is an administrator of the management cluster, and `directory` keeps credentials and logs.
    Entering raises `workloads.RuntimeFailure` and `provider.ProviderError`.
    """

    def __init__(self, config: ClusterConfig, *, directory: Path, program: Path) -> None:
        self._program = program.absolute()
        self._runtime = ProcessRuntime(directory, programs=())
        self._manager = Manager(config, workers=_AT_ONCE, name="kplane-fake-nodes")
        # All requests are of the one local cluster, and per cluster those count that wait.
        options = controller(self._manager).named("fake-nodes").for_(_CONTROL_PLANES)
        options.with_options(per_cluster=_WAITING, grace_seconds=_GRACE_SECONDS).build(self._reconcile)
        self._refused: dict[str, str] = {}
        """What is wrong with annotations, by control plane, so that it is said once."""
        self._exit = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self._runtime)
            await self._forget_deleted()
            await stack.enter_async_context(self._manager)
            self._exit = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exit.__aexit__(kind, error, trace)

    async def _forget_deleted(self) -> None:
        """Remove what belongs to control planes that were deleted while nothing followed them."""
        listed = await self._manager.local.client.list(_CONTROL_PLANES, metadata_only=True)
        present = {_component(each["metadata"]["name"]) for each in listed.items}
        for name in set(self._runtime.names()) - present:
            await self._runtime.delete(name)

    async def _reconcile(self, request: Request) -> Result | None:
        component = _component(request.name)
        try:
            found = await self._manager.local.cache.get(_CONTROL_PLANES, request.name)
            deleted = "deletionTimestamp" in found["metadata"]
        except NotFound:
            found, deleted = {}, True
        if deleted:
            self._refused.pop(request.name, None)
            await self._runtime.delete(component)
            return None
        count = self._wanted(found)
        if not count and component not in self._runtime.names():
            return None
        config = await self._published(request.name)
        if config is None:
            return Result(requeue_after_seconds=_UNPUBLISHED_SECONDS)
        if count is not None:
            async with Client(config, field_manager="kplane-fake-nodes") as tenant:
                await have_nodes(tenant, count)
                if not count:
                    await self._runtime.delete(component)
                    return None
                if self._runtime.state(component).pid is None:
                    await release_leases(tenant, count)
        address = await self._runtime.reserve(component, ports=KWOK_PORTS)
        await self._runtime.apply(kwok_component(component, program=self._program, address=address, config=config))
        return Result(requeue_after_seconds=_LOOK_SECONDS)

    def _wanted(self, control_plane: Mapping[str, Any]) -> int | None:
        """Return how many nodes there are to be; None if that is invalid, so that nodes and kwok stay as they are."""
        name = control_plane["metadata"]["name"]
        try:
            count = wanted_nodes(control_plane)
        except FakeNodesInvalid as error:
            if self._refused.get(name) != str(error):
                self._refused[name] = str(error)
                logger.warning("failed to give nodes to %s: %s", name, error)
                self._manager.local.recorder("fake-nodes").event(
                    control_plane, "Warning", "FakeNodesInvalid", str(error)
                )
            return None
        self._refused.pop(name, None)
        return count

    async def _published(self, name: str) -> ClusterConfig | None:
        """Return how users reach a control plane, None if that is not published yet.

        Through a gateway, requests wake the control plane, wait during a move, and keep it awake.
        """
        client, namespace = self._manager.local.client, management_namespace(name)
        try:
            secret = await client.get(SECRETS, kubeconfig_secret_name(name), namespace=namespace)
        except NotFound:
            return None
        content = (secret.get("data") or {}).get(KUBECONFIG_EXTERNAL_KEY)
        return ClusterConfig.from_kubeconfig(base64.b64decode(content)) if content is not None else None


def _component(control_plane: str) -> str:
    """Name of the kwok of a control plane: a DNS label that no other control plane has."""
    return management_namespace(control_plane)
