"""Probes of the published credentials of awake control planes, and repairs if an API server refuses them.

The same probe observes the heartbeats of instances (`registrations/heartbeats.py`) and the use of control planes with a
host name (`hibernation/host_name_use.py`). It also reads the webhooks on Leases (`tenant/admission.py`).

A user inside a control plane may delete the ServiceAccount or the ClusterRoleBinding of a published kubeconfig. The
kubeconfig is useless from then on. A probe costs one request for each of the two identities.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from dataclasses import dataclass
from typing import Any, Final

from kplane.api import ControlPlane
from kplane.api.names import PAUSED_ANNOTATION
from kplane.controlplane_operator.class_policy import class_in_force
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.hibernation.host_name_use import HostNameUse, UseUnknown, is_counted
from kplane.controlplane_operator.registrations.heartbeats import InstanceHeartbeats
from kplane.controlplane_operator.status.partial import as_recorded
from kplane.controlplane_operator.tenant.admission import lease_guards
from kplane.controlplane_operator.tenant.bootstrap import CONTROLLERS_ROLE, Binding
from kplane.controlplane_operator.tenant.client import tenant_client
from kplane.controlplane_operator.watch.cache import Key, Object
from kplane.controlplane_operator.watch.predicates import is_hibernated
from kplane.pki.issuing import Identity
from kplane.provider import Client, ClusterConfig, NotFound, ProviderError, Result
from kplane.provider.client.admission import Guard
from kplane.provider.client.connections import Connections
from kplane.provider.client.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES
from kplane.provider.errors import Forbidden, Unauthorized

__all__ = ["CredentialProbes", "ProbedCredentials"]

_log: Final = logging.getLogger(__name__)

_PERIOD_SECONDS: Final = 20.0
"""Maximum time between two probes. API servers accept the token of a deleted ServiceAccount for 10 s longer, because
they remember successful authentication (TokenSuccessCacheTTL of pkg/kubeapiserver/authenticator)."""
_SHORTEST: Final = 0.75
"""Minimum interval as a share of the period, so that probes of control planes spread out."""
_GUARDS_SECONDS: Final = 30.0
"""Minimum time between two reads of the webhooks on Leases. A read is two lists."""
_KEPT_AT_MOST: Final = 200
"""Number of probed control planes above which connections close after each probe. That saves 0.3 MiB and costs 8 ms
each."""
_SETTLING_SECONDS: Final = (0.1, 0.3, 1.0)
"""Waits in seconds after a repair. The authorizer of an API server learns of a new binding by a watch."""
_FROM_MEMORY: Final = {"resourceVersion": "0"}
"""With this parameter, the API server answers from its watch cache, without a read of etcd."""


@dataclass(frozen=True, slots=True)
class ProbedCredentials:
    """The published credentials of a control plane, each with the binding that grants its rights."""

    uid: str
    """Uid of the control plane."""
    administrator: ClusterConfig
    identities: tuple[tuple[Identity, Binding], tuple[Identity, Binding]]
    """Identities of the administrator and of the controllers, each with its binding."""

    def reader(self, connections: Connections) -> Client:
        """Return a client that may read all objects.

        It uses the administrator's identity if its role allows that, else the controllers' identity.
        """
        (admin, binding), (controllers, _) = self.identities
        identity = admin if binding.role == CONTROLLERS_ROLE else controllers
        return tenant_client(identity.config(self.administrator), connections=connections)

    async def refusal(self, connections: Connections) -> str | None:
        """Return why the API server refuses a published identity; None if it accepts both.

        Raises ProviderError if the API server does not answer, or for an error unrelated to the credentials.
        """
        for identity, binding in self.identities:
            # Users inside can delete the binding of a certificate, but not the certificate itself. So its binding is
            # read with the administrator's connection, and no connection is opened for the certificate.
            asking = identity if identity.client is None else self.identities[0][0]
            refusal = await self._refusal_of(asking, binding, connections)
            if refusal is not None:
                return refusal
        return None

    async def refusal_after_repair(self, connections: Connections) -> str | None:
        """Return the refusal as `refusal` does, after a repair.

        Up to four attempts over 1.4 s give the API server time to see the repair.
        """
        for seconds in _SETTLING_SECONDS:
            if await self.refusal(connections) is None:
                return None
            await asyncio.sleep(seconds)
        return await self.refusal(connections)

    async def _refusal_of(self, identity: Identity, binding: Binding, connections: Connections) -> str | None:
        who = f"{binding.subject.kind} {binding.subject.name}"
        try:
            async with tenant_client(identity.config(self.administrator), connections=connections) as client:
                stored = await _read(client, binding)
        except Unauthorized as error:
            return f"the API server refuses the published credentials of {who}: {error}"
        except Forbidden:
            # The role may not read bindings, or the binding is gone. The administrator's own client finds out.
            async with tenant_client(self.administrator, connections=connections) as client:
                stored = await _read(client, binding)
                if stored is not None and not await client.exists(CLUSTER_ROLES, binding.role):
                    return f"ClusterRole {binding.role} of {who} does not exist in the control plane"
        if stored is None:
            return f"ClusterRoleBinding {binding.name} of {who} does not exist in the control plane"
        if not binding.is_in(stored):
            return f"ClusterRoleBinding {binding.name} does not give role {binding.role} to {who} any more"
        return None


async def _read(client: Client, binding: Binding) -> Any:
    try:
        return await client.request("GET", CLUSTER_ROLE_BINDINGS.path(binding.name), params=_FROM_MEMORY)
    except NotFound:
        return None


class CredentialProbes:
    """Probes control planes from `follow` to `stop`, at most 20 s apart.

    Sleeping or paused control planes are not probed.

    A refusal wakes the control plane's reconciler, which repairs the inside. Other webhooks on Leases wake it as well,
    for condition LeasesUnguarded. An API server that does not answer has no effect here.
    """

    def __init__(self, context: OperatorContext, *, use: HostNameUse) -> None:
        self._context = context
        self._use = use
        self._heartbeats = InstanceHeartbeats(context)
        self._probed: dict[Key, ProbedCredentials] = {}
        self._refusals: dict[str, str] = {}
        """By uid of the control plane, the reason why its API server refuses the published credentials, until a
        repair."""
        self._guards: dict[str, tuple[tuple[Guard, ...], float]] = {}
        """By uid of the control plane, the webhooks on Leases, and the monotonic time at which they were read."""

    def follow(self, key: Key, probed: ProbedCredentials, *, guards: tuple[Guard, ...] | None = None) -> None:
        """Probe these credentials, which were just verified, instead of the previous credentials.

        `guards` are the webhooks on Leases that were just read; None if they were not read.
        """
        self._refusals.pop(probed.uid, None)
        if guards is not None and guards != self.lease_guards(probed.uid):
            self._guards[probed.uid] = guards, time.monotonic()
        self._probed[key] = probed
        self._context.triggers.probes.add(key[1], seconds=_delay())

    def stop(self, key: Key) -> None:
        """Stop probing this control plane."""
        probed = self._probed.pop(key, None)
        if probed is not None:
            self._refusals.pop(probed.uid, None)
            self._guards.pop(probed.uid, None)
            self._heartbeats.forget(probed.uid)
            self._use.forget(probed.uid)

    def refusal(self, uid: str) -> str | None:
        """Return why the last probe of the control plane was refused; None if it was accepted."""
        return self._refusals.get(uid)

    def lease_guards(self, uid: str) -> tuple[Guard, ...] | None:
        """Return the webhooks on the Leases of controllers at their last read; None if they were not read yet."""
        guards = self._guards.get(uid)
        return guards[0] if guards is not None else None

    async def reconcile(self, key: Key) -> Result | None:
        """Probe the control plane of this key. Returns when to probe again; None if it is no longer probed."""
        probed, control_plane = self._probed.get(key), self._context.stores.control_planes.get(key)
        if probed is None:
            return None
        if control_plane is None or control_plane["metadata"]["uid"] != probed.uid or _is_left_alone(control_plane):
            self.stop(key)
            return None
        try:
            refusal = await probed.refusal(self._connections())
            if refusal is None:
                if self._heartbeats.concerns(probed.uid):
                    async with probed.reader(self._connections()) as client:
                        await self._heartbeats.observe(probed.uid, client)
                await self._observe_use(as_recorded(control_plane))
                await self._observe_guards(key, probed)
        except (ProviderError, UseUnknown) as error:
            # The API server starts, ends or fails. Its own checks report that, so the probe does not.
            _log.debug("failed to probe the published credentials: %s", error)
            refusal = None
        # A refusal that is already known is repaired at the reconciler's own pace, which tenants cannot speed up.
        if refusal is not None and self._probed.get(key) == probed and probed.uid not in self._refusals:
            self._refusals[probed.uid] = refusal
            message = f"{refusal}; the operator repairs it"
            recorded = as_recorded(control_plane)
            self._context.events.record(recorded, reason="CredentialsRejected", message=message, warning=True)
            _log.warning("%s", message)
            self._context.triggers.control_planes.add(key[1])
        return Result(_delay())

    async def _observe_use(self, control_plane: ControlPlane) -> None:
        control_plane_class = class_in_force(control_plane, classes=self._context.stores.classes).chosen
        if is_counted(control_plane, chosen=control_plane_class, gateway=self._context.gateway):
            await self._use.observe(control_plane)

    async def _observe_guards(self, key: Key, probed: ProbedCredentials) -> None:
        """Read the webhooks on Leases if the last read is old, and wake the reconciler if they have changed.

        The operator's own administrator reads them: a read by the published one counts as use of the control plane.
        """
        known, read_at = self._guards.get(probed.uid, ((), -_GUARDS_SECONDS))
        if time.monotonic() - read_at < _GUARDS_SECONDS:
            return
        async with tenant_client(probed.administrator, connections=self._connections()) as client:
            guards = await lease_guards(client)
        if guards is None or self._probed.get(key) != probed:
            return
        self._guards[probed.uid] = guards, time.monotonic()
        if guards != known:
            self._context.triggers.control_planes.add(key[1])

    def _connections(self) -> Connections:
        """Return the connections for a probe: kept between probes, unless that would take too much memory."""
        many = len(self._probed) > _KEPT_AT_MOST
        return self._context.brief_connections if many else self._context.connections


def _is_left_alone(control_plane: Object) -> bool:
    metadata = control_plane["metadata"]
    paused = (metadata.get("annotations") or {}).get(PAUSED_ANNOTATION) == "true"
    return paused or "deletionTimestamp" in metadata or is_hibernated(control_plane)


def _delay() -> float:
    return _PERIOD_SECONDS * random.uniform(_SHORTEST, 1.0)  # noqa: S311 - spreads load, guards nothing
