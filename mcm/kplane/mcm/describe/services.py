"""The services of a registration: which programs run for an engaged cluster."""

from __future__ import annotations

import enum

from kplane.api import Service
from kplane.mcm.describe.certificate import ServingCertificate
from kplane.mcm.describe.controllers import PROGRAM, component_name, configure, controllers_named
from kplane.mcm.describe.flags import Flags
from kplane.mcm.describe.scheduler import SCHEDULER_PROGRAM, configure_scheduler
from kplane.mcm.instance.programs import Build, Programs
from kplane.provider import Cluster
from kplane.provider.providers.kplane import SERVICES_ATTRIBUTE
from kplane.workloads import Address, Component

__all__ = ["SERVICES", "Served", "served"]

SERVICES = frozenset({Service.CONTROLLERS, Service.SCHEDULER})
"""Those that mcm provides."""


class Served(enum.Enum):
    """A service as mcm provides it; the value is the name of its program."""

    CONTROLLERS = PROGRAM
    SCHEDULER = SCHEDULER_PROGRAM

    @property
    def program(self) -> str:
        """Name of the program."""
        return self.value

    def component(self, registration: str) -> str:
        """Name of the component for a registration."""
        return component_name(registration, prefix="kcm" if self is Served.CONTROLLERS else "ksc")

    async def choose(self, cluster: Cluster, *, programs: Programs) -> Build:
        """Choose the program. Raises ConfigurationError or RuntimeFailure where none can do what is asked for."""
        build = await programs.choose(self.program, cluster=cluster)
        if self is Served.CONTROLLERS and (names := controllers_named(cluster)):
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
        """Describe its component; `flags` are of its program.

        Raises ConfigurationError: see `configure`.
        """
        if self is Served.CONTROLLERS:
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


def served(cluster: Cluster) -> tuple[Served, ...]:
    """List what runs for a cluster, controllers first; they alone where it names no services."""
    wanted = cluster.attributes.get(SERVICES_ATTRIBUTE, "").lower().split(",")
    found = tuple(each for each in Served if each.name.lower() in wanted)
    return found or (Served.CONTROLLERS,)
