"""Proxies between API servers and the destinations that their classes allow."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from kplane.api import ControlPlane, ControlPlaneClass, Destination
from kplane.api.reasons import Reason
from kplane.components.egress import Egress, ProxyAccess
from kplane.components.egress_proxy import EGRESS_PORT, ProxyProgram, proxy_component
from kplane.components.names import apiserver_name, egress_name
from kplane.controlplane_operator.backends.base import VersionLag
from kplane.controlplane_operator.backends.class_settings import scheduling_of
from kplane.pki.authorities import TenantAuthorities, TenantCertificates
from kplane.workloads import Address, Phase, Runtime, WorkloadsError

__all__ = ["EgressProxies"]

_log: Final = logging.getLogger(__name__)


class EgressProxies:
    """Runs a proxy for each control plane whose class allows destinations.

    Each control plane has its own proxy. So a NetworkPolicy limits each proxy to the destinations of its class, and no
    tenant uses a program that reaches destinations of another tenant.
    """

    def __init__(self, runtime: Runtime, *, program: ProxyProgram) -> None:
        self._runtime = runtime
        self._program = program
        self._absent: set[str] = set()
        """Names of proxies that do not exist.

        A search through all components for each control plane would take long.
        """

    async def reserve(self, control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> Address | None:
        """Reserve and return the address of the proxy; None if the class in force allows no destinations."""
        if not _destinations(chosen):
            return None
        name = egress_name(control_plane.name, slot=control_plane.home.slot)
        self._absent.discard(name)
        return await self._runtime.reserve(name, ports=(EGRESS_PORT,))

    async def ensure(
        self,
        control_plane: ControlPlane,
        *,
        chosen: ControlPlaneClass | None,
        address: Address | None,
        authorities: TenantAuthorities,
        certificates: TenantCertificates,
    ) -> Egress:
        """Run the reserved proxy, and return how the API server connects to it."""
        if address is None or certificates.egress_proxy is None or certificates.kubelet_client is None:
            return Egress()
        name, ca = egress_name(control_plane.name, slot=control_plane.home.slot), authorities.front_proxy_trust
        component = proxy_component(
            name,
            program=self._program,
            address=address,
            destinations=_destinations(chosen),
            server=certificates.egress_proxy,
            ca=ca,
            reached_by=apiserver_name(control_plane.name, slot=control_plane.home.slot),
            scheduling=scheduling_of(chosen),
        )
        await self._runtime.apply(component)
        access = ProxyAccess(
            name,
            address.host,
            address.ports[EGRESS_PORT],
            client=certificates.front_proxy,
            ca=ca,
            kubelet_client=certificates.kubelet_client,
        )
        return Egress(access)

    def settled(self, control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> bool:
        """Return whether the proxy runs as described last, or is not needed."""
        return not _destinations(chosen) or self._runtime.settled(
            egress_name(control_plane.name, slot=control_plane.home.slot)
        )

    def lag(self, control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> VersionLag | None:
        """Return why the API server does not reach its allowed destinations; None if it does."""
        if not _destinations(chosen):
            return None
        state = self._runtime.state(egress_name(control_plane.name, slot=control_plane.home.slot))
        if state.phase is Phase.READY:
            return None
        details = f": {state.message}" if state.message else ""
        return VersionLag(
            Reason.ROLLING_OUT,
            f"the API server connects to no allowed destination, as its proxy is {state.phase}{details}",
        )

    async def end_unused(self, control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> None:
        """Delete a proxy that the API server no longer uses. A failure is logged, and a later call tries again."""
        name = egress_name(control_plane.name, slot=control_plane.home.slot)
        if _destinations(chosen) or name in self._absent:
            return
        try:
            await self.end(control_plane)
            self._absent.add(name)
        except WorkloadsError as error:
            _log.info("a proxy that is not used any more has not ended yet: %s", error)

    async def stop(self, control_plane: ControlPlane) -> None:
        """Stop the proxy while its API server does not run; its address stays."""
        name = egress_name(control_plane.name, slot=control_plane.home.slot)
        if name in self._runtime.names(prefix=name):
            await self._runtime.stop(name)

    async def end(self, control_plane: ControlPlane) -> None:
        """Delete the proxy, which ends all connections through it."""
        name = egress_name(control_plane.name, slot=control_plane.home.slot)
        self._absent.discard(name)
        if name in self._runtime.names(prefix=name):
            await self._runtime.delete(name)


def _destinations(chosen: ControlPlaneClass | None) -> Sequence[Destination]:
    return chosen.spec.allowed_destinations if chosen is not None else ()
