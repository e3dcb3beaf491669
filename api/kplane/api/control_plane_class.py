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
    """How the published kubeconfig authenticates; `v0` and `basic` are older names of `token`."""

    V0 = "v0"
    BASIC = "basic"
    TOKEN = "token"  # noqa: S105 - the name of a model
    X509 = "x509"


class ControllersProfile(StrEnum):
    """Which controllers an instance of kube-controller-manager runs.

    Core is what makes an API server complete (namespaces, service accounts, garbage collection, roles, certificates),
    Nodeless adds the controllers of workloads, Full adds those of nodes and volumes.
    """

    CORE = "Core"
    NODELESS = "Nodeless"
    FULL = "Full"


_SHORTEST_LIFETIME: Final = "10m"
"""No API server grants a token of less (TokenRequest's expirationSeconds, k8s.io/api/authentication/v1)."""
_LONGEST_LIFETIME: Final = "8760h"

_ROLE_SENTENCE: Final = "must be the name of a ClusterRole: without '/' and '%', and other than '.' and '..'"


def _role_name(name: str) -> str:
    """Hold a name to the rule of `defaultRole`, for objects that no API server has seen yet."""
    if name in {".", ".."} or "/" in name or "%" in name:
        raise ValueError(f"it {_ROLE_SENTENCE}")
    return name


class AuthSpec(ApiModel):
    """Who the published kubeconfig is for the control plane, and how it proves it."""

    model: AuthModel = AuthModel.TOKEN
    """How the kubeconfig authenticates: `token` by a ServiceAccount token that is renewed before it expires, `x509` by
    a client certificate that is renewed likewise. `v0` and `basic`, which existing manifests have, mean `token`.
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
    """The ClusterRole that the kubeconfig's identity has in every namespace of the control plane: cluster-admin, admin,
    edit, view, or any other that is there. Holders of admin and edit can make themselves cluster-admin, because these
    roles may act as the ServiceAccounts of kube-system. view cannot. A change replaces the former role as soon as
    the new one exists in the control plane.
    """
    lifetime: Annotated[
        str,
        StringConstraints(min_length=1, max_length=32),
        duration_within(_SHORTEST_LIFETIME, _LONGEST_LIFETIME),
        duration_rules("spec.auth.lifetime", shortest=_SHORTEST_LIFETIME, longest=_LONGEST_LIFETIME),
    ] = "72h"
    """How long tokens and client certificates in published Secrets are valid, such as 72h, 90m or 1h30m; from 10m to
    8760h. The API server of a control plane may grant tokens another lifetime. They are renewed after a third of it.
    A change issues new ones at once; those issued before stay valid until their own end.
    """

    @property
    def lifetime_asked(self) -> timedelta:
        """`lifetime` as what it stands for."""
        return parse_duration(self.lifetime)


_LARGEST: Final = 2**63 - 1
"""The largest number that an object of Kubernetes holds."""

_PROFILE_OR_EXPLICIT: Final = "say either spec.controllers.profile or spec.controllers.explicit, not both"
_SOME_RUN: Final = (
    "spec.controllers.explicit must have some controller run: name one without '-', or '*' for those that are on by"
    " default"
)


def _some_run(names: list[str]) -> list[str]:
    """Hold a list to the rule of `explicit`, for objects that no API server has seen yet."""
    if all(name.startswith("-") for name in names):
        raise ValueError(_SOME_RUN)
    return names


class ControllersSettings(ApiModel):
    """Which controllers run for a control plane: those of a profile, or those of a list."""

    model_config = ConfigDict(
        json_schema_extra=rules(Rule(rule="!has(self.profile) || !has(self.explicit)", message=_PROFILE_OR_EXPLICIT))
    )

    profile: ControllersProfile | None = None
    """Core: what makes an API server complete (namespaces, service accounts, garbage collection, roles, certificates).
    Nodeless: those, and the controllers of workloads. Full: those, and the controllers of nodes and volumes.
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
    """Controllers by their names, as in --controllers of kube-controller-manager: `job-controller` is one that runs,
    `-job-controller` one that does not, `*` stands for all that are on by default. One whose keys the control plane
    does not have, such as the one that signs certificates, is left out.
    """

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Self:
        if self.profile is not None and self.explicit is not None:
            raise ValueError(_PROFILE_OR_EXPLICIT)
        return self

    @property
    def chosen(self) -> bool:
        """Whether they say anything."""
        return self.profile is not None or self.explicit is not None


