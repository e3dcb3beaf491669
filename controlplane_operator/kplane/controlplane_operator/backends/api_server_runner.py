"""Runs the API server of a control plane, with the proxy to the destinations that its class allows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kplane.api import DEFAULT_SERVICE_CIDR, ControlPlane
from kplane.api.reasons import Reason
from kplane.components.api_server import (
    API_SERVER,
    API_SERVER_PORTS,
    api_server_component,
    external_url,
    server_url,
    serving_hosts,
)
from kplane.components.egress_proxy import ProxyProgram
from kplane.components.etcd import EtcdAccess
from kplane.components.names import apiserver_name
from kplane.controlplane_operator.backends.base import Provision, check_ready, runtime_errors, start_errors
from kplane.controlplane_operator.backends.class_settings import api_server_settings, exposure_of, scheduling_of
from kplane.controlplane_operator.backends.proxy import EgressProxies
from kplane.controlplane_operator.backends.readiness import (
    READY_WITHOUT_BOOTSTRAP_CHECKS,
    UNREPAIRED_SECONDS,
    check_bootstrapped,
    is_bootstrapped,
    is_unrepaired,
)
from kplane.controlplane_operator.backends.versions import ApiServerPlan
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.credentials.store import TenantKeys
from kplane.controlplane_operator.endpoints.addresses import Addresses
from kplane.controlplane_operator.gateway import host_name
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.pki.authorities import TenantAuthorities, TenantCertificates
from kplane.pki.primitives import KeyPair
from kplane.provider import ClusterConfig
from kplane.workloads import Address, Phase, Runtime

__all__ = ["ApiServerRunner", "Ground"]


@dataclass(frozen=True, slots=True)
class Ground:
    """Prerequisites of an API server, apart from its etcd."""

    plan: ApiServerPlan
    authorities: TenantAuthorities
    address: Address
    way_out: Address | None
    """Address of the proxy to allowed destinations; None if the class allows none."""
    certificates: TenantCertificates
    service_cidr: str
    published_url: str | None
    """URL of its host name at the gateway, without a path; None if it has none."""

    def provision(self, *, asleep_as: str | None = None) -> Provision:
        """Return the provision at this address.

        `asleep_as` is the version of a stopped API server. The administrator then gets no credentials.
        """
        url, external = server_url(self.address), external_url(self.address)
        administrator = self.authorities.issue_administrator() if asleep_as is None else None
        return Provision(
            addresses=Addresses(internal=url, external=external, join=external),
            administrator=ClusterConfig(
                server=url,
                ca_data=self.authorities.serving_trust,
                client_certificate=administrator.certificate if administrator is not None else None,
                client_key=administrator.key if administrator is not None else None,
            ),
            authorities=self.authorities,
            controllers=self.certificates.controllers,
            asleep_as=asleep_as,
        )


class ApiServerRunner:
    """Runs the API server of each control plane, on any etcd."""

    def __init__(self, context: OperatorContext, *, runtime: Runtime, keys: TenantKeys, proxy: ProxyProgram) -> None:
        self._context = context
        self._runtime = runtime
        self._keys = keys
        self._proxies = EgressProxies(runtime, program=proxy)
        self._unrepaired: dict[str, float] = {}
        """Time since which each component fails only the check of Service IPs, by the monotonic clock."""

    async def prepare(
        self,
        control_plane: ControlPlane,
        *,
        plan: ApiServerPlan,
        authorities: TenantAuthorities,
        etcd_authority: KeyPair,
        etcd_user: str,
        etcd_hosts: Sequence[str] = (),
    ) -> Ground:
        """Reserve the addresses of API server and proxy, and issue certificates for them and for the etcd."""
        service_cidr = control_plane.status.service_cidr or DEFAULT_SERVICE_CIDR
        gateway = self._context.gateway
        host = host_name(gateway, control_plane, chosen=plan.chosen)
        address = await self._runtime.reserve(
            apiserver_name(control_plane.name, slot=control_plane.home.slot),
            ports=API_SERVER_PORTS,
            exposed=exposure_of(plan.chosen),
        )
        way_out = await self._proxies.reserve(control_plane, chosen=plan.chosen)
        certificates = await self._keys.certificates(
            control_plane,
            authorities=authorities,
            hosts=serving_hosts(address, service_cidr=service_cidr, published=host),
            etcd_authority=etcd_authority,
            egress_hosts=(way_out.host,) if way_out is not None else (),
            etcd_user=etcd_user,
            etcd_hosts=etcd_hosts,
        )
        published_url = gateway.host_address(host) if gateway is not None and host is not None else None
        return Ground(plan, authorities, address, way_out, certificates, service_cidr, published_url)

    async def ensure(
        self, control_plane: ControlPlane, *, ground: Ground, etcd: EtcdAccess, etcd_prefix: str, etcd_shared: bool
    ) -> None:
        """Apply the proxy, then the API server, to the runtime; afterwards end a proxy without use."""
        plan = ground.plan
        egress = await self._proxies.ensure(
            control_plane,
            chosen=plan.chosen,
            address=ground.way_out,
            authorities=ground.authorities,
            certificates=ground.certificates,
        )
        await self._runtime.apply(
            api_server_component(
                apiserver_name(control_plane.name, slot=control_plane.home.slot),
                address=ground.address,
                authorities=ground.authorities,
                certificates=ground.certificates,
                etcd=etcd,
                etcd_prefix=etcd_prefix,
                etcd_shared=etcd_shared,
                version=plan.version,
                resources=plan.resources,
                settings=api_server_settings(plan.chosen),
                service_cidr=ground.service_cidr,
                scheduling=scheduling_of(plan.chosen),
                egress=egress,
                published_url=ground.published_url,
                # `provision` checks the bootstrap itself. The probe is equal for all API servers, because its change
                # restarts pods.
                ready_at=READY_WITHOUT_BOOTSTRAP_CHECKS,
            )
        )
        await self._proxies.end_unused(control_plane, chosen=plan.chosen)

    async def provision(
        self, control_plane: ControlPlane, *, ground: Ground, fresh: bool = False, writes: bool = True
    ) -> Provision:
        """Return the provision of the running API server. Raises ConditionError until the API server is ready.

        `fresh` means that the data are a copy of a template; without `writes`, the API server only reads.
        """
        plan, name = ground.plan, apiserver_name(control_plane.name, slot=control_plane.home.slot)
        published = control_plane.status.endpoint is not None
        try:
            state = await check_ready(self._runtime, name, what="kube-apiserver", published=published)
        except ConditionError:
            if not writes:
                await self._end_unrepaired(name, administrator=ground.provision().administrator)
            raise
        self._unrepaired.pop(name, None)
        provision = ground.provision()
        with start_errors(published=published):
            version = plan.version or state.version or await self._runtime.version(API_SERVER)
        if not is_bootstrapped(control_plane, version=version, fresh=fresh):
            await check_bootstrapped(
                provision.administrator, published=published, connections=self._context.connections
            )
        return replace(
            provision,
            settled=self._runtime.settled(name) and self._proxies.settled(control_plane, chosen=plan.chosen),
            asked=plan.asked,
            lag=plan.lag(state) or self._proxies.lag(control_plane, chosen=plan.chosen),
        )

    async def _end_unrepaired(self, name: str, *, administrator: ClusterConfig) -> None:
        """Stop a read-only API server whose Service IP check failed for 10 s. The next pass starts it again.

        Raises ConditionError after the stop.
        """
        if not await is_unrepaired(administrator, connections=self._context.connections):
            self._unrepaired.pop(name, None)
            return
        now = time.monotonic()
        if now - self._unrepaired.setdefault(name, now) < UNREPAIRED_SECONDS:
            return
        del self._unrepaired[name]
        with runtime_errors(Reason.MIGRATING):
            await self._runtime.stop(name)
        message = "Services and their addresses did not match when kube-apiserver began to read them: it starts again"
        raise ConditionError(Reason.MIGRATING, message)

    def phase(self, control_plane: ControlPlane) -> Phase:
        """Return the phase of the API server."""
        return self._runtime.state(apiserver_name(control_plane.name, slot=control_plane.home.slot)).phase

    async def stop(self, control_plane: ControlPlane) -> None:
        """Stop API server and proxy; their addresses stay."""
        await self._runtime.stop(apiserver_name(control_plane.name, slot=control_plane.home.slot))
        await self._proxies.stop(control_plane)

    async def delete(self, control_plane: ControlPlane) -> None:
        """Delete API server and proxy, with their addresses."""
        name = apiserver_name(control_plane.name, slot=control_plane.home.slot)
        self._unrepaired.pop(name, None)
        await self._runtime.delete(name)
        await self._proxies.end(control_plane)
