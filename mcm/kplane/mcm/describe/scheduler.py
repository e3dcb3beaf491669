"""Component of an instance of kube-scheduler."""

from __future__ import annotations

from typing import Final

from kplane.mcm.describe.certificate import ServingCertificate
from kplane.mcm.describe.controllers import instance_component
from kplane.mcm.describe.flags import NO_FLAGS, Flags
from kplane.provider import Cluster
from kplane.workloads import Address, Component

__all__ = ["SCHEDULER_PROGRAM", "configure_scheduler"]

SCHEDULER_PROGRAM: Final = "kube-scheduler"

_DEFAULTS: Final = ("--profiling=false",)


def configure_scheduler(
    cluster: Cluster,
    *,
    name: str,
    address: Address,
    serving: ServingCertificate,
    program: str,
    flags: Flags = NO_FLAGS,
    readers: bytes | None = None,
) -> Component:
    """Return the component of a cluster's default kube-scheduler, which uses the credentials of the controllers.

    `readers` is the CA, in PEM, of the clients that may read the metrics. Raises ConfigurationError if the kubeconfig
    has no credentials.
    """
    return instance_component(
        cluster,
        name=name,
        program=program,
        arguments=(*flags.over(_DEFAULTS), "--authentication-tolerate-lookup-failure=false"),
        address=address,
        serving=serving,
        readers=readers,
        reads=flags.paths(),
    )
