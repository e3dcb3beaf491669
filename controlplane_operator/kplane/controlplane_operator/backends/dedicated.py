"""Control planes of mode Dedicated: an etcd and a kube-apiserver of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kplane.api import ControlPlane, ControlPlaneClass, DeletionPolicy
from kplane.controlplane_operator.backends.api_server_runner import ApiServerRunner
from kplane.controlplane_operator.backends.base import Provision, VersionLag, runtime_errors
from kplane.controlplane_operator.backends.class_settings import scheduling_of
from kplane.controlplane_operator.backends.etcd import EtcdAccess, client_url
from kplane.controlplane_operator.backends.members import DedicatedEtcd, EtcdKeys
from kplane.controlplane_operator.backends.proxy import PROXY_PROCESS, ProxyProgram
from kplane.controlplane_operator.backends.restore import Restorer
from kplane.controlplane_operator.backends.versions import ApiServerPlanner
from kplane.controlplane_operator.component_names import MOST_ETCD_MEMBERS, etcd_name
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.pki.store import TenantKeys
from kplane.controlplane_operator.reasons import Reason
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.data import HeldCredentials, Usage
from kplane.workloads import Runtime

__all__ = ["DedicatedProvisioner"]

_ETCD_USER: Final = "kube-apiserver"
_PREFIX: Final = "/registry"


class DedicatedProvisioner:
    """Runs an etcd and an API server for each control plane."""

    def __init__(
        self,
        context: OperatorContext,
        *,
        runtime: Runtime,
        quota_bytes: int,
        restorer: Restorer,
        proxy: ProxyProgram = PROXY_PROCESS,
    ) -> None:
        """`quota_bytes` is the size of a database at which its etcd refuses writes."""
        self._restorer = restorer
        self._keys = TenantKeys(context)
        self._planner = ApiServerPlanner(context, runtime=runtime)
        self._api_servers = ApiServerRunner(context, runtime=runtime, keys=self._keys, proxy=proxy)
        self._runtime = runtime
        self._etcd = DedicatedEtcd(runtime, quota_bytes=quota_bytes)

    def address(self, control_plane: ControlPlane) -> str | None:  # noqa: ARG002 - it is made for it
        """There is nothing that could be shared."""
        return None

    async def ensure(self, control_plane: ControlPlane) -> Provision:
        """Have etcd run, then the API server on it."""
        published = control_plane.status.endpoint is not None
        plan = await self._planner.plan(control_plane)
        asked = _members_asked(control_plane, chosen=plan.chosen)
        with runtime_errors(Reason.API_SERVER_NOT_READY if published else Reason.PROVISIONING):
            restored = control_plane.status.restore is not None and not published
            if restored:
                await self._restorer.restore_keys(control_plane)
            authorities = await self._keys.authorities(control_plane, has_data=self.has_data)
            wanted = self._etcd.wanted(control_plane, asked=asked)
            etcd_addresses = await self._etcd.reserve(control_plane, wanted=wanted)
            ground = await self._api_servers.prepare(
                control_plane,
                plan=plan,
                authorities=authorities,
                etcd_authority=authorities.etcd,
                etcd_user=_ETCD_USER,
                etcd_hosts=(*dict.fromkeys(address.host for address in etcd_addresses), "localhost"),
            )
            certificates = ground.certificates
            if certificates.etcd_server is None:
                raise ConditionError(Reason.FAILED, "the etcd of this control plane has no certificate")
            keys = EtcdKeys(authorities.etcd_trust, certificates.etcd_server, certificates.etcd_client)
            members = await self._etcd.ensure(
                control_plane,
                addresses=etcd_addresses,
                wanted=wanted,
                keys=keys,
                scheduling=scheduling_of(plan.chosen),
                begins_at=self._begins_at(control_plane),
            )
            urls = tuple(client_url(address) for address in members.voters)
            if restored:
                pair = keys.client
                held = HeldCredentials(ca=keys.ca, certificate=pair.certificate, key=pair.key)
                await self._restorer.restore_data(control_plane, endpoint=urls[0], credentials=held)
                if not members.settled:
                    raise ConditionError(Reason.PROVISIONING, "the data are restored; waiting until etcd has restarted")
            await self._api_servers.ensure(
                control_plane,
                ground=ground,
                etcd=EtcdAccess(urls, keys.ca, keys.client, components=tuple(_members(control_plane)[:wanted])),
                etcd_prefix=_PREFIX,
                etcd_shared=False,
            )
        found = await self._api_servers.provision(control_plane, ground=ground)
        return replace(
            found,
            settled=found.settled and members.settled,
            lag=found.lag or members.lag or _more_than_asked(wanted, asked=asked),
            again_seconds=members.again_seconds,
        )

    def _begins_at(self, control_plane: ControlPlane) -> int | None:
        """Return the revision that the etcd of a restore begins at; None once it has the data.

        What makes that beginning is of the operator's image: etcd would restart with each upgrade of the operator.
        """
        restore = control_plane.status.restore
        if restore is None or control_plane.status.endpoint is not None or self._restorer.has_restored(control_plane):
            return None
        return restore.begins_at

    async def has_data(self, control_plane: ControlPlane) -> bool:
        """Tell whether there is an etcd of the control plane, running or not."""
        names = self._runtime.names()
        return any(member in names for member in _members(control_plane))

    async def volume(self, control_plane: ControlPlane) -> str | None:
        """Name the volume claims of etcd; there are none where etcd is a process."""
        with runtime_errors(Reason.NAMESPACE_DELETED):
            found = [await self._runtime.volume(member) for member in _members(control_plane)]
        return ", ".join(claim for claim in found if claim is not None) or None

    async def unprotect(self, control_plane: ControlPlane) -> None:
        """Let the volume claims of etcd go with their namespace."""
        with runtime_errors(Reason.DELETING):
            for member in _members(control_plane):
                await self._runtime.unprotect(member)

    def usage(self, uid: str) -> Usage | None:  # noqa: ARG002 - of none
        """Return None: it keeps nothing in the shared etcd."""
        return None

    def let_go(self, uid: str) -> None:
        """It has nothing that is repaired between two calls of `ensure`."""

    async def take_over(self, control_plane: ControlPlane, *, former: str) -> None:
        """Do nothing: only its API server reaches its etcd, and the next API server replaces that one."""

    async def shut_down(self, control_plane: ControlPlane) -> None:
        """End the API server."""
        with runtime_errors(Reason.DELETING):
            await self._api_servers.delete(control_plane)

    async def settle(self, control_plane: ControlPlane, *, policy: DeletionPolicy) -> None:
        """End etcd; its data go if the policy is Destroy."""
        with runtime_errors(Reason.DELETING):
            for member in _members(control_plane):
                await (self._runtime.delete(member) if policy is DeletionPolicy.DESTROY else self._runtime.stop(member))


def _members_asked(control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> int:
    """Return how many members spec or class ask for."""
    own = control_plane.spec.dedicated.etcd if control_plane.spec.dedicated is not None else None
    settings = own or (chosen.spec.etcd if chosen is not None else None)
    return settings.members if settings is not None else 1


def _members(control_plane: ControlPlane) -> list[str]:
    return [etcd_name(control_plane.name, number) for number in range(MOST_ETCD_MEMBERS)]


def _more_than_asked(wanted: int, *, asked: int) -> VersionLag | None:
    if wanted <= asked:
        return None
    return VersionLag(
        Reason.ETCD_MEMBERS_KEPT,
        f"etcd has {wanted} members, and {asked} is asked for: kplane takes no member away; set the number to {wanted}",
    )
