"""Consistency of the address and the kubeconfig of a control plane that moves to another address.

The pair is in several objects, which cannot be written in one step. So the registrations of a control plane drop the
former address before its Secrets are written. They get the new address after Secrets and status have it. A registration
never names an address with the credentials for another address, even if the operator is killed in between.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final
from weakref import WeakValueDictionary

from kplane.api import ControlPlane, ControlPlaneRegistration, SecretReference
from kplane.api.reasons import Reason
from kplane.controlplane_operator.registrations.resolution import Resolution
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.status.partial import PartialRegistration
from kplane.controlplane_operator.watch.cache import Change
from kplane.controlplane_operator.watch.stores import Stores
from kplane.controlplane_operator.watch.triggers import Triggers
from kplane.pki.kubeconfig import config_of

__all__ = ["EndpointSwitch"]

_FREED_SECONDS: Final = 10.0
"""Maximum time for registrations to drop the former address, which normally takes milliseconds."""


class EndpointSwitch:
    """Exclusion between the writers of Secrets and the writers of registrations, for each control plane."""

    def __init__(self, stores: Stores, *, triggers: Triggers) -> None:
        self._stores = stores
        self._triggers = triggers
        self._moving: set[str] = set()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._changed = asyncio.Event()
        stores.registrations.listen(self._registration_changed)

    def resolving(self, name: str) -> asyncio.Lock:
        """Return the lock under which a registration of this control plane is resolved and published."""
        return self._locks.setdefault(name, asyncio.Lock())

    def check(self, registration: ControlPlaneRegistration, resolution: Resolution, *, of: ControlPlane) -> None:
        """Raise ConditionError (EndpointPending) if the address and Secrets of the control plane do not match now.

        A registration with a Secret of its own choice passes. A registration that has the pair already also passes: a
        user's change of a Secret is reverted, and must not stop running services.
        """
        if resolution.kubeconfig_secret != of.status.kubeconfig_secret_ref:
            return
        if of.name in self._moving:
            raise ConditionError(Reason.ENDPOINT_PENDING, f"control plane {of.name} is moving to another address")
        named = registration.status
        if (
            named.ready
            and named.control_plane_uid == of.metadata.uid
            and named.resolved_endpoint == resolution.endpoint
        ):
            return
        secrets = (resolution.kubeconfig_secret, resolution.controllers_secret)
        servers = {server for secret in secrets if secret is not None and (server := self._server(secret)) is not None}
        if servers - {of.status.endpoint}:
            raise ConditionError(
                Reason.ENDPOINT_PENDING,
                f"the kubeconfig of control plane {of.name} is for the address that it moves to",
                waits_for_event=False,
            )

    @contextlib.asynccontextmanager
    async def moving(self, control_plane: ControlPlane, *, to: str) -> AsyncIterator[None]:
        """Write the Secrets and the status of a control plane for address `to` within this block.

        If the address changes, no registration names the former address within the block. Raises ConditionError
        (Provisioning) if a registration still names the former address after the timeout.
        """
        name = control_plane.name
        if control_plane.status.endpoint in (None, to):
            yield
            return
        self._moving.add(name)
        try:
            self._wake(name)
            lock = await self._freed(control_plane)
            try:
                yield
            finally:
                self._moving.discard(name)
                lock.release()
        finally:
            self._moving.discard(name)
            self._wake(name)

    async def _freed(self, control_plane: ControlPlane) -> asyncio.Lock:
        """Return the lock, acquired at a moment when no registration names the former address."""
        lock = self.resolving(control_plane.name)
        try:
            async with asyncio.timeout(_FREED_SECONDS):
                while True:
                    async with contextlib.AsyncExitStack() as exit_stack:
                        await lock.acquire()
                        exit_stack.callback(lock.release)
                        self._changed.clear()
                        if not self._naming(control_plane):
                            exit_stack.pop_all()
                            return lock
                    await self._changed.wait()
        except TimeoutError:
            raise ConditionError(
                Reason.PROVISIONING,
                "waiting until registrations no longer name the former address:"
                f" {', '.join(self._naming(control_plane))}",
            ) from None

    def _naming(self, control_plane: ControlPlane) -> list[str]:
        names = []
        for obj in self._stores.registrations.by("control plane", control_plane.name):
            registration = PartialRegistration.of(obj)
            status = registration.status
            published = control_plane.status.kubeconfig_secret_ref
            if status.ready and published is not None and status.resolved_kubeconfig_secret_ref == published:
                names.append(registration.name)
        return names

    def _server(self, secret: SecretReference) -> str | None:
        """Return the server in a published kubeconfig; None if the Secret has no readable kubeconfig."""
        config = config_of(self._stores.secrets.get((secret.namespace, secret.name)))
        return config.server if config is not None else None

    def _wake(self, name: str) -> None:
        for obj in self._stores.registrations.by("control plane", name):
            self._triggers.registrations.add(obj["metadata"]["name"])

    def _registration_changed(self, _: Change) -> None:
        self._changed.set()
