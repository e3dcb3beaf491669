"""ControlPlaneClass: defaults and policies for control planes."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, ClassVar, Final, Self

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, model_validator

from kplane.api.api_server_settings import ApiServerSettings
from kplane.api.compute_resources import ComputeResources, StorageAmount, quantity
from kplane.api.conditions import Conditions
from kplane.api.control_plane import DeletionPolicy, EndpointPolicy, EndpointStyle, EtcdSettings
from kplane.api.destinations import Destination
from kplane.api.durations import duration_rules, duration_within, parse_duration
from kplane.api.extensions import ATOMIC_LIST, Extension, Rule, rules
from kplane.api.hibernation import IdleSettings, StartPolicy
from kplane.api.home import ControlPlaneMode, DataStoreReference
from kplane.api.kubernetes_version import VersionText
from kplane.api.pod_scheduling import PodScheduling
from kplane.api.references import Services
from kplane.api.resource import ApiModel, Column, ResourceInfo, ResourceModel
from kplane.api.service_settings import ServiceSettings

__all__ = [
    "AuthModel",
    "AuthSpec",
    "ControlPlaneClass",
    "ControlPlaneClassSpec",
    "ControlPlaneClassStatus",
    "ControllersProfile",
    "ControllersSettings",
    "RequestLimits",
    "SnapshotSettings",
    "StorageSettings",
    "VirtualSettings",
]


class AuthModel(StrEnum):
    """Authentication of the published kubeconfig; `v0` and `basic` are older names of `token`."""

    V0 = "v0"
    BASIC = "basic"
    TOKEN = "token"  # noqa: S105 - the name of a model
    X509 = "x509"


class ControllersProfile(StrEnum):
    """Set of controllers that an instance of kube-controller-manager runs.

    Core completes an API server (namespaces, service accounts, garbage collection, roles, certificates). Nodeless adds
    the controllers of workloads. Full adds the controllers of nodes and volumes.
    """

    CORE = "Core"
    NODELESS = "Nodeless"
    FULL = "Full"


_SHORTEST_LIFETIME: Final = "10m"
"""Minimum of TokenRequest's expirationSeconds (k8s.io/api/authentication/v1); API servers refuse shorter lifetimes."""
_LONGEST_LIFETIME: Final = "8760h"

_ROLE_SENTENCE: Final = "must be the name of a ClusterRole: without '/' and '%', and other than '.' and '..'"


def _role_name(name: str) -> str:
    """Validate a name by the rule of `defaultRole`, for objects that no API server has validated."""
    if name in {".", ".."} or "/" in name or "%" in name:
        raise ValueError(f"it {_ROLE_SENTENCE}")
    return name


class AuthSpec(ApiModel):
    """Identity of the published kubeconfig in the control plane, and its authentication."""

    model: AuthModel = AuthModel.TOKEN
    """The authentication of the kubeconfig: `token` or `x509`. The model `token` publishes a ServiceAccount token that
    is renewed before it expires. The model `x509` publishes a client certificate that is renewed in the same way. The
    models `v0` and `basic`, which existing manifests have, mean `token`.
    """
    default_role: Annotated[
        str,
        StringConstraints(min_length=1, max_length=253),
        AfterValidator(_role_name),
        Extension(
            rules(
                Rule(
                    rule="!self.matches('[/%]') && self != '.' && self != '..'",
                    message=f"spec.auth.defaultRole {_ROLE_SENTENCE}",
                )
            )
        ),
    ] = "cluster-admin"
    """Name of the ClusterRole that the kubeconfig's identity has in every namespace of the control plane:
    cluster-admin, admin, edit, view, or any other existing ClusterRole. Holders of admin and edit can make themselves
    cluster-admin, because these roles may act as the ServiceAccounts of kube-system. view cannot. A change replaces the
    former role as soon as the new role exists in the control plane.
    """
    lifetime: Annotated[
        str,
        StringConstraints(min_length=1, max_length=32),
        duration_within(_SHORTEST_LIFETIME, _LONGEST_LIFETIME),
        duration_rules("spec.auth.lifetime", shortest=_SHORTEST_LIFETIME, longest=_LONGEST_LIFETIME),
    ] = "72h"
    """The validity period of tokens and client certificates in published Secrets, such as 72h, 90m or 1h30m; from 10m
    to 8760h. The API server of a control plane may grant tokens another lifetime. Credentials are renewed after a third
    of their lifetime. A change issues new credentials at once. Former credentials stay valid until they expire.
    """

    @property
    def lifetime_asked(self) -> timedelta:
        """`lifetime` as a timedelta."""
        return parse_duration(self.lifetime)


