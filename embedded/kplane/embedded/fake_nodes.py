"""Creates the fake nodes that control planes request by an annotation."""

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
"""Maximum number of concurrent reconciles.

A reconcile of a control plane that does not answer takes a place until its call times out.
"""
_GRACE_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 15.0
"""Interval at which nodes and credentials of a control plane are reconciled."""
_UNPUBLISHED_SECONDS: Final = 1.0
_COUNT: Final = re.compile(r"[0-9]{1,4}")


def wanted_nodes(control_plane: Mapping[str, Any]) -> int:
    """Return the number of fake nodes that a control plane requests. Raises `FakeNodesInvalid`."""
    value = (control_plane["metadata"].get("annotations") or {}).get(FAKE_NODES_ANNOTATION, "0")
    if not _COUNT.fullmatch(value):
        raise FakeNodesInvalid(f"{FAKE_NODES_ANNOTATION} is {value!r}; use a number from 0 to 9999")
    if int(value) and (control_plane.get("spec") or {}).get("endpointRef") is not None:
        raise FakeNodesInvalid(f"an adopted control plane gets no fake nodes; remove {FAKE_NODES_ANNOTATION}")
    return int(value)


class FakeNodes:
    """Runs kwok and keeps Node objects for each control plane with `FAKE_NODES_ANNOTATION`; an async context manager.

    Each kwok is a separate process, which ends with this process. On entry, the components of an earlier run start
    again. `config` is an administrator of the management cluster, and `directory` keeps credentials and logs. Entering
    raises `workloads.RuntimeFailure` and `provider.ProviderError`.
    """

    def __init__(self, config: ClusterConfig, *, directory: Path, program: Path) -> None:
        self._program = program.absolute()
        self._runtime = ProcessRuntime(directory, programs=())
        self._manager = Manager(config, workers=_AT_ONCE, name="kplane-fake-nodes")
        # All requests belong to the same local cluster, so `per_cluster` limits the reconciles that run at once.
        options = controller(self._manager).named("fake-nodes").for_(_CONTROL_PLANES)
        options.with_options(per_cluster=_WAITING, grace_seconds=_GRACE_SECONDS).build(self._reconcile)
        self._refused: dict[str, str] = {}
        """Last error in the annotation of each control plane, by name, so that an error is reported once."""
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
        """Remove the components of control planes that were deleted while no FakeNodes ran."""
        listed = await self._manager.local.client.list(_CONTROL_PLANES, metadata_only=True)
        present = {_component(item["metadata"]["name"]) for item in listed.items}
        for name in set(self._runtime.names()) - present:
            await self._runtime.delete(name)

    async def _reconcile(self, request: Request) -> Result | None:
        component = _component(request.name)
        try:
            control_plane = await self._manager.local.cache.get(_CONTROL_PLANES, request.name)
            deleted = "deletionTimestamp" in control_plane["metadata"]
        except NotFound:
            control_plane, deleted = {}, True
        if deleted:
            self._refused.pop(request.name, None)
            await self._runtime.delete(component)
            return None
        count = self._wanted(control_plane)
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
        """Return the desired number of nodes.

        None if the annotation is invalid, so that nodes and kwok stay as they are.
        """
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
        """Return the configuration by which users connect to a control plane; None if it is not published yet.

        With a gateway, requests wake the control plane, wait during a move, and keep it awake.
        """
        client, namespace = self._manager.local.client, management_namespace(name)
        try:
            secret = await client.get(SECRETS, kubeconfig_secret_name(name), namespace=namespace)
        except NotFound:
            return None
        content = (secret.get("data") or {}).get(KUBECONFIG_EXTERNAL_KEY)
        return ClusterConfig.from_kubeconfig(base64.b64decode(content)) if content is not None else None


def _component(control_plane: str) -> str:
    """Return the component name of a control plane's kwok: a unique DNS label."""
    return management_namespace(control_plane)
