"""The services of a registration: which programs run for an engaged cluster."""

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
"""Those that mcm provides."""


class InstanceKind(enum.Enum):
    """A service as mcm provides it; the value is the name of its program."""

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
        """Choose the program. Raises ConfigurationError or RuntimeFailure where none can do what is asked for."""
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
        """Describe its component; `flags` are of its program.

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
    """List what runs for a cluster, controllers first; they alone where it names no services."""
    wanted = cluster.attributes.get(SERVICES_ATTRIBUTE, "").lower().split(",")
    found = tuple(each for each in InstanceKind if each.name.lower() in wanted)
    return found or (InstanceKind.CONTROLLERS,)


def services_of(cluster: Cluster) -> list[str]:
    """List the services that run for a cluster, as registrations call them."""
    return [each.name.title() for each in instance_kinds(cluster)]


def fingerprint(components: Iterable[Component]) -> str:
    """Distinguish the configuration of all instances of one cluster from any other.

    It is the same in every run of mcm: ports and certificates between mcm and its instances do not count, nor do files
    that a program reads again by itself, nor limits, which all instances of a run have alike. It is for people, and to
    see to turns; whether a process is replaced, the runtime finds out by itself (`Runtime.apply`).
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
