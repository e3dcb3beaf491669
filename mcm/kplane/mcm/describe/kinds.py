"""Services of a registration, and the programs that run for an engaged cluster."""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Iterable
from typing import Final

from kplane.api import Service
from kplane.mcm.describe.certificate import ServingCertificate
from kplane.mcm.describe.controllers import PROGRAM, READERS, SERVING, component_name, configure, controllers_named
from kplane.mcm.describe.flags import Flags
from kplane.mcm.describe.programs import Build, Programs
from kplane.mcm.describe.scheduler import SCHEDULER_PROGRAM, configure_scheduler
from kplane.provider import Cluster
from kplane.provider.providers.kplane import SERVICES_ATTRIBUTE
from kplane.workloads import Address, Component

__all__ = ["SERVICES", "InstanceKind", "fingerprint", "instance_kinds", "services_of"]

SERVICES = frozenset({Service.CONTROLLERS, Service.SCHEDULER})
"""Services that mcm provides."""


class InstanceKind(enum.Enum):
    """Service that mcm provides; the value is the name of its program."""

    CONTROLLERS = PROGRAM
    SCHEDULER = SCHEDULER_PROGRAM

    @property
    def program(self) -> str:
        """Name of the program."""
        return self.value

    def component(self, registration: str) -> str:
        """Name of the component for a registration."""
        return component_name(registration, prefix="kcm" if self is InstanceKind.CONTROLLERS else "ksc")

    async def choose(self, cluster: Cluster, *, programs: Programs) -> Build:
        """Choose the build of the program. Raises ConfigurationError or RuntimeFailure if no build fits."""
        build = await programs.choose(self.program, cluster=cluster)
        if self is InstanceKind.CONTROLLERS and (names := controllers_named(cluster)):
            await programs.check_controllers(build, names, cluster=cluster)
        return build

    def describe(
        self,
        cluster: Cluster,
        *,
        address: Address,
        serving: ServingCertificate,
        flags: Flags,
        program: str,
        readers: bytes | None = None,
    ) -> Component:
        """Return the component of the cluster's instance; `flags` are flags of its program.

        Raises ConfigurationError: see `configure`.
        """
        if self is InstanceKind.CONTROLLERS:
            return configure(
                cluster,
                address=address,
                serving=serving,
                flags=flags,
                program=program,
                readers=readers,
            )
        return configure_scheduler(
            cluster,
            name=self.component(cluster.name),
            address=address,
            serving=serving,
            program=program,
            readers=readers,
            flags=flags,
        )


def instance_kinds(cluster: Cluster) -> tuple[InstanceKind, ...]:
    """Return the kinds of a cluster's instances, controllers first; only controllers if it names no known services."""
    services = cluster.attributes.get(SERVICES_ATTRIBUTE, "").lower().split(",")
    kinds = tuple(kind for kind in InstanceKind if kind.name.lower() in services)
    return kinds or (InstanceKind.CONTROLLERS,)


def services_of(cluster: Cluster) -> list[str]:
    """Return the services that run for a cluster, as registrations spell them."""
    return [kind.name.title() for kind in instance_kinds(cluster)]


def fingerprint(components: Iterable[Component]) -> str:
    """Return a hash of the configuration of all instances of a cluster.

    The hash is the same in every run of mcm. It does not cover ports and certificates between mcm and its instances.
    Neither does it cover files that a program reloads, nor limits, which are equal for all instances of a run. mcm
    shows the hash to people, and uses it to decide whether a change needs a turn. The runtime decides on its own
    whether to replace a process (`Runtime.apply`).
    """
    described = [
        [
            component.program,
            [argument for argument in component.args if not argument.startswith(_PLACE)],
            {
                name: None if file.reloaded else hashlib.sha256(file.content).hexdigest()
                for name, file in component.files.items()
                if name not in _OURS
            },
            dict(component.env),
        ]
        for component in components
    ]
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:_LENGTH]


_LENGTH: Final = 12
_PLACE: Final = ("--bind-address=", "--secure-port=")
_OURS: Final = frozenset({*SERVING, READERS})
