"""The configuration of `kplane-gateway`: every flag and environment variable."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Field
from typing_extensions import override

from kplane.api import configuration
from kplane.api.configuration import Configuration, Directory, File, Flag, HostPort, Listen, State
from kplane.api.names import GATEWAY_NAMESPACE
from kplane.gateway.envoy.bootstrap import MEMORY_BYTES

__all__ = ["Settings"]

_BAD_USAGE: Final = 2


class Settings(Configuration):
    """The configuration of the gateway."""

    program: ClassVar = "kplane-gateway"
    environment_prefix: ClassVar = "KPLANE_GATEWAY_"
    description: ClassVar = (
        "Serves control planes under one address, https://HOST/clusters/CLUSTER_PATH/control-plane, with Envoy."
    )

    state_dir: Annotated[State, Flag("DIR")]
    """Directory for Envoy's configuration and log, keys among it; no other gateway may use it"""
    envoy: Annotated[File, Flag("FILE")]
    """Program of Envoy"""
    certificate_dir: Annotated[Directory, Flag("DIR")]
    """Directory with the serving certificate, tls.crt and tls.key, as cert-manager names them; it is read again"""
    serve: Annotated[Listen, Flag("HOST:PORT")] = HostPort("0.0.0.0", 8443)  # noqa: S104 - it is the way in
    """Address under which Envoy serves control planes"""
    run_envoy: Annotated[bool, Flag(default="yes")] = True
    """Run Envoy as a process; with --no-run-envoy, another container runs it by envoy/bootstrap.json in --state-dir"""
    workers: Annotated[int | None, Field(ge=1, le=64), Flag("NUMBER", default="half of the CPUs, 4 at most")] = None
    """Threads of Envoy that serve clients; Envoy has its own flag for that where another container runs it"""
    envoy_memory: Annotated[int, Field(ge=1 << 26), Flag("BYTES")] = MEMORY_BYTES
    """Memory that Envoy may take; before it is used up, Envoy ends large requests, then answers 503"""
    kubeconfig: Annotated[Path | None, Flag("FILE", default="the ServiceAccount of the pod")] = None
    """kubeconfig of the management cluster"""
    namespace: Annotated[str, Flag("NAMESPACE")] = GATEWAY_NAMESPACE
    """Namespace with the Secrets by which the gateway reaches control planes"""
    listen: Listen = HostPort("127.0.0.1", 8082)
    """Address of /healthz, /readyz and /metrics"""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that the gateway logs"""

    @classmethod
    @override
    def parse(cls, arguments: Sequence[str] | None = None, *, environment: Mapping[str, str] = os.environ) -> Self:
        """Read the command line and the environment. Ends the process with status 2 if a flag is wrong."""
        try:
            return super().parse(sys.argv[1:] if arguments is None else arguments, environment=environment)
        except configuration.ConfigurationError as error:
            sys.stderr.write(f"{cls.program}: {error}\n")
            sys.exit(_BAD_USAGE)
