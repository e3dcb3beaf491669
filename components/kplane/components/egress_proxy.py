"""Description of the proxy between an API server and the destinations that its class allows."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kplane.api import Destination
from kplane.egress_proxy import main
from kplane.pki.primitives import KeyPair
from kplane.workloads import FILES, Address, Component, File, Port, Reach, Resources, Scheduling

__all__ = ["EGRESS_PORT", "EGRESS_PROXY", "PROXY_PROCESS", "ProxyProgram", "proxy_component"]

EGRESS_PROXY: Final = "egress-proxy"
"""Name of the program, if the program is in an image."""

EGRESS_PORT: Final = "egress"
"""Port to reserve with `Runtime.reserve`."""
_RESOURCES: Final = Resources(cpu_request="10m", memory_request="32Mi", memory_limit="128Mi")
"""The proxy takes 14 MiB, and 100 MiB with all of its 128 connections busy."""


@dataclass(frozen=True, slots=True)
class ProxyProgram:
    """Start command of each proxy."""

    program: str
    args: tuple[str, ...] = ()


PROXY_PROCESS: Final = ProxyProgram(sys.executable, ("-I", "-S", main.__file__))
"""Start command with this Python interpreter and the proxy's single file."""


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

    The destinations are flags: a change restarts the proxy, which ends connections to destinations no longer allowed.
    Another order of them, or of their ports, gives an equal description.
    """
    port = address.ports[EGRESS_PORT]
    listen = f"[{address.listen}]" if ":" in address.listen else address.listen
    ports: dict[str, set[int]] = {}
    for destination in destinations:
        ports.setdefault(destination.cidr, set()).update(destination.ports)
    allowed = [(cidr, sorted(numbers)) for cidr, numbers in sorted(ports.items())]
    return Component(
        name=name,
        program=program.program,
        args=(
            *program.args,
            f"--listen={listen}:{port}",
            f"--certificate={FILES}/server.crt",
            f"--key={FILES}/server.key",
            f"--ca={FILES}/ca.crt",
            *(f"--allow={cidr}={','.join(map(str, numbers))}" for cidr, numbers in allowed),
        ),
        files={"server.crt": File(server.certificate), "server.key": File(server.key), "ca.crt": File(ca)},
        ports=(Port(number=port, name=EGRESS_PORT),),
        resources=_RESOURCES,
        scheduling=scheduling,
        reached_by=(reached_by,),
        reaches=tuple(Reach(port=number, network=cidr) for cidr, numbers in allowed for number in numbers),
        grace_seconds=5.0,
    )
