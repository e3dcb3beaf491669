"""Keeps one kube-controller-manager running for each engaged cluster."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from mcm.instance import INSTANCE_PORTS, ServingCertificate, component_name, instance_component
from mcm.profiles import Profile
from provider import Aware, Cluster, Engagement
from provider.logs import log_fields
from workloads import Phase, Runtime

__all__ = ["PROFILE_ATTRIBUTE", "Instance", "Instances"]

log: Final = logging.getLogger(__name__)

PROFILE_ATTRIBUTE: Final = "profile"
"""Attribute of a cluster that names its profile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """What is known of the instance of one cluster."""

    cluster: str
    server: str
    profile: Profile
    phase: Phase
    pid: int | None
    restarts: int
    message: str


class Instances(Aware):
    """One instance for each engagement: it starts with it, and has ended when the engagement has."""

    def __init__(self, runtime: Runtime, *, host: str) -> None:
        self._runtime = runtime
        self._serving = ServingCertificate.create(host)
        self._engaged: dict[str, Engagement] = {}

    @override
    async def engage(self, engagement: Engagement) -> None:
        """Start the instance of a cluster, and keep its credentials current. Raises what keeps it from starting."""
        name = engagement.cluster.name
        with log_fields(cluster=name):
            self._engaged[name] = engagement
            engagement.on_close(lambda: self._end(engagement))
            await self._apply(engagement.cluster)
            engagement.spawn(self._follow(engagement), name="renew credentials")

    def list(self) -> list[Instance]:
        """Tell about every instance, by the cluster's name."""
        return [self._describe(engagement.cluster) for _, engagement in sorted(self._engaged.items())]

    async def _follow(self, engagement: Engagement) -> None:
        async for cluster in engagement.changes():
            try:
                await self._apply(cluster)
            except Exception:
                # The instance goes on with what it has; the next change of the Secret is the next try.
                log.exception("the renewed credentials of %s cannot be used", cluster.name)

    async def _apply(self, cluster: Cluster) -> None:
        component = component_name(cluster.name)
        address = await self._runtime.reserve(component, ports=INSTANCE_PORTS)
        profile = _profile_of(cluster)
        await self._runtime.apply(instance_component(cluster, profile=profile, address=address, serving=self._serving))

    async def _end(self, engagement: Engagement) -> None:
        name = engagement.cluster.name
        with log_fields(cluster=name):
            await self._runtime.delete(component_name(name))
            if self._engaged.get(name) is engagement:
                del self._engaged[name]
            log.info("the instance of %s has ended", name)

    def _describe(self, cluster: Cluster) -> Instance:
        state = self._runtime.state(component_name(cluster.name))
        return Instance(
            cluster=cluster.name,
            server=cluster.config.server,
            profile=_profile_of(cluster),
            phase=state.phase,
            pid=state.pid,
            restarts=state.restarts,
            message=state.message,
        )


def _profile_of(cluster: Cluster) -> Profile:
    return Profile(cluster.attributes.get(PROFILE_ATTRIBUTE) or Profile.NODELESS)
