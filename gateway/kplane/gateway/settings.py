"""Configuration of `kplane-gateway`: its flags and environment variables."""

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
    """Configuration of the gateway."""

    program: ClassVar = "kplane-gateway"
    environment_prefix: ClassVar = "KPLANE_GATEWAY_"
    description: ClassVar = (
        "Serves control planes under one address, https://HOST/clusters/CLUSTER_PATH/control-plane, with Envoy."
    )

    state_dir: Annotated[State, Flag("DIR")]
    """Directory of this gateway alone, for Envoy's configuration with private keys, and for Envoy's log"""
    envoy: Annotated[File, Flag("FILE")]
    """Path of the Envoy binary"""
    certificate_dir: Annotated[Directory, Flag("DIR")]
    """Directory with tls.crt and tls.key of the serving certificate, as cert-manager names them; reloaded on change"""
    serve: Annotated[Listen, Flag("HOST:PORT")] = HostPort("0.0.0.0", 8443)  # noqa: S104 - clients connect to it
    """Address on which Envoy serves the control planes"""
    run_envoy: Annotated[bool, Flag(default="yes")] = True
    """Run Envoy as a process; with --no-run-envoy, another container runs it by envoy/bootstrap.json in --state-dir"""
    workers: Annotated[int | None, Field(ge=1, le=64), Flag("NUMBER", default="half of the CPUs, 4 at most")] = None
    """Number of Envoy's worker threads; with --no-run-envoy, set Envoy's own flag --concurrency instead"""
    envoy_memory: Annotated[int, Field(ge=1 << 26), Flag("BYTES")] = MEMORY_BYTES
    """Memory limit of Envoy in bytes; close to the limit, Envoy resets requests with large buffers, then answers 503"""
    kubeconfig: Annotated[Path | None, Flag("FILE", default="the ServiceAccount of the pod")] = None
    """Path of the kubeconfig of the management cluster"""
    namespace: Annotated[str, Flag("NAMESPACE")] = GATEWAY_NAMESPACE
    """Namespace of the Secrets with addresses and certificates of control planes"""
    listen: Listen = HostPort("127.0.0.1", 8082)
    """Address on which the gateway serves /healthz, /readyz and /metrics"""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Minimum level of log messages"""

    @classmethod
    @override
    def parse(cls, arguments: Sequence[str] | None = None, *, environment: Mapping[str, str] = os.environ) -> Self:
        """Parse the command line and the environment.

        Exits with status 2 if a flag or variable is invalid.
        """
        try:
            return super().parse(sys.argv[1:] if arguments is None else arguments, environment=environment)
        except configuration.ConfigurationError as error:
            sys.stderr.write(f"{cls.program}: {error}\n")
            sys.exit(_BAD_USAGE)