_CRON_FIELD: Final = r"[0-9A-Za-z*/,#-]+"


class SnapshotSettings(ApiModel):
    """When the operator makes snapshots of the control planes of a class, and how many it keeps."""

    schedule: Annotated[
        str, StringConstraints(min_length=9, max_length=128, pattern=rf"^{_CRON_FIELD}( {_CRON_FIELD}){{4}}$")
    ]
    """When, as in cron and in UTC: minute, hour, day of month, month, day of week. `23 */6 * * *` is every six hours.
    Each control plane has a delay of its own, of at most ten minutes and a tenth of the interval. If the operator was
    down at that time, it makes one snapshot when it is back.
    """
    retain: Annotated[int, Field(ge=1, le=1000)] = 7
    """How many completed snapshots of each control plane stay. The operator deletes older ones that it made by the
    schedule, and no others.
    """


_SHORTEST_BODY: Final = 1 << 10
_LONGEST_BODY: Final = 1 << 30
_BODY_SENTENCE: Final = "must be from 1Ki to 1Gi, such as 1Mi"


def _body_length(text: str) -> str:
    """Hold an amount to the rule of `requestBytes`, for objects that no API server has seen yet."""
    if not _SHORTEST_BODY <= quantity(text) <= _LONGEST_BODY:
        raise ValueError(f"it {_BODY_SENTENCE}")
    return text


class RequestLimits(ApiModel):
    """How much of the gateway each control plane of a class may use at one time; absent for no limit.

    Requests beyond a limit get 429 or 413, with a Status object that says so. Each replica of the gateway counts by
    itself.
    """

    requests_in_flight: Annotated[int, Field(ge=1, le=16384)] | None = None
    """How many requests that read, and as many that change something, may be open at one time. Watches count among
    those that read, for as long as they are open.
    """
    requests_per_second: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """How many requests may come in a second. After a pause, those of two seconds may come at once."""
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
    """How long the body of a request that changes something may be, such as 1Mi; from 1Ki to 1Gi. The API server
    refuses bodies of more than 3Mi in any case. Streams to pods, such as those of `kubectl exec`, are not limited.
    """

    request_idle_seconds: Annotated[int, Field(ge=5, le=3600)] | None = None
    """How many seconds a request that changes something may go without a byte in either direction; 60 if absent. A
    request whose body stops gets 408. An upload that continues, a watch and a stream to a pod are not ended.
    """

    @property
    def request_bytes_asked(self) -> int | None:
        """`requestBytes` as a number."""
        return int(quantity(self.request_bytes)) if self.request_bytes is not None else None


class StorageSettings(ApiModel):
    """How much a control plane may keep in the shared etcd."""

    quota: StorageAmount | None = None
    """How many bytes the keys and values of a control plane may have, such as 256Mi; absent for no limit. The quota
    warns: from 80 % on, condition StorageSufficient and an Event say so, and once more at 100 %. From then on the
    gateway refuses requests that add data, with 403. An API server's own address refuses none.
    """


class VirtualSettings(ApiModel):
    """What counts for the control planes of mode Virtual that kplane runs."""

    storage: StorageSettings | None = None
    """How much a control plane may keep in the shared etcd."""
    data_store_ref: DataStoreReference | None = None
    """The shared etcd of each control plane that names none itself; absent for `default`. A change moves the data of
    them all while they are in use; four begin at once.
    """
    start: StartPolicy | None = None
    """When the API server runs of each control plane that does not say it itself: Always, or OnDemand. The default is
    OnDemand for those whose only address is the gateway's, and Always for others.
    """
    idle: IdleSettings | None = None
    """When control planes that start on demand fall asleep again; absent for never. Set it only if a gateway writes
    when they are used.
    """


