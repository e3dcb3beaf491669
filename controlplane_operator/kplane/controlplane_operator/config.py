"""Configuration of `controlplane-operator`: all flags, validated before the operator starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, model_validator

from kplane.api import DEFAULT_DATA_STORE, ComputeResources, ResourceAmounts, quantity
from kplane.api.configuration import Configuration, Directory, File, Flag, HostPort, Listen, State
from kplane.api.names import GATEWAY_NAMESPACE
from kplane.components.egress_proxy import EGRESS_PROXY, PROXY_PROCESS, ProxyProgram
from kplane.components.etcd import DEFAULT_QUOTA_BYTES, quota_on
from kplane.components.mcm import MCM, MCM_RESOURCES, McmProgram
from kplane.controlplane_operator.backup.archive import recipients
from kplane.controlplane_operator.backup.storage import Bucket, Storage, Volume
from kplane.controlplane_operator.controlplanes.service_monitors import ServiceMonitorSettings
from kplane.controlplane_operator.flag_values import (
    AccountName,
    Amounts,
    Domain,
    EtcdCredentials,
    Host,
    HttpsUrl,
    Interval,
    LabelPair,
    McmArgument,
    NamedUrl,
    Peers,
    Program,
    Size,
    etcd_credentials,
    storage_bytes,
)
from kplane.controlplane_operator.gateway import Gateway, read_authorities
from kplane.controlplane_operator.grants import Account
from kplane.controlplane_operator.hibernation.room import Limits
from kplane.controlplane_operator.secret_access import DEFAULT_SECRETS_ROLE
from kplane.controlplane_operator.snapshots.secrets import SecretStorage
from kplane.controlplane_operator.snapshots.storage import SnapshotStorage
from kplane.provider import Client, ClusterConfig
from kplane.provider.coordination.lease import LeaseTimings
from kplane.workloads import Resources
from kplane.workloads.pods import CLUSTER_DNS, Expose, Image, PodSettings

__all__ = ["ElectionSettings", "EtcdAt", "EtcdService", "OperatorConfig"]

_ELECTION: Final = "leader election"
_PODS: Final = "with --runtime pods"
_SNAPSHOTS: Final = "for ControlPlaneSnapshots"
_MCM: Final = "for registrations of mode Dedicated, which have an mcm of their own"
_TIMINGS: Final = LeaseTimings()

_PORTS: Final = {"https": 6443, "client": 2379, "peer": 2380, "metrics": 2381, "http": 8081, "egress": 8132}
_API_SERVER_CAPABILITIES: Final = ("NET_BIND_SERVICE",)
"""Capabilities of the container. Upstream's images give the file of kube-apiserver this capability.

See build/server-image/kube-apiserver in kubernetes.
"""
_PROGRAMS_IN_IMAGE: Final = Path("/usr/local/bin")
"""Directory of kube-controller-manager and kube-scheduler in kplane's image of mcm."""


@dataclass(frozen=True, slots=True)
class EtcdAt:
    """Shared etcd that kplane does not run; `credentials` has ca.crt, ca.key, client.crt and client.key."""

    endpoint: str
    credentials: Path


@dataclass(frozen=True, slots=True)
class EtcdService:
    """Shared etcd that was installed with the operator, which issues its certificates."""

    service: str
    namespace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionSettings:
    """Settings of the leader election of operators."""

    namespace: str
    """Namespace of this operator."""
    pods: str | None
    """Name that all replicas of this installation share; None if this operator runs components as processes."""
    timings: LeaseTimings


