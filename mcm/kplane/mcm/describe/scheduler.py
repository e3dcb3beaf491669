"""The effective configuration of an instance of kube-scheduler."""

from __future__ import annotations

from typing import Final

from kplane.mcm.describe.certificate import ServingCertificate
from kplane.mcm.describe.controllers import ENVIRONMENT, GRACE_SECONDS, OPEN_FILES, PORT, READERS, connection
from kplane.mcm.describe.flags import NO_FLAGS, Flags
from kplane.provider import Cluster
from kplane.workloads import FILES, Address, Component, File, Lifetime, Port, Probe

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
    """Describe the scheduler of a cluster: the default one, with the identity of the controllers.

    `readers` is as `configure` has it. Raises ConfigurationError if the kubeconfig has no credentials.
    """
    arguments = (
        *flags.over(_DEFAULTS),
        # The last one of a kind counts: what follows is so whatever the flags say.
        f"--kubeconfig={FILES}/kubeconfig",
        # As with kube-controller-manager: it is healthy only when the API server has answered it.
        f"--authentication-kubeconfig={FILES}/kubeconfig",
        "--authentication-tolerate-lookup-failure=false",
        f"--bind-address={address.host}",
        f"--secure-port={address.ports[PORT]}",
        f"--tls-cert-file={FILES}/serving.crt",
        f"--tls-private-key-file={FILES}/serving.key",
        "--leader-elect=false",
        *((f"--client-ca-file={FILES}/{READERS}",) if readers is not None else ()),
    )
    return Component(
        name=name,
        program=program,
        args=arguments,
        files={
            **connection(cluster),
            "serving.crt": File(serving.certificate),
            "serving.key": File(serving.key),
            **({READERS: File(readers)} if readers is not None else {}),
        },
        env=ENVIRONMENT,
        ports=(Port(number=address.ports[PORT], name=PORT),),
        readiness=Probe(port=PORT, path="/healthz", ca="serving.crt"),
        lifetime=Lifetime.BOUND,
        open_files=OPEN_FILES,
        only_logs=True,
        grace_seconds=GRACE_SECONDS,
    )