_LARGEST: Final = 2**63 - 1
"""The largest integer in an object of Kubernetes."""

_PROFILE_OR_EXPLICIT: Final = "say either spec.controllers.profile or spec.controllers.explicit, not both"
_SOME_RUN: Final = (
    "spec.controllers.explicit must have some controller run: name one without '-', or '*' for those that are on by"
    " default"
)


def _some_run(names: list[str]) -> list[str]:
    """Validate a list by the rule of `explicit`, for objects that no API server has validated."""
    if all(name.startswith("-") for name in names):
        raise ValueError(_SOME_RUN)
    return names


class ControllersSettings(ApiModel):
    """Controllers of a control plane: a profile or an explicit list."""

    model_config = ConfigDict(
        json_schema_extra=rules(Rule(rule="!has(self.profile) || !has(self.explicit)", message=_PROFILE_OR_EXPLICIT))
    )

    profile: ControllersProfile | None = None
    """Core completes an API server (namespaces, service accounts, garbage collection, roles, certificates). Nodeless
    adds the controllers of workloads. Full adds the controllers of nodes and volumes.
    """
    explicit: (
        Annotated[
            list[
                Annotated[
                    str,
                    StringConstraints(min_length=1, max_length=128, pattern=r"^([*]|-?[a-z0-9]([-a-z0-9]*[a-z0-9])?)$"),
                ]
            ],
            Field(min_length=1, max_length=128),
            AfterValidator(_some_run),
            ATOMIC_LIST,
            Extension(rules(Rule(rule="self.exists(name, !name.startsWith('-'))", message=_SOME_RUN))),
        ]
        | None
    ) = None
    """Names of controllers, as in --controllers of kube-controller-manager: `job-controller` enables that controller,
    `-job-controller` disables it, `*` enables all controllers that are on by default. A controller is omitted if the
    control plane lacks its keys. The controller that signs certificates is an example.
    """

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Self:
        if self.profile is not None and self.explicit is not None:
            raise ValueError(_PROFILE_OR_EXPLICIT)
        return self

    @property
    def chosen(self) -> bool:
        """Whether a profile or a list is set."""
        return self.profile is not None or self.explicit is not None


_CRON_FIELD: Final = r"[0-9A-Za-z*/,#-]+"


class SnapshotSettings(ApiModel):
    """Schedule of the snapshots of control planes, and the number of snapshots that the operator keeps."""

    schedule: Annotated[
        str, StringConstraints(min_length=9, max_length=128, pattern=rf"^{_CRON_FIELD}( {_CRON_FIELD}){{4}}$")
    ]
    """The schedule as in cron and in UTC: minute, hour, day of month, month, day of week. `23 */6 * * *` is every six
    hours. Each control plane has its own delay, of at most ten minutes and a tenth of the interval. If the operator was
    down at a scheduled time, it creates a single snapshot after its restart.
    """
    retain: Annotated[int, Field(ge=1, le=1000)] = 7
    """The number of completed snapshots that are kept for each control plane. The operator deletes older snapshots that
    it created by the schedule, and no other snapshots.
    """


_SHORTEST_BODY: Final = 1 << 10
_LONGEST_BODY: Final = 1 << 30
_BODY_SENTENCE: Final = "must be from 1Ki to 1Gi, such as 1Mi"


def _body_length(text: str) -> str:
    """Validate an amount by the rule of `requestBytes`, for objects that no API server has validated."""
    if not _SHORTEST_BODY <= quantity(text) <= _LONGEST_BODY:
        raise ValueError(f"it {_BODY_SENTENCE}")
    return text


