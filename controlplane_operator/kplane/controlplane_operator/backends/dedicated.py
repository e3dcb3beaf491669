"""Control planes of mode Dedicated: an etcd and a kube-apiserver of their own."""

from __future__ import annotations

from typing import Final

from kplane.api import DEFAULT_SERVICE_CIDR, ControlPlane, DeletionPolicy
from kplane.controlplane_operator.backends.apiserver import API_SERVER_PORTS, api_server_component, serving_hosts
from kplane.controlplane_operator.backends.base import Provision, check_ready, provision_at, runtime_errors
from kplane.controlplane_operator.backends.class_settings import api_server_settings, exposure_of, scheduling_of
from kplane.controlplane_operator.backends.etcd import ETCD_PORTS, EtcdAccess, client_url, etcd_component
from kplane.controlplane_operator.backends.proxy import PROXY_PROCESS, EgressProxies, ProxyProgram
from kplane.controlplane_operator.backends.versions import ApiServerPlanner
from kplane.controlplane_operator.component_names import apiserver_name, etcd_name
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.pki.store import TenantKeys
from kplane.controlplane_operator.reasons import Reason
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.data import Usage
from kplane.workloads import Runtime

__all__ = ["DedicatedProvisioner"]

_ETCD_USER: Final = "kube-apiserver"
_PREFIX: Final = "/registry"


class DedicatedProvisioner:
    """Runs an etcd and an API server for each control plane."""

    def __init__(
        self, context: OperatorContext, *, runtime: Runtime, quota_bytes: int, proxy: ProxyProgram = PROXY_PROCESS
    ) -> None:
        """`quota_bytes` is the size of a database at which its etcd refuses writes."""
        self._keys = TenantKeys(context)
        self._planner = ApiServerPlanner(context, runtime=runtime)
        self._proxies = EgressProxies(context, runtime=runtime, program=proxy)
        self._runtime = runtime
        self._quota_bytes = quota_bytes

    def address(self, control_plane: ControlPlane) -> str | None:  # noqa: ARG002 - it is made for it
        """There is nothing that could be shared."""
        return None

    async def ensure(self, control_plane: ControlPlane) -> Provision:
        """Have etcd run, then the API server on it."""
        published = control_plane.status.endpoint is not None
        name, etcd = apiserver_name(control_plane.name), etcd_name(control_plane.name)

        plan = await self._planner.plan(control_plane)
        service_cidr = control_plane.status.service_cidr or DEFAULT_SERVICE_CIDR
        with runtime_errors(Reason.API_SERVER_NOT_READY if published else Reason.PROVISIONING):
            authorities = await self._keys.authorities(control_plane, has_data=self.has_data)
            etcd_address = await self._runtime.reserve(etcd, ports=ETCD_PORTS)
            address = await self._runtime.reserve(name, ports=API_SERVER_PORTS, exposed=exposure_of(plan.chosen))
            way_out = await self._proxies.reserve(control_plane)
            certificates = await self._keys.certificates(
                control_plane,
                authorities=authorities,
                hosts=serving_hosts(address, service_cidr=service_cidr),
                etcd_authority=authorities.etcd,
                egress_hosts=(way_out.host,) if way_out is not None else (),
                etcd_user=_ETCD_USER,
                etcd_hosts=(etcd_address.host, "localhost"),
            )
            if certificates.etcd_server is None:
                raise ConditionError(Reason.FAILED, "the etcd of this control plane has no certificate")
            ca = authorities.etcd_trust
            await self._runtime.apply(
                etcd_component(
                    etcd,
                    address=etcd_address,
                    ca=ca,
                    server=certificates.etcd_server,
                    quota_bytes=self._quota_bytes,
                    reached_by=(name,),
                    scheduling=scheduling_of(plan.chosen),
                )
            )
            await check_ready(self._runtime, etcd, what="etcd", published=published)
            egress = await self._proxies.ensure(
                control_plane, address=way_out, authorities=authorities, certificates=certificates
            )
            await self._runtime.apply(
                api_server_component(
                    name,
                    address=address,
                    authorities=authorities,
                    certificates=certificates,
                    etcd=EtcdAccess((client_url(etcd_address),), ca, certificates.etcd_client, component=etcd),
                    etcd_prefix=_PREFIX,
                    etcd_shared=False,
                    version=plan.version,
                    resources=plan.resources,
                    settings=api_server_settings(plan.chosen),
                    service_cidr=service_cidr,
                    scheduling=scheduling_of(plan.chosen),
                    egress=egress,
                )
            )
        state = await check_ready(self._runtime, name, what="kube-apiserver", published=published)
        settled = all(self._runtime.settled(each) for each in (etcd, name)) and self._proxies.settled(control_plane)
        return provision_at(
            address,
            authorities=authorities,
            certificates=certificates,
            settled=settled,
            asked=plan.asked,
            lag=plan.lag(state) or self._proxies.lag(control_plane),
        )

    async def has_data(self, control_plane: ControlPlane) -> bool:
        """Tell whether there is an etcd of the control plane, running or not."""
        return etcd_name(control_plane.name) in self._runtime.names()

    async def volume(self, control_plane: ControlPlane) -> str | None:
        """Name the volume claim of etcd; there is none where etcd is a process."""
        with runtime_errors(Reason.NAMESPACE_DELETED):
            return await self._runtime.volume(etcd_name(control_plane.name))

    async def unprotect(self, control_plane: ControlPlane) -> None:
        """Let the volume claim of etcd go with its namespace."""
        with runtime_errors(Reason.DELETING):
            await self._runtime.unprotect(etcd_name(control_plane.name))

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
            await self._runtime.delete(apiserver_name(control_plane.name))
            await self._proxies.end(control_plane)

    async def settle(self, control_plane: ControlPlane, *, policy: DeletionPolicy) -> None:
        """End etcd; its data go if the policy is Destroy."""
        etcd = etcd_name(control_plane.name)
        with runtime_errors(Reason.DELETING):
            await (self._runtime.delete(etcd) if policy is DeletionPolicy.DESTROY else self._runtime.stop(etcd))
