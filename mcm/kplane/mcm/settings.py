"""Configuration of `mcm`: every flag and environment variable, validated before mcm starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Field, PrivateAttr, model_validator
from typing_extensions import override

from kplane.api import configuration
from kplane.api.configuration import Configuration, Directory, Flag, HostPort, Listen
from kplane.mcm.describe.flags import NO_FLAGS, Flags
from kplane.mcm.errors import ConfigurationError
from kplane.mcm.instance.logs import LogForm
from kplane.mcm.placement.sharding import Sharding
from kplane.mcm.serving.metrics import InstanceMetrics
from kplane.mcm.source.sources import Source, SourceKind

__all__ = ["Settings"]

_LEAST_MIB: Final = 64
"""Smallest memory limit. With less memory, an instance would be killed again and again."""
_SOURCE: Final = "where control planes are found"
_SHARDING: Final = "several mcm that share a fleet"
_SHARDING_DETAILS: Final = frozenset(
    {"cluster_lease_namespace", "cluster_shard_id", "cluster_lease_prefix", "cluster_lease_seconds"}
)
_BAD_USAGE: Final = 2


def _memory(mebibytes: int) -> int:
    if mebibytes and mebibytes < _LEAST_MIB:
        raise ValueError(f"0 or at least {_LEAST_MIB} is needed")
    return mebibytes


class Settings(Configuration):
    """Configuration of mcm. All other flags are flags of kube-controller-manager: see `instance_flags`."""

    program: ClassVar = "mcm"
    environment_prefix: ClassVar = "KPLANE_MCM_"
    description: ClassVar = (
        "Runs kube-controller-manager for every registered control plane. All other flags are flags of"
        " kube-controller-manager, such as --controllers, --feature-gates or --concurrent-gc-syncs, and reach every"
        " instance. mcm refuses the flags that it sets itself."
    )

    state_dir: Annotated[Path, Flag("DIR")]
    """Directory for credentials and logs of the instances; no other mcm may use it"""
    programs_dir: Annotated[tuple[Directory, ...], Field(min_length=1), Flag("DIR")]
    """Directory with kube-controller-manager and kube-scheduler; give one for each version"""
    kubeconfig: Annotated[Path | None, Flag("FILE", default="the ServiceAccount of the pod")] = None
    """kubeconfig of the management cluster"""
    listen: Listen = HostPort("127.0.0.1", 8081)
    """Address of /healthz, /readyz, /clusters and /metrics"""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that mcm logs"""
    instance_memory_mib: Annotated[int, AfterValidator(_memory), Flag("MIB")] = 512
    """Memory that an instance may take; mcm kills one that takes more, and starts it again. 0: no limit"""
    instance_metrics: InstanceMetrics = InstanceMetrics.FIXED
    """Metrics of instances in /metrics: none, or a fixed set of series for each instance"""
    instance_logs: LogForm = LogForm.FILES
    """Where the logs of instances go: to --state-dir only, or to the standard output too, with the name of the cluster
    in brackets or as JSON
    """
    report_status: Annotated[bool, Flag(default="no")] = False
    """Write the condition Running and status.instance of registrations; controlplane-operator waits for them before it
    removes or moves a control plane
    """
    scheduler_flag: Annotated[tuple[str, ...], Flag("FLAG")] = ()
    """Flag of kube-scheduler, such as --scheduler-flag=--kube-api-qps=100"""

    cluster_source: Annotated[SourceKind, Flag(group=_SOURCE)] = SourceKind.REGISTRATIONS
    """Objects of the management cluster that get an instance each"""
    cluster_kubeconfig_secret_template: Annotated[str | None, Flag("NAMESPACE/NAME", group=_SOURCE)] = None
    """Secret with the kubeconfig of an endpoint, such as kplane-cp-{name}/controlplane-{name}-controllers; {name} is
    the name of the endpoint
    """
    cluster_namespace_scope: Annotated[str | None, Flag("NAMESPACE", group=_SOURCE)] = None
    """Namespace of all Secrets of endpoints; the template may leave it out then"""
    cluster_selector: Annotated[str | None, Flag("LABELS", group=_SOURCE)] = None
    """Serve only objects with these labels, such as tier=gold,region in (a,b)"""
    registration: Annotated[str | None, Flag("NAME", group=_SOURCE)] = None
    """Serve this registration of mode Dedicated, and no other; controlplane-operator starts such an mcm"""

    cluster_sharding: Annotated[bool, Flag(group=_SHARDING, default="no, this mcm is the only one")] = False
    """Share the control planes with all mcm that use the same Leases; mcm runs the instances of a control plane only
    while it holds the control plane's shard Lease
    """
    cluster_lease_namespace: Annotated[str | None, Flag("NAMESPACE", group=_SHARDING)] = None
    """Namespace of the Leases; needed with --cluster-sharding"""
    cluster_shard_id: Annotated[str | None, Flag("ID", group=_SHARDING, default="the host name, as of the pod")] = None
    """Name of this mcm, unique among the mcm of the fleet"""
    cluster_lease_prefix: Annotated[str, Flag("PREFIX", group=_SHARDING)] = "mcm"
    """Beginning of the names of the Leases; give each fleet its own"""
    cluster_lease_seconds: Annotated[int, Field(ge=10, le=300), Flag("SECONDS", group=_SHARDING)] = 90
    """Seconds after the sudden death of an mcm until others take over its control planes"""

    _flags: Flags = PrivateAttr(default=NO_FLAGS)

    @classmethod
    @override
    def parse(cls, arguments: Sequence[str] | None = None, *, environment: Mapping[str, str] = os.environ) -> Self:
        """Parse the command line and the environment. Exit with status 2 if a flag is invalid."""
        try:
            settings, others = cls.parse_known(
                sys.argv[1:] if arguments is None else arguments, environment=environment
            )
            settings._flags = Flags.parse(others)  # noqa: SLF001 - of this class
        except (configuration.ConfigurationError, ConfigurationError) as error:
            sys.stderr.write(f"{cls.program}: {error}\n")
            sys.exit(_BAD_USAGE)
        return settings

    @property
    def instance_flags(self) -> Flags:
        """Flags of kube-controller-manager, for every instance of it."""
        return self._flags

    @cached_property
    def scheduler_flags(self) -> Flags:
        """Flags of kube-scheduler, for every instance of it."""
        return Flags.parse_scheduler(self.scheduler_flag)

    @cached_property
    def source(self) -> Source:
        """Source of the control planes. Raises ConfigurationError if its flags do not fit together."""
        return Source.of(
            self.cluster_source,
            template=self.cluster_kubeconfig_secret_template,
            scope=self.cluster_namespace_scope,
            selector=self.cluster_selector,
            registration=self.registration,
        )

    @cached_property
    def sharding(self) -> Sharding | None:
        """Sharing of the fleet with other mcm; None: this mcm is alone. Raises ConfigurationError for invalid flags."""
        if not self.cluster_sharding:
            return None
        return Sharding.of(
            namespace=self.cluster_lease_namespace,
            identity=self.cluster_shard_id,
            prefix=self.cluster_lease_prefix,
            lease_seconds=self.cluster_lease_seconds,
        )

    @property
    def has_to_announce(self) -> bool:
        """Whether an instance starts only after its announcement is written, if mcm writes to registrations.

        An mcm with shard Leases runs no instances anyway while the management cluster takes no writes.
        """
        return self.registration is not None or self.cluster_sharding

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.registration is not None and self.cluster_sharding:
            raise ConfigurationError("--registration names what this mcm alone serves: leave out --cluster-sharding")
        if not self.cluster_sharding and _SHARDING_DETAILS & self.model_fields_set:
            raise ConfigurationError(
                "--cluster-shard-id, --cluster-lease-namespace, --cluster-lease-prefix and --cluster-lease-seconds say"
                " how a fleet is shared: give --cluster-sharding too, or leave them out"
            )
        _ = self.source, self.sharding, self.scheduler_flags  # each raises ConfigurationError for its own flags
        if self.registration is not None and not self.report_status:
            raise ConfigurationError(
                "--registration needs --report-status: this mcm and the shared mcm hand over through status.instance"
            )
        return self