class RequestLimits(ApiModel):
    """Limits of each control plane of a class at the gateway; absent for no limit.

    The gateway refuses requests beyond a limit with 429 or 413, and a Status object with the cause. Each replica of the
    gateway counts separately.
    """

    requests_in_flight: Annotated[int, Field(ge=1, le=16384)] | None = None
    """Maximum number of open requests that read, and maximum number of open requests that write. A watch counts as a
    request that reads, while it is open.
    """
    requests_per_second: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Maximum number of requests per second. After a pause, the requests of two seconds may arrive at once."""
    request_bytes: (
        Annotated[
            StorageAmount,
            AfterValidator(_body_length),
            Extension(
                rules(
                    Rule(
                        rule=(
                            "quantity(string(self)).compareTo(quantity('1Ki')) >= 0"
                            " && quantity(string(self)).compareTo(quantity('1Gi')) <= 0"
                        ),
                        message=f"spec.limits.requestBytes {_BODY_SENTENCE}",
                    )
                )
            ),
        ]
        | None
    ) = None
    """Maximum size of the body of a request that writes, such as 1Mi; from 1Ki to 1Gi. The API server refuses bodies of
    more than 3Mi in any case. Streams to pods, such as the streams of `kubectl exec`, are not limited.
    """

    request_idle_seconds: Annotated[int, Field(ge=5, le=3600)] | None = None
    """Maximum number of seconds without a byte in either direction of a request that writes; 60 if absent. A request
    whose body stops gets 408. Uploads that continue, watches, and streams to pods are not ended.
    """

    @property
    def request_bytes_asked(self) -> int | None:
        """`requestBytes` as a number."""
        return int(quantity(self.request_bytes)) if self.request_bytes is not None else None


class StorageSettings(ApiModel):
    """Limit of the data of a control plane in the shared etcd."""

    quota: StorageAmount | None = None
    """Quota for the bytes of the keys and values of a control plane, such as 256Mi; absent for no limit. Condition
    StorageSufficient and an Event warn at 80 %, and again at 100 %. From 100 % on the gateway refuses requests that add
    data, with 403. The API server's own address refuses no request.
    """


class VirtualSettings(ApiModel):
    """Settings of control planes of mode Virtual that kplane runs."""

    storage: StorageSettings | None = None
    """Limit of the data of a control plane in the shared etcd."""
    data_store_ref: DataStoreReference | None = None
    """The shared etcd of each control plane whose spec names none; absent for `default`. A change moves the data of all
    these control planes while they are in use, at most four at a time.
    """
    start: StartPolicy | None = None
    """The start policy of each control plane whose spec sets none: Always or OnDemand. The default is OnDemand for
    control planes whose only address is the gateway's, and Always for others.
    """
    idle: IdleSettings | None = None
    """Time until idle control planes that start on demand fall asleep; absent for never. Set it only if a gateway
    records the use of control planes.
    """


class ControlPlaneClassSpec(ApiModel):
    """Defaults and policies for the control planes of the class."""

    deletion_policy: DeletionPolicy | None = None
    """The deletion policy of each control plane whose spec sets none: Retain (default) or Destroy."""
    endpoint_policy: EndpointPolicy | None = None
    """The addresses that kplane publishes for each control plane whose spec sets no policy: Gateway, Own or Both.
    Control planes with spec.endpointRef ignore the field.
    """
    endpoint_style: EndpointStyle | None = None
    """The form of the gateway's address for each control plane whose spec sets none: Path or HostName. Control planes
    with spec.endpointRef ignore the field.
    """
    limits: RequestLimits | None = None
    """Limits of each control plane of the class at the gateway; absent for no limit."""
    auth: AuthSpec = AuthSpec()
    """Identity of the published kubeconfig in the control plane, and its authentication."""
    addons: Annotated[
        list[Annotated[str, StringConstraints(min_length=1, max_length=253)]], Field(max_length=64), ATOMIC_LIST
    ] = Field(default_factory=list)
    """Add-ons of every control plane of the class. An add-on is removed when it is taken off the list. Add-on `starter`
    is a ConfigMap with the address of the control plane, readable for all users in the control plane. Add-on
    `kubeadm-join` has the objects that `kubeadm join` needs, with a bootstrap token that is renewed. Any other name is
    the name of a ConfigMap with manifests in the namespace of the operator. The ConfigMap must have the label
    controlplane.kplane.dev/addon: "true".
    """
    modes_allowed: Annotated[list[ControlPlaneMode], Field(max_length=8), ATOMIC_LIST] = Field(default_factory=list)
    """Modes that control planes of the class may have; absent or empty for every mode."""
    controllers: ControllersSettings | None = None
    """Controllers of each control plane whose registration sets none. If the field is absent, --controllers of the
    multicluster controller manager applies. Without that flag, the profile is Nodeless.
    """
    default_services: Services = Field(default_factory=list)
    """Services of the registration that the operator creates for each control plane of the class; absent or empty for
    no registration. The field applies when the registration is created. Existing registrations are never changed.
    """
    virtual: VirtualSettings | None = None
    """Settings of control planes of mode Virtual that kplane runs."""
    version: VersionText | None = None
    """The Kubernetes version of the API server of each control plane whose spec sets none, such as 1.36.3; absent for
    the operator's default. Control planes with spec.endpointRef ignore the field.
    """
    snapshots: SnapshotSettings | None = None
    """Schedule by which the operator creates a ControlPlaneSnapshot of each control plane of the class; absent for no
    schedule. Control planes with spec.endpointRef ignore the field.
    """
    etcd: EtcdSettings | None = None
    """The etcd of each control plane of mode Dedicated whose spec sets none; absent for one member."""
    resources: ComputeResources | None = None
    """Processor and memory of the API server of each control plane whose spec sets none. Control planes with
    spec.endpointRef ignore the field.
    """
    api_server: ApiServerSettings | None = None
    """Flags, login, audit log, encryption and Service network of the API servers of control planes. Control planes with
    spec.endpointRef ignore the field.
    """
    pods: PodScheduling | None = None
    """Scheduling of the pods of control planes: API servers, their etcds, and dedicated mcms. The field applies if the
    operator runs them as pods.
    """
    service: ServiceSettings | None = None
    """The Service of each API server. The field applies if the operator runs API servers as pods."""

    @property
    def storage_quota_bytes(self) -> int | None:
        """The storage quota of mode Virtual in bytes; None if there is none."""
        storage = self.virtual.storage if self.virtual is not None else None
        if storage is None or storage.quota is None:
            return None
        return min(max(1, int(quantity(storage.quota))), _LARGEST)

    allowed_destinations: Annotated[list[Destination], Field(max_length=32), ATOMIC_LIST] = Field(default_factory=list)
    """Destinations to which the API servers of control planes of the class may connect, besides their etcd. Examples
    are webhooks, aggregated APIs, and the kubelets of nodes that joined. Absent or empty allows no destination. All
    tenants of the class reach these addresses. Control planes with spec.endpointRef ignore the field.
    """


class ControlPlaneClassStatus(ApiModel):
    """Observed state of the class."""

    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """The metadata.generation that the operator observed last."""
    control_planes: Annotated[int, Field(ge=0)] | None = None
    """The number of control planes that name this class, including control planes that are being deleted."""
    conditions: Conditions = Field(default_factory=list)
    """Ready is True if the class is valid. Supported is False if a control plane cannot have a setting of the class."""


class ControlPlaneClass(ResourceModel):
    """Defaults and policies for the control planes that name the class in `spec.classRef`."""

    resource: ClassVar[ResourceInfo] = ResourceInfo(
        kind="ControlPlaneClass",
        plural="controlplaneclasses",
        short_names=("cpclass",),
        columns=(
            Column("Deletion Policy", "string", ".spec.deletionPolicy"),
            Column("Profile", "string", ".spec.controllers.profile"),
            Column("Control Planes", "integer", ".status.controlPlanes"),
            Column("Ready", "string", '.status.conditions[?(@.type=="Ready")].status'),
            Column("Age", "date", ".metadata.creationTimestamp"),
        ),
    )

    spec: ControlPlaneClassSpec
    """Defaults and policies for the control planes of the class."""
    status: ControlPlaneClassStatus = Field(default_factory=ControlPlaneClassStatus)
    """Observed state of the class; written by the operator."""
