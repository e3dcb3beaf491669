"""The proxies between API servers and what their classes allow."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kplane.api import ControlPlane, ControlPlaneClass, Destination
from kplane.controlplane_operator import egress_proxy
from kplane.controlplane_operator.backends.base import VersionLag
from kplane.controlplane_operator.backends.class_settings import scheduling_of
from kplane.controlplane_operator.backends.egress import Egress, ProxyAccess
from kplane.controlplane_operator.component_names import apiserver_name, egress_name
from kplane.controlplane_operator.pki.authorities import TenantAuthorities, TenantCertificates
from kplane.controlplane_operator.pki.primitives import KeyPair
from kplane.controlplane_operator.reasons import Reason
from kplane.workloads import (
    FILES,
    Address,
    Component,
    File,
    Phase,
    Port,
    Reach,
    Resources,
    Runtime,
    Scheduling,
    WorkloadsError,
)

__all__ = ["EGRESS_PROXY", "PROXY_PROCESS", "EgressProxies", "ProxyProgram", "proxy_component"]

_log: Final = logging.getLogger(__name__)

EGRESS_PROXY: Final = "egress-proxy"
"""The program's name, where it is that of an image."""

_PORT: Final = "egress"
_RESOURCES: Final = Resources(cpu_request="10m", memory_request="32Mi", memory_limit="128Mi")
"""It takes 14 MiB, and with all of its 128 connections busy 100."""


@dataclass(frozen=True, slots=True)
class ProxyProgram:
    """How each proxy is started."""

    program: str
    args: tuple[str, ...] = ()


PROXY_PROCESS: Final = ProxyProgram(sys.executable, ("-I", "-S", egress_proxy.__file__))
"""This interpreter, with the one file that it needs."""


def proxy_component(
    name: str,
    *,
    program: ProxyProgram,
    address: Address,
    destinations: Sequence[Destination],
    server: KeyPair,
    ca: bytes,
    reached_by: str,
    scheduling: Scheduling | None = None,
) -> Component:
    """Describe the proxy of a control plane. Equal arguments give an equal description.

    The destinations are arguments: a change restarts the proxy, which ends connections to what is allowed no more.
    """
    port = address.ports[_PORT]
    listen = f"[{address.listen}]" if ":" in address.listen else address.listen
    allowed = [f"{each.cidr}={','.join(map(str, each.ports))}" for each in destinations]
    return Component(
        name=name,
        program=program.program,
        args=(
            *program.args,
            f"--listen={listen}:{port}",
            f"--certificate={FILES}/server.crt",
            f"--key={FILES}/server.key",
            f"--ca={FILES}/ca.crt",
            *(f"--allow={each}" for each in allowed),
        ),
        files={"server.crt": File(server.certificate), "server.key": File(server.key), "ca.crt": File(ca)},
        ports=(Port(number=port, name=_PORT),),
        resources=_RESOURCES,
        scheduling=scheduling,
        reached_by=(reached_by,),
        reaches=tuple(Reach(port=port, network=each.cidr) for each in destinations for port in each.ports),
        grace_seconds=5.0,
    )


class EgressProxies:
    """Runs a proxy for each control plane whose class allows destinations.

    One for each, because then a NetworkPolicy holds it to what its class allows, and no tenant is served by a program
    that reaches another tenant's destinations.
    """

    def __init__(self, runtime: Runtime, *, program: ProxyProgram) -> None:
        self._runtime = runtime
        self._program = program
        self._absent: set[str] = set()
        """Proxies that are known not to be there: to list all components for each control plane takes long."""

    async def reserve(self, control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> Address | None:
        """Return the proxy's address; None if the class that it follows allows nothing."""
        if not _destinations(chosen):
            return None
        name = egress_name(control_plane.name, slot=control_plane.home.slot)
        self._absent.discard(name)
        return await self._runtime.reserve(name, ports=(_PORT,))

    async def ensure(
        self,
        control_plane: ControlPlane,
        *,
        chosen: ControlPlaneClass | None,
        address: Address | None,
        authorities: TenantAuthorities,
        certificates: TenantCertificates,
    ) -> Egress:
        """Have the proxy run that was reserved; returns what the API server connects to."""
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
            address.ports[_PORT],
            client=certificates.front_proxy,
            ca=ca,
            kubelet_client=certificates.kubelet_client,
        )
        return Egress(access)

    def settled(self, control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> bool:
        """Tell whether nothing of an earlier description of the proxy runs."""
        return not _destinations(chosen) or self._runtime.settled(
            egress_name(control_plane.name, slot=control_plane.home.slot)
        )

    def lag(self, control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> VersionLag | None:
        """Say why the API server does not reach what it may; None if it does."""
        if not _destinations(chosen):
            return None
        state = self._runtime.state(egress_name(control_plane.name, slot=control_plane.home.slot))
        if state.phase is Phase.READY:
            return None
        told = f": {state.message}" if state.message else ""
        return VersionLag(
            Reason.ROLLING_OUT,
            f"the API server connects to no allowed destination, as its proxy is {state.phase}{told}",
        )

    async def end_unused(self, control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> None:
        """End a proxy that the API server uses no more. One that cannot be ended now is ended at another time."""
        name = egress_name(control_plane.name, slot=control_plane.home.slot)
        if _destinations(chosen) or name in self._absent:
            return
        try:
            await self.end(control_plane)
            self._absent.add(name)
        except WorkloadsError as error:
            _log.info("a proxy that is not used any more has not ended yet: %s", error)

    async def stop(self, control_plane: ControlPlane) -> None:
        """End the proxy for as long as its API server does not run; its address stays."""
        name = egress_name(control_plane.name, slot=control_plane.home.slot)
        if name in self._runtime.names(prefix=name):
            await self._runtime.stop(name)

    async def end(self, control_plane: ControlPlane) -> None:
        """End the proxy, and with it all connections through it."""
        name = egress_name(control_plane.name, slot=control_plane.home.slot)
        self._absent.discard(name)
        if name in self._runtime.names(prefix=name):
            await self._runtime.delete(name)


def _destinations(chosen: ControlPlaneClass | None) -> Sequence[Destination]:
    return chosen.spec.allowed_destinations if chosen is not None else ()