class ControlPlaneClassSpec(ApiModel):
    """Defaults and policies for the control planes of the class."""

    deletion_policy: DeletionPolicy | None = None
    """What happens to the data of a deleted control plane that sets no policy itself: Retain (default) or Destroy."""
    endpoint_policy: EndpointPolicy | None = None
    """Which addresses kplane publishes for each control plane that does not say it itself: Gateway, Own or Both. It
    does not count for those with spec.endpointRef.
    """
    endpoint_style: EndpointStyle | None = None
    """What the address of the gateway looks like for each control plane that does not say it itself: Path or HostName.
    It does not count for those with spec.endpointRef.
    """
    limits: RequestLimits | None = None
    """How much of the gateway each control plane of the class may use at one time; absent for no limit."""
    auth: AuthSpec = AuthSpec()
    """Who the published kubeconfig is for the control plane, and how it proves it."""
    addons: Annotated[
        list[Annotated[str, StringConstraints(min_length=1, max_length=253)]], Field(max_length=64), ATOMIC_LIST
    ] = Field(default_factory=list)
    """Add-ons that every control plane of the class gets, and loses when they are taken off the list. `starter`: a
    ConfigMap in which everybody in the control plane can read how it is reached. `kubeadm-join`: what `kubeadm join`
    needs, with a bootstrap token that is renewed. Any other name: the manifests in the ConfigMap of that name in the
    namespace of the operator, which has to have the label controlplane.kplane.dev/addon: "true".
    """
    modes_allowed: Annotated[list[ControlPlaneMode], Field(max_length=8), ATOMIC_LIST] = Field(default_factory=list)
    """Modes that control planes of the class may have; absent or empty for every mode."""
    controllers: ControllersSettings | None = None
    """Which controllers run for control planes of the class whose registration does not say it. Otherwise
    --controllers of the multicluster controller manager counts, and without that flag profile Nodeless.
    """
    default_services: Services = Field(default_factory=list)
    """Services that each control plane of the class is registered for by itself; absent or empty for none. It counts
    when the registration is made: one that exists is never changed.
    """
    virtual: VirtualSettings | None = None
    """What counts for the control planes of mode Virtual that kplane runs."""
    version: VersionText | None = None
    """The version of Kubernetes that the API servers of control planes run which set none themselves, such as 1.36.3;
    absent for the operator's own. It does not count for those with spec.endpointRef.
    """
    snapshots: SnapshotSettings | None = None
    """When the operator makes a ControlPlaneSnapshot of each control plane of the class by itself; absent for never. It
    does not count for those with spec.endpointRef.
    """
    etcd: EtcdSettings | None = None
    """The etcd of each control plane of mode Dedicated that sets none itself; absent for one member."""
    resources: ComputeResources | None = None
    """Processor and memory of the API server of each control plane that sets none itself. It does not count for those
    with spec.endpointRef.
    """
    api_server: ApiServerSettings | None = None
    """Flags, logins, audit log, encryption and Service network of the API servers of control planes. It does not count
    for those with spec.endpointRef.
    """
    pods: PodScheduling | None = None
    """Where the pods of control planes run: API servers, their etcds, and mcm of their own. It counts where the
    operator runs them as pods.
    """
    service: ServiceSettings | None = None
    """The Service of each API server. It counts where the operator runs them as pods.
    """

    @property
    def storage_quota_bytes(self) -> int | None:
        """The storage quota of mode Virtual as a number; None where there is none."""
        storage = self.virtual.storage if self.virtual is not None else None
        if storage is None or storage.quota is None:
            return None
        return min(max(1, int(quantity(storage.quota))), _LARGEST)

    allowed_destinations: Annotated[list[Destination], Field(max_length=32), ATOMIC_LIST] = Field(default_factory=list)
    """What the API servers of control planes of the class may connect to besides their etcd, for example for webhooks,
    aggregated APIs and the kubelets of nodes that joined; absent or empty for nothing. All tenants of the class reach
    these addresses. It does not count for those with spec.endpointRef.
    """


class ControlPlaneClassStatus(ApiModel):
    """What the operator makes of the class."""

    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """The metadata.generation that this status answers."""
    control_planes: Annotated[int, Field(ge=0)] | None = None
    """How many control planes name this class, those that are being deleted included."""
    conditions: Conditions = Field(default_factory=list)
    """Ready: the class can be acted on. Supported: False where a control plane cannot be given what the class says."""


class ControlPlaneClass(ResourceModel):
    """Defaults and policies that control planes take from the class they name in `spec.classRef`."""

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
    """What the operator makes of the class; written by the operator."""