class OperatorConfig(Configuration):
    """Flags of `controlplane-operator`."""

    program: ClassVar = "controlplane-operator"
    environment_prefix: ClassVar = "KPLANE_OPERATOR_"
    description: ClassVar = "Makes ControlPlane objects real and resolves ControlPlaneRegistrations."

    kubeconfig: Annotated[File | None, Flag("FILE", default="the ServiceAccount of the pod")] = None
    """Kubeconfig of the management cluster"""
    runtime: Literal["process", "pods"] = "process"
    """Runtime of API servers and etcds: processes of this machine, or pods"""
    state_dir: Annotated[State, Flag("DIR")]
    """Directory for the data of running components, and for credentials of the shared etcd"""
    programs_dir: Annotated[tuple[Directory, ...], Flag("DIR")]
    """Directory with kube-apiserver and etcd, with --runtime process"""
    shared_etcd_endpoint: Annotated[HttpsUrl | None, Flag("URL")] = None
    """URL of the etcd of virtual control planes, such as https://10.0.0.5:2379"""
    shared_etcd_credentials: Annotated[EtcdCredentials | None, Flag("DIR")] = None
    """Directory with ca.crt and ca.key, which sign tenants' certificates, and root's client.crt and client.key"""
    data_store: Annotated[tuple[NamedUrl, ...], Flag("NAME=URL")] = ()
    """Further etcd for virtual control planes, by its name in spec.virtual.dataStoreRef; the first etcd is default"""
    data_store_credentials: Annotated[Directory | None, Flag("DIR")] = None
    """Directory with a subdirectory NAME for each --data-store, with the files of --shared-etcd-credentials"""
    shared_etcd_service: Annotated[str | None, Flag("NAME")] = None
    """Service of an etcd that was installed with this operator, which then issues its certificates"""
    namespace: Annotated[str, Flag("NAME")] = "kplane-system"
    """Namespace of this operator, of add-ons, of --shared-etcd-service and of --image-pull-secret"""
    listen: Listen = HostPort("127.0.0.1", 8080)
    """Address of /healthz, /readyz and /metrics"""
    cluster_kubeconfig: Annotated[File | None, Flag("FILE")] = None
    """Kubeconfig with bootstrap credentials for adopted endpoints that name no Secret"""
    mcm_service_account: Annotated[AccountName, Flag("NAMESPACE/NAME", default="kplane-system/mcm")] = Account(
        "kplane-system", "mcm"
    )
    """ServiceAccount that may read the Secrets that registrations resolve to"""
    secrets_role: Annotated[str, Flag("NAME")] = DEFAULT_SECRETS_ROLE
    """ClusterRole that the operator binds to itself in each kplane-cp-* namespace; NAME-reader is for others"""
    gateway_url: Annotated[HttpsUrl | None, Flag("URL", default="there is no gateway")] = None
    """URL under which clients reach kplane-gateway, such as https://api.example.org"""
    gateway_ca: Annotated[File | None, Flag("FILE", default="the operator issues the certificate")] = None
    """CAs of the serving certificate of the gateway, for kubeconfigs; the file is read again when it changes"""
    gateway_namespace: Annotated[str | None, Flag("NAMESPACE", default=GATEWAY_NAMESPACE)] = None
    """Existing namespace for the Secrets with which the gateway reaches control planes"""
    gateway_domain: Annotated[Domain | None, Flag("DOMAIN", default="there are none")] = None
    """Domain of the host names of control planes with endpointStyle HostName, such as cp.example.org"""
    awake_limit: Annotated[int | None, Field(ge=1), Flag("N", default="any number")] = None
    """Maximum number of awake control planes with start OnDemand; beyond it, the longest idle control plane sleeps"""
    awake_memory: Annotated[Size | None, Flag("SIZE", default="any amount")] = None
    """Memory that API servers of control planes with start OnDemand may request together, such as 8Gi"""
    starts_at_once: Annotated[int | None, Field(ge=1), Flag("N", default="two for each CPU of the operator")] = None
    """Number of API servers that start at once for control planes that wake"""
    workers: Annotated[int, Field(ge=1), Flag("N")] = 16
    """Number of objects of a kind that are reconciled at once"""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Minimum severity of log messages"""

    leader_elect_lease_seconds: Annotated[int, Flag("SECONDS", _ELECTION)] = _TIMINGS.duration_seconds
    """Time after which a standby operator takes over from a leader that is gone"""
    leader_elect_renew_deadline_seconds: Annotated[float, Flag("SECONDS", _ELECTION)] = _TIMINGS.renew_deadline_seconds
    """Time after which an operator that cannot renew the Lease exits"""
    leader_elect_retry_seconds: Annotated[float, Flag("SECONDS", _ELECTION)] = _TIMINGS.retry_seconds
    """Time between renewals of the Lease, and between reads of another operator's Lease"""

    kube_apiserver_image: Annotated[str | None, Flag("IMAGE", _PODS)] = None
    """Image with kube-apiserver on its PATH"""
    etcd_image: Annotated[str | None, Flag("IMAGE", _PODS)] = None
    """Image with etcd on its PATH, for dedicated control planes"""
    mcm_image: Annotated[str | None, Flag("IMAGE", _PODS)] = None
    """kplane's image of mcm, for registrations of mode Dedicated"""
    mcm_image_pull_policy: Annotated[
        Literal["Always", "IfNotPresent", "Never"] | None, Flag(group=_PODS, default="IfNotPresent")
    ] = None
    """Pull policy of --mcm-image"""
    metrics_from: Annotated[Peers | None, Flag("PEERS", _PODS, default="anybody")] = None
    """JSON list of peers of --namespace, as in a NetworkPolicy, that may read the metrics of dedicated mcm and etcds"""
    service_monitor_job: Annotated[str | None, Flag("NAME", _PODS)] = None
    """Job of a ServiceMonitor for each API server, with a client certificate; without this flag, both are deleted"""
    service_monitor_interval: Annotated[Interval, Flag("DURATION", _PODS)] = "30s"
    """Time between two scrapes of an API server"""
    service_monitor_label: Annotated[tuple[LabelPair, ...], Flag("NAME=VALUE", _PODS)] = ()
    """Label of the ServiceMonitors, by which Prometheus selects them"""
    image_pull_secret: Annotated[tuple[str, ...], Flag("NAME", _PODS)] = ()
    """Secret of --namespace for pulling images, copied to tenants' namespaces"""
    replicas: Annotated[int, Field(ge=1), Flag("N", _PODS)] = 1
    """Number of kube-apiservers of each control plane"""
    expose: Annotated[Expose, Flag(group=_PODS)] = Expose.CLUSTER_IP
    """Type of the Services of kube-apiservers"""
    external_host: Annotated[Host | None, Flag("HOST", _PODS)] = None
    """Name or address of the nodes in external URLs, with --expose NodePort"""
    storage_class: Annotated[str | None, Flag("NAME", _PODS, default="the cluster's default class")] = None
    """StorageClass of dedicated etcds' volumes"""
    storage_size: Annotated[Size, Flag("SIZE", _PODS)] = "10Gi"
    """Size of dedicated etcds' volumes"""
    egress_proxy_image: Annotated[str | None, Flag("IMAGE", _PODS)] = None
    """Image of kplane's operator, for proxies of control planes whose class has allowedDestinations"""
    egress_proxy_image_pull_policy: Annotated[
        Literal["Always", "IfNotPresent", "Never"] | None, Flag(group=_PODS, default="IfNotPresent")
    ] = None
    """Pull policy of --egress-proxy-image"""
    dns_peers: Annotated[Peers | None, Flag("PEERS", _PODS, default="pods k8s-app=kube-dns in kube-system")] = None
    """JSON list of peers, as in a NetworkPolicy, that answer DNS queries of tenants' pods"""

    mcm_program: Annotated[Program | None, Flag("FILE", _MCM)] = None
    """Program mcm, with --runtime process; mcm finds kube-controller-manager in --programs-dir"""
    mcm_arg: Annotated[tuple[McmArgument, ...], Flag("FLAG", _MCM)] = ()
    """Additional flag of each mcm, such as --mcm-arg=--concurrent-gc-syncs=5"""
    mcm_requests: Annotated[
        Amounts | None,
        Flag("AMOUNTS", _MCM, f"cpu={MCM_RESOURCES.cpu_request},memory={MCM_RESOURCES.memory_request}"),
    ] = None
    """Resource requests of each mcm's pod"""
    mcm_limits: Annotated[Amounts | None, Flag("AMOUNTS", _MCM, f"memory={MCM_RESOURCES.memory_limit}")] = None
    """Resource limits of each mcm's pod, which also runs its instance"""

    snapshot_recipient: Annotated[tuple[str, ...], Flag("KEY", _SNAPSHOTS)] = ()
    """Public key of age to which snapshots are encrypted; without a key, no snapshots are made"""
    snapshot_volume: Annotated[Directory | None, Flag("DIR", _SNAPSHOTS, default="Secrets of --namespace")] = None
    """Directory for the files of snapshots; in Secrets, a file has 4 MiB at most"""
    snapshot_bucket: Annotated[str | None, Flag("URL", _SNAPSHOTS)] = None
    """Bucket of S3-compatible storage for the files of snapshots, such as s3://backups/kplane"""
    snapshot_bucket_endpoint: Annotated[str | None, Flag("URL", _SNAPSHOTS, default="AWS")] = None
    """URL of the S3-compatible storage"""
    snapshot_bucket_region: Annotated[str | None, Flag("NAME", _SNAPSHOTS)] = None
    """Region of the bucket"""
    snapshot_bucket_credentials: Annotated[Directory | None, Flag("DIR", _SNAPSHOTS)] = None
    """Directory with access-key-id and secret-access-key, and with ca.crt unless a public CA signed the certificate"""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        """Validate combinations of flags, by reading each derived property."""
        for part in (
            self.pods,
            self.election,
            self.shared_etcd,
            self.data_stores,
            self.dedicated_mcm,
            self.service_monitors,
            self.gateway,
        ):
            del part
        self._check_snapshots()
        return self

    def _check_snapshots(self) -> None:
        places = [place for place in (self.snapshot_volume, self.snapshot_bucket) if place is not None]
        if len(places) > 1:
            raise ValueError("only one of --snapshot-volume and --snapshot-bucket can be given")
        if places and not self.snapshot_recipient:
            raise ValueError("--snapshot-volume and --snapshot-bucket need --snapshot-recipient")
        if self.snapshot_bucket is not None and self.snapshot_bucket_credentials is None:
            raise ValueError("--snapshot-bucket needs --snapshot-bucket-credentials")
        others = (self.snapshot_bucket_endpoint, self.snapshot_bucket_region, self.snapshot_bucket_credentials)
        if self.snapshot_bucket is None and any(option is not None for option in others):
            raise ValueError(
                "--snapshot-bucket-endpoint, -region and -credentials are of no use without --snapshot-bucket"
            )

    def open_snapshots(self) -> Callable[[Client], SnapshotStorage] | None:
        """Open the storage of snapshots; None if snapshots have no recipient.

        The returned function takes a client of the management cluster, which storage in Secrets needs. Raises
        BackupFailed and OSError.
        """
        if not self.snapshot_recipient:
            return None
        to, place = recipients(self.snapshot_recipient), self._place_of_snapshots()
        return lambda client: SnapshotStorage(place or SecretStorage(client, namespace=self.namespace), to)

    def _place_of_snapshots(self) -> Storage | None:
        if self.snapshot_volume is not None:
            return Volume(self.snapshot_volume)
        if self.snapshot_bucket is None or self.snapshot_bucket_credentials is None:
            return None
        return Bucket(
            self.snapshot_bucket,
            credentials=self.snapshot_bucket_credentials,
            endpoint=self.snapshot_bucket_endpoint,
            region=self.snapshot_bucket_region,
        )

    @property
    def etcd_quota_bytes(self) -> int:
        """Database size in bytes at which a dedicated etcd refuses writes, well before its volume is full."""
        if self.pods is None:
            return DEFAULT_QUOTA_BYTES
        return quota_on(storage_bytes(self.pods.storage_size))

    def management_config(self) -> ClusterConfig:
        """Return the configuration of a client for the management cluster. Raises KubeconfigError."""
        return ClusterConfig.load(self.kubeconfig) if self.kubeconfig is not None else ClusterConfig.in_cluster()

    @cached_property
    def shared_etcd(self) -> EtcdAt | EtcdService | None:
        """First etcd of virtual control planes; None if there is none."""
        endpoint, credentials = self.shared_etcd_endpoint, self.shared_etcd_credentials
        if self.shared_etcd_service is not None:
            if endpoint is not None or credentials is not None:
                raise ValueError(
                    "--shared-etcd-service stands alone: --shared-etcd-endpoint and --shared-etcd-credentials are for"
                    " another etcd"
                )
            return EtcdService(self.shared_etcd_service, self.namespace)
        if endpoint is not None and credentials is not None:
            return EtcdAt(endpoint, credentials)
        if endpoint is not None or credentials is not None:
            raise ValueError(
                "--shared-etcd-endpoint and --shared-etcd-credentials go together; only one of them is given"
            )
        return None

    @cached_property
    def data_stores(self) -> Mapping[str, EtcdAt]:
        """Further etcds of virtual control planes, by name."""
        if bool(self.data_store) is not bool(self.data_store_credentials):
            raise ValueError("--data-store and --data-store-credentials go together; only one of them is given")
        stores = {}
        for store in self.data_store:
            if store.name in stores or store.name == DEFAULT_DATA_STORE:
                raise ValueError(
                    f"--data-store names {store.name} twice: {DEFAULT_DATA_STORE} is the first shared etcd"
                )
            try:
                credentials = etcd_credentials((self.data_store_credentials or Path()) / store.name)
            except ValueError as error:
                raise ValueError(f"--data-store-credentials, directory {store.name}: {error}") from None
            stores[store.name] = EtcdAt(store.url, credentials)
        return stores

    @cached_property
    def gateway(self) -> Gateway | None:
        """Gateway in front of control planes; None if there is none."""
        if self.gateway_url is None:
            if any((self.gateway_ca, self.gateway_namespace, self.gateway_domain)):
                raise ValueError(
                    "--gateway-ca, --gateway-namespace and --gateway-domain are of no use without --gateway-url"
                )
            return None
        host = (urlsplit(self.gateway_url).hostname or "").lower()
        if self.gateway_domain is not None and host.endswith(f".{self.gateway_domain}"):
            raise ValueError(
                f"--gateway-domain {self.gateway_domain}: {host} of --gateway-url is below it, where the host names of"
                " control planes are; take another domain for these"
            )
        return Gateway(
            url=self.gateway_url.rstrip("/"),
            ca=self._gateway_authorities(),
            namespace=self.gateway_namespace or GATEWAY_NAMESPACE,
            domain=self.gateway_domain,
        )

    def _gateway_authorities(self) -> bytes:
        try:
            return read_authorities(self.gateway_ca) if self.gateway_ca is not None else b""
        except ValueError as error:
            raise ValueError(f"--gateway-ca {error}") from error

    @property
    def awake_limits(self) -> Limits:
        """Limits of awake control planes that start on demand."""
        memory = storage_bytes(self.awake_memory) if self.awake_memory is not None else None
        return Limits(self.awake_limit, memory)

    @cached_property
    def election(self) -> ElectionSettings:
        """Settings of the leader election."""
        try:
            timings = LeaseTimings(
                duration_seconds=self.leader_elect_lease_seconds,
                renew_deadline_seconds=self.leader_elect_renew_deadline_seconds,
                retry_seconds=self.leader_elect_retry_seconds,
            )
        except ValueError as error:
            raise ValueError(f"--leader-elect-lease-seconds: {error}") from error
        pods = f"{self.namespace}/{self.secrets_role}" if self.runtime == "pods" else None
        return ElectionSettings(namespace=self.namespace, pods=pods, timings=timings)

    @cached_property
    def pods(self) -> PodSettings | None:
        """Settings of components as pods; None if components are processes of this machine."""
        if self.runtime != "pods":
            if flags := self._given(_PODS):
                raise ValueError(f"{', '.join(flags)}: only --runtime pods has this")
            return None
        if not self.kube_apiserver_image:
            raise _needs_image("--kube-apiserver-image")
        if not self.etcd_image:
            raise _needs_image("--etcd-image")
        if not self.mcm_image and self.mcm_image_pull_policy is not None:
            raise ValueError("--mcm-image-pull-policy: it is of no use without --mcm-image")
        if self.expose is Expose.NODE_PORT and not self.external_host:
            raise ValueError("--expose NodePort needs --external-host, under which clients reach the nodes")
        if self.expose is not Expose.NODE_PORT and self.external_host:
            raise ValueError(f"--external-host {self.external_host}: only --expose NodePort has this")
        images = {
            "kube-apiserver": Image(self.kube_apiserver_image, capabilities=_API_SERVER_CAPABILITIES),
            "etcd": Image(self.etcd_image),
        }
        if self.mcm_image:
            image, policy = Image(self.mcm_image), self.mcm_image_pull_policy
            images["mcm"] = image if policy is None else replace(image, pull_policy=policy)
        if self.egress_proxy_image:
            proxy, pulled = Image(self.egress_proxy_image), self.egress_proxy_image_pull_policy
            images[EGRESS_PROXY] = proxy if pulled is None else replace(proxy, pull_policy=pulled)
            # The operator's image contains etcdutl too.
            images["etcdutl"] = images[EGRESS_PROXY]
        elif self.egress_proxy_image_pull_policy is not None:
            raise ValueError("--egress-proxy-image-pull-policy: it is of no use without --egress-proxy-image")
        return PodSettings(
            images=images,
            ports=_PORTS,
            pull_secrets=self.image_pull_secret,
            pull_secrets_namespace=self.namespace,
            replicas=self.replicas,
            expose=self.expose,
            external_host=self.external_host,
            storage_class=self.storage_class,
            storage_size=self.storage_size,
            operator=_operator_pods(self.namespace),
            dns=self._peers(self.dns_peers) or CLUSTER_DNS,
            metrics_from=self._peers(self.metrics_from),
        )

    @property
    def service_monitors(self) -> ServiceMonitorSettings | None:
        """Settings of the ServiceMonitors of API servers; None if there are none."""
        if self.service_monitor_job is None:
            if self.service_monitor_label:
                raise ValueError("--service-monitor-label: it is of no use without --service-monitor-job")
            return None
        return ServiceMonitorSettings(
            job=self.service_monitor_job,
            interval=self.service_monitor_interval,
            labels=dict(label.split("=", 1) for label in self.service_monitor_label),
        )

    @property
    def egress_proxy(self) -> ProxyProgram:
        """Program of the proxies of control planes whose class allows destinations."""
        return ProxyProgram(EGRESS_PROXY) if self.runtime == "pods" else PROXY_PROCESS

    @cached_property
    def dedicated_mcm(self) -> McmProgram | None:
        """Program for registrations of mode Dedicated; None if the operator cannot run an mcm."""
        pods = self.runtime == "pods"
        if pods and self.mcm_program is not None:
            raise ValueError("--mcm-program: only --runtime process has this; pods have --mcm-image")
        resources = self._mcm_resources()
        if not pods and resources is not None:
            raise ValueError("--mcm-requests, --mcm-limits: only --runtime pods has this")
        program = (MCM if self.mcm_image else None) if pods else self.mcm_program
        if program is None:
            if self.mcm_arg or resources is not None:
                needed = "--mcm-image" if pods else "--mcm-program"
                raise ValueError(f"--mcm-arg, --mcm-requests, --mcm-limits: they are of no use without {needed}")
            return None
        return McmProgram(
            program=str(program),
            directories=(_PROGRAMS_IN_IMAGE,) if pods else self.programs_dir,
            args=self.mcm_arg,
            resources=resources or MCM_RESOURCES,
        )

    @property
    def why_no_mcm(self) -> str | None:
        """Reason why registrations of mode Dedicated get no mcm, with the remedy; None if they get an mcm."""
        if self.dedicated_mcm is not None:
            return None
        image = "--mcm-image, which Helm does unless mcm.reportStatus is false or mcm.source.kind another one"
        return (
            "spec.mode is Dedicated, and this operator cannot run an mcm for one registration: set spec.mode to Shared,"
            f" or start the operator with {image if self.runtime == 'pods' else '--mcm-program'}"
        )

    def _given(self, group: str) -> list[str]:
        fields = type(self).model_fields.items()
        names = [
            name for name, field in fields if any(getattr(flag, "group", None) == group for flag in field.metadata)
        ]
        return [f"--{name.replace('_', '-')}" for name in names if name in self.model_fields_set]

    def _peers(self, peers: Sequence[Mapping[str, Any]] | None) -> tuple[Mapping[str, Any], ...] | None:
        # A peer without a namespace selector means pods of the policy's own namespace, which is that of a tenant.
        here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self.namespace}}}
        if peers is None:
            return None
        return tuple({**here, **peer} if peer.keys() == {"podSelector"} else peer for peer in peers)

    def _mcm_resources(self) -> Resources | None:
        """Return the resources of the pods of mcm. Defaults are adjusted so that no request exceeds its limit."""
        if self.mcm_requests is None and self.mcm_limits is None:
            return None
        requests, limits = self.mcm_requests or ResourceAmounts(), self.mcm_limits or ResourceAmounts()
        try:
            ComputeResources(requests=requests, limits=limits)
        except ValidationError:
            raise ValueError("--mcm-limits must not be less than --mcm-requests") from None
        default = MCM_RESOURCES
        memory = requests.memory or _lower(default.memory_request, limits.memory)
        return Resources(
            cpu_request=requests.cpu or _lower(default.cpu_request, limits.cpu),
            memory_request=memory,
            memory_limit=limits.memory or max(default.memory_limit, memory, key=quantity),
            cpu_limit=limits.cpu,
        )


def _operator_pods(namespace: str) -> dict[str, object]:
    return {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/component": "operator"}},
    }


def _needs_image(flag: str) -> ValueError:
    return ValueError(f"--runtime pods needs {flag}, such as registry.example/image:tag")


def _lower(default: str, limit: str | None) -> str:
    return default if limit is None else min(default, limit, key=quantity)
