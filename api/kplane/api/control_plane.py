"""ControlPlane: a tenant's own Kubernetes API."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import AwareDatetime, ConfigDict, Field, StringConstraints, model_validator

from kplane.api.compute_resources import ComputeResources
from kplane.api.conditions import Conditions
from kplane.api.extensions import ATOMIC_MAP, Extension, Rule, list_map, rules
from kplane.api.hibernation import HibernationStatus, StartPolicy
from kplane.api.home import DEFAULT_DATA_STORE, ControlPlaneMode, DataStoreReference, Home, Volume
from kplane.api.kubernetes_version import VersionText
from kplane.api.migration import MigrationSpec, MigrationStatus
from kplane.api.names import ACCEPT_DATA_LOSS_ANNOTATION
from kplane.api.references import ObjectReference, SecretReference, TypedReference
from kplane.api.resource import ApiModel, Column, ResourceInfo, ResourceModel
from kplane.api.rotation import RotationStatus

__all__ = [
    "RESERVED_CLUSTER_PATHS",
    "ControlPlane",
    "ControlPlanePhase",
    "ControlPlaneSpec",
    "ControlPlaneStatus",
    "DedicatedSpec",
    "DeletionPolicy",
    "EndpointAddress",
    "EndpointPolicy",
    "EndpointStyle",
    "EndpointType",
    "EtcdSettings",
    "RememberedClass",
    "RestoreStatus",
    "SourceSpec",
    "StorageStatus",
    "VirtualSpec",
    "is_cluster_path",
]

RESERVED_CLUSTER_PATHS: Final = frozenset({"root", "clusters"})
"""Paths that a shared endpoint and a shared etcd use themselves."""

_CLUSTER_PATH_PATTERN: Final = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_LONGEST_CLUSTER_PATH: Final = 63


def is_cluster_path(path: str) -> bool:
    """Tell whether a text can be a clusterPath, reserved or not."""
    return len(path) <= _LONGEST_CLUSTER_PATH and re.fullmatch(_CLUSTER_PATH_PATTERN, path) is not None


class DeletionPolicy(StrEnum):
    """Retain keeps the data of a deleted control plane; Destroy removes it for good."""

    RETAIN = "Retain"
    DESTROY = "Destroy"


class ControlPlanePhase(StrEnum):
    """Where a control plane is in its life, in one word."""

    PENDING = "Pending"
    """It waits for an object that a person has to create, correct or free. It was never published."""
    PROVISIONING = "Provisioning"
    """It is being made. It was never published."""
    READY = "Ready"
    """It is published and serves."""
    UNAVAILABLE = "Unavailable"
    """It is published and does not serve now. The operator retries by itself."""
    MIGRATING = "Migrating"
    """Its data move to another home."""
    HIBERNATED = "Hibernated"
    """It sleeps: it is published, and no API server runs until a client needs it."""
    WAKING = "Waking"
    """It was asleep, and its API server starts."""
    FAILED = "Failed"
    """A person has to act; the condition Ready says how."""
    TERMINATING = "Terminating"
    """It is being deleted."""


class EndpointPolicy(StrEnum):
    """Under which addresses a control plane of mode Virtual is published."""

    GATEWAY = "Gateway"
    OWN = "Own"
    BOTH = "Both"


class EndpointStyle(StrEnum):
    """Under which kind of address the gateway serves a control plane."""

    PATH = "Path"
    HOST_NAME = "HostName"


class EndpointType(StrEnum):
    """Internal is for clients in the management cluster, External for people, Join for nodes."""

    INTERNAL = "Internal"
    EXTERNAL = "External"
    JOIN = "Join"


_CLUSTER_PATH_RULE = Rule(
    rule=f"self.matches('{_CLUSTER_PATH_PATTERN}')",
    message=(
        "spec.virtual.clusterPath must consist of lower-case letters, digits and '-', and start and end with a letter"
        " or a digit"
    ),
)


_EFFECTIVE_PATH_FITS: Final = (
    "self.spec.mode != 'Virtual' || [self.spec.?virtual.?clusterPath.orValue(self.metadata.name)].all(path,"
    f" !(path in [{', '.join(map(repr, sorted(RESERVED_CLUSTER_PATHS)))}])"
    # A name is a DNS subdomain, so these two make it a label. A regular expression would exceed the cost budget.
    f" && !path.contains('.') && path.size() <= {_LONGEST_CLUSTER_PATH})"
)
_EFFECTIVE_PATH_MESSAGE: Final = (
    "the clusterPath, which is the name unless spec.virtual.clusterPath is set, must have no dot and at most"
    f" {_LONGEST_CLUSTER_PATH} characters, and {' and '.join(sorted(RESERVED_CLUSTER_PATHS))} are reserved: choose"
    " another name, or set spec.virtual.clusterPath"
)


class VirtualSpec(ApiModel):
    """Settings of a control plane of mode Virtual."""

    cluster_path: (
        Annotated[
            str,
            StringConstraints(min_length=1, max_length=_LONGEST_CLUSTER_PATH, pattern=_CLUSTER_PATH_PATTERN),
            Extension(rules(_CLUSTER_PATH_RULE)),
        ]
        | None
    ) = None
    """The name of the control plane in the URL of a shared endpoint, `/clusters/<clusterPath>/control-plane`, and in
    the keys of a shared etcd. The default is the name of the object. No two control planes may share it, and it cannot
    be changed once it is in the status. `root` and `clusters` are reserved: the API server refuses them, and names
    with a dot or of more than 63 characters where no path is set. A control plane that had such a path before does not
    become Ready, and says so in its conditions.
    """
    data_store_ref: DataStoreReference | None = None
    """The shared etcd that has the data. A change moves them while the control plane is in use, see `spec.migration`.
    The default is that of the class, and `default` where that has none. For API servers that kplane runs.
    """
    start: StartPolicy | None = None
    """When the API server runs. Always: at all times. OnDemand: while the control plane is in use. Then it is Ready at
    once, in phase Hibernated, and its API server starts when a client needs it. The default is that of the class. If
    that has none, it is OnDemand where the gateway's address is the only one, else Always. For API servers that kplane
    runs.
    """


class EtcdSettings(ApiModel):
    """The etcd of a control plane of mode Dedicated."""

    members: Literal[1, 3] = 1
    """How many members etcd has. Three keep the data and serve if one is lost. A change from 1 to 3 adds the others
    while etcd runs. No member is ever taken away: condition UpToDate says so after a change from 3 to 1.
    """


class DedicatedSpec(ApiModel):
    """Settings of a control plane of mode Dedicated."""

    etcd: EtcdSettings | None = None
    """The etcd, in the place of what the class says; absent for that of the class, and for one member where that says
    nothing.
    """
    volume: Volume | None = None
    """The volumes of etcd, one for each member; absent for those of the operator's settings. A change moves the data to
    new volumes while the control plane is in use, see `spec.migration`.
    """
    provider_ref: TypedReference | None = None
    """Who provides the infrastructure; absent where kplane runs the control plane itself."""
    parameters_ref: TypedReference | None = None
    """Parameters for the provider."""


class SourceSpec(ApiModel):
    """What a new control plane begins with: a snapshot, restored or cloned, or a clone of another control plane."""

    model_config = ConfigDict(
        json_schema_extra={
            **ATOMIC_MAP,
            **rules(
                Rule(
                    rule="has(self.snapshotRef) != has(self.controlPlaneRef)",
                    message="spec.source has one of snapshotRef and controlPlaneRef: set one, and remove the other",
                ),
                Rule(
                    rule="!has(self.controlPlaneRef) || self.clone",
                    message=(
                        "a control plane that runs cannot be restored, because two would have the same keys: set"
                        " spec.source.clone, or name a ControlPlaneSnapshot in spec.source.snapshotRef"
                    ),
                    field_path=".clone",
                ),
                Rule(
                    rule="has(self.snapshotRef) == has(self.identitySecretRef)",
                    message="spec.source.identitySecretRef is for snapshotRef, which needs it: set both, or none",
                    field_path=".identitySecretRef",
                ),
                Rule(
                    rule="!self.nodes || self.clone",
                    message="spec.source.nodes is for clones, because a restore has the nodes: remove it, or set clone",
                    field_path=".nodes",
                    reason="FieldValueForbidden",
                ),
            ),
        }
    )

    snapshot_ref: ObjectReference | None = None
    """The completed ControlPlaneSnapshot whose data the control plane gets before its API server first starts. It may
    be of either mode. Unless `clone` is set, the control plane gets its keys too.
    """
    control_plane_ref: ObjectReference | None = None
    """The ControlPlane whose data the control plane gets, all of one revision. It goes on to serve, or to sleep. Only
    with `clone`.
    """
    clone: bool = False
    """Whether the control plane is another one, and not the former one again: each object gets a fresh uid, and the
    control plane gets a CA and a ServiceAccount key of its own. Tokens, certificates, Leases and Events of the original
    are left out.
    """
    nodes: bool = False
    """Whether a clone has the Nodes of the original."""
    identity_secret_ref: ObjectReference | None = None
    """The Secret in the namespace of the operator with the private key of age, in its key `identity`: for a snapshot.
    Delete it when the control plane is Ready.
    """

    @model_validator(mode="after")
    def _has_one_origin(self) -> Self:
        if (self.snapshot_ref is None) is (self.control_plane_ref is None):
            raise ValueError("spec.source has one of snapshotRef and controlPlaneRef")
        if self.control_plane_ref is not None and not self.clone:
            raise ValueError("spec.source.controlPlaneRef is for clones only: set spec.source.clone")
        if (self.snapshot_ref is None) is not (self.identity_secret_ref is None):
            raise ValueError("spec.source.identitySecretRef is for snapshotRef, which needs it")
        if self.nodes and not self.clone:
            raise ValueError("spec.source.nodes is for clones only")
        return self


class ControlPlaneSpec(ApiModel):
    """What the control plane should be."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                rule="!has(self.virtual) || self.mode == 'Virtual'",
                message="spec.virtual is for spec.mode Virtual only: remove spec.virtual or set spec.mode so",
                field_path=".virtual",
                reason="FieldValueForbidden",
            ),
            Rule(
                rule="!has(self.dedicated) || self.mode == 'Dedicated'",
                message="spec.dedicated is for spec.mode Dedicated only: remove spec.dedicated or set spec.mode so",
                field_path=".dedicated",
                reason="FieldValueForbidden",
            ),
            *(
                Rule(
                    rule=f"!has(self.endpointRef) || !has(self.{field})",
                    message=(
                        f"spec.{field} is for API servers that kplane runs, and that of spec.endpointRef it does not:"
                        f" remove spec.{field}"
                    ),
                    field_path=f".{field}",
                    reason="FieldValueForbidden",
                )
                for field in ("version", "resources", "endpointPolicy", "endpointStyle", "migration", "source")
            ),
            Rule(
                rule="!has(self.endpointRef) || self.mode == oldSelf.mode",
                message=(
                    "spec.mode cannot be changed where spec.endpointRef is set, because kplane does not have the data:"
                    " create a second ControlPlane"
                ),
                field_path=".mode",
                reason="FieldValueForbidden",
            ),
            Rule(
                rule="!has(self.endpointStyle) || !has(self.endpointPolicy) || self.endpointPolicy != 'Own'",
                message=(
                    "spec.endpointStyle is for the address of the gateway, which spec.endpointPolicy Own does not"
                    " publish: remove one of the two"
                ),
                field_path=".endpointStyle",
                reason="FieldValueForbidden",
            ),
            *(
                Rule(
                    rule=f"!has(self.endpointRef) || !has(self.virtual) || !has(self.virtual.{field})",
                    message=(
                        f"spec.virtual.{field} is for API servers that kplane runs, and that of spec.endpointRef it"
                        f" does not: remove spec.virtual.{field}"
                    ),
                    field_path=f".virtual.{field}",
                    reason="FieldValueForbidden",
                )
                for field in ("start", "dataStoreRef")
            ),
            Rule(
                rule="has(self.source) == has(oldSelf.source) && (!has(self.source) || self.source == oldSelf.source)",
                message="spec.source cannot be changed: create another ControlPlane",
                field_path=".source",
                reason="FieldValueForbidden",
            ),
        )
    )

    class_ref: ObjectReference | None = None
    """The ControlPlaneClass that defaults and policies come from; absent for those of kplane."""
    mode: ControlPlaneMode = ControlPlaneMode.VIRTUAL
    """Virtual shares etcd and the public address with others, Dedicated has its own. A change moves the data while the
    control plane is in use, see `spec.migration`.
    """
    migration: MigrationSpec | None = None
    """How a change of spec.mode, spec.dedicated.volume or spec.virtual.dataStoreRef goes."""
    endpoint_ref: ObjectReference | None = None
    """The ControlPlaneEndpoint under which an existing API server serves this control plane; absent where kplane is to
    run the API server and provide the endpoint itself.
    """
    endpoint_policy: EndpointPolicy | None = None
    """Which addresses kplane publishes for a control plane. Gateway: people and nodes use that of the gateway. Own:
    they use that of the API server, and the gateway does not serve it. Both: people use that of the gateway, and nodes
    that of the API server. The default is that of the class. If the class has none, it is Gateway for mode Virtual if
    the operator has a gateway, otherwise Own. One that moves from Virtual to Dedicated keeps its address.
    """
    endpoint_style: EndpointStyle | None = None
    """What the address of the gateway looks like. Path: `https://HOST/clusters/<clusterPath>/control-plane`, where the
    gateway ends TLS. HostName: `https://<clusterPath>.DOMAIN`, where TLS passes through to the API server, and the
    operator needs a domain for that. The default is that of the class, and Path where that has none.
    """
    deletion_policy: DeletionPolicy | None = None
    """What happens to the data on deletion: Retain keeps it, Destroy removes it for good. The default is the policy of
    the class, and Retain where that has none.
    """
    source: SourceSpec | None = None
    """What the control plane begins with; absent for nothing. Cannot be changed."""
    virtual: VirtualSpec | None = None
    """Settings of mode Virtual."""
    dedicated: DedicatedSpec | None = None
    """Settings of mode Dedicated."""
    version: VersionText | None = None
    """The version of Kubernetes that the API server runs, such as 1.36.3 or v1.36.3. The default is that of the class,
    and the operator's own where that has none. A lower version than the one that runs is refused, and so is one that
    skips a minor version: condition UpToDate says so then, and what runs stays.
    """
    resources: ComputeResources | None = None
    """Processor and memory of the API server, in the place of those of the class. For what is left out, kplane's
    defaults count: requests of 100m and 256Mi, and a limit of 2Gi.
    """

    @model_validator(mode="after")
    def _settings_match_mode(self) -> Self:
        for mode, settings in ((ControlPlaneMode.VIRTUAL, self.virtual), (ControlPlaneMode.DEDICATED, self.dedicated)):
            if settings is not None and self.mode != mode:
                raise ValueError(f"spec.{mode.lower()} is for spec.mode {mode} only")
        if self.endpoint_style is not None and self.endpoint_policy is EndpointPolicy.OWN:
            raise ValueError("spec.endpointStyle is for the address of the gateway, not for spec.endpointPolicy Own")
        return self

    @model_validator(mode="after")
    def _runs_what_it_sets(self) -> Self:
        virtual = self.virtual or VirtualSpec()
        for field, value in (
            ("version", self.version),
            ("resources", self.resources),
            ("endpointPolicy", self.endpoint_policy),
            ("endpointStyle", self.endpoint_style),
            ("migration", self.migration),
            ("virtual.start", virtual.start),
            ("virtual.dataStoreRef", virtual.data_store_ref),
            ("source", self.source),
        ):
            if value is not None and self.endpoint_ref is not None:
                raise ValueError(f"spec.{field} is for API servers that kplane runs, not for that of spec.endpointRef")
        return self


class EndpointAddress(ApiModel):
    """One address of the control plane."""

    type: EndpointType
    """Whom the address is for: Internal for clients in the management cluster, External for people, Join for nodes."""
    url: Annotated[str, StringConstraints(max_length=2048)]
    """The URL to put into a kubeconfig."""


class RememberedClass(ApiModel):
    """What the class said when the control plane was last made to follow it."""

    model_config = ConfigDict(json_schema_extra=ATOMIC_MAP)

    name: Annotated[str, StringConstraints(max_length=253)] | None = None
    """Name of the ControlPlaneClass."""
    spec: dict[str, Any] = Field(default_factory=dict)
    """Its spec."""


class StorageStatus(ApiModel):
    """What a control plane keeps in the shared etcd."""

    keys: Annotated[int, Field(ge=0)]
    """How many keys it has: one for each object, and a few of the API server's own."""
    bytes: Annotated[int, Field(ge=0)]
    """How many bytes the keys and their present values have. The history that etcd keeps for some minutes is not
    counted.
    """
    quota_bytes: Annotated[int, Field(ge=1)] | None = None
    """The quota in force; absent where the class sets none."""

    @property
    def is_full(self) -> bool:
        """Whether the quota is used up."""
        return self.quota_bytes is not None and self.bytes >= self.quota_bytes


class RestoreStatus(ApiModel):
    """What a control plane began with, as it was when the control plane was made."""

    snapshot: Annotated[str, StringConstraints(max_length=253)] | None = None
    """Name of the ControlPlaneSnapshot; absent for the clone of a control plane that runs."""
    location: Annotated[str, StringConstraints(max_length=1024)] | None = None
    """The name of the file of the snapshot."""
    sha256: Annotated[str, StringConstraints(max_length=64)] | None = None
    """The SHA-256 of the file."""
    control_plane_uid: Annotated[str, StringConstraints(max_length=64)] | None = Field(
        default=None, alias="controlPlaneUID"
    )
    """The uid of the control plane that the data are of."""
    kubernetes_version: Annotated[str, StringConstraints(max_length=63)] | None = None
    """The version of the API server that wrote the data last."""
    begins_at: Annotated[int, Field(ge=1)] | None = None
    """The least revision of the etcd, above all that the former one ever had; absent for a clone, which has no former
    one.
    """


class ControlPlaneStatus(ApiModel):
    """What the control plane is. A published value stays through transient errors; those show in the conditions."""

    phase: ControlPlanePhase | None = None
    """Where the control plane is in its life: Pending and Provisioning before it is published for the first time, Ready
    while it serves, Unavailable while it does not and the operator retries, Failed while a person has to act,
    Hibernated while it sleeps, Waking while its API server starts after that.
    """
    endpoint: Annotated[str, StringConstraints(max_length=2048)] | None = None
    """The URL of the API server for clients in the management cluster."""
    endpoints: Annotated[list[EndpointAddress], Field(max_length=8), list_map("type")] = Field(default_factory=list)
    """Every address of the API server."""
    kubeconfig_secret_ref: SecretReference | None = None
    """The Secret with the administrator's kubeconfig: `kubeconfig` for the internal endpoint, `kubeconfig-external` for
    the external one, and `ca.crt`.
    """
    controllers_secret_ref: SecretReference | None = None
    """The Secret with the credentials and keys of the control plane's controllers."""
    cluster_path: Annotated[str, StringConstraints(max_length=63)] | None = None
    """The path that the control plane's data lies under in a shared etcd."""
    claimed_address: Annotated[str, StringConstraints(max_length=4096)] | None = None
    """The address, of an API server that kplane does not run, that is the control plane's own: written before anything
    is made there, and refused to others as long as it is here or in `endpoint`.
    """
    cluster_uid: Annotated[str, StringConstraints(max_length=64)] | None = Field(default=None, alias="clusterUID")
    """The uid of namespace `kube-system` in the control plane, which tells one cluster from another, whatever its
    address. In an adopted cluster the operator writes nothing before it is here, and nothing if another uid is found.
    """
    service_cidr: Annotated[str, StringConstraints(max_length=43)] | None = Field(default=None, alias="serviceCIDR")
    """The network that Services get their addresses from, where kplane runs the API server. It stays as it was when the
    control plane was made.
    """
    namespace_uid: Annotated[str, StringConstraints(max_length=64)] | None = Field(default=None, alias="namespaceUID")
    """The uid of the control plane's namespace. The operator takes over no other namespace of that name."""
    deletion_policy: DeletionPolicy | None = None
    """The policy in force, remembered so that a deletion keeps to it where the class is gone by then."""
    remembered_class: RememberedClass | None = None
    """What the class decided, which stays in force where the class is deleted, until another one is named."""
    credentials_expire_at: AwareDatetime | None = None
    """When the credentials in the published kubeconfig end; the Secret has others before, after a third of their
    life.
    """
    version: Annotated[str, StringConstraints(max_length=63)] | None = None
    """The version that the API server reports."""
    home: Home | None = None
    """Where the data live; absent for those of an API server that kplane does not run."""
    data_identity: Annotated[str, StringConstraints(max_length=64)] | None = None
    """A random id that the data have in their etcd. No API server starts on data without it: see reason DataLost."""
    migration: MigrationStatus | None = None
    """The latest move of the data to another home; absent where there was none."""
    storage: StorageStatus | None = None
    """What the control plane keeps in the shared etcd; absent for other control planes than those of mode Virtual that
    kplane runs. The operator measures it every ten minutes, and writes it down if it changed by a tenth, or passed 80
    or 100 % of the quota.
    """
    hibernation: HibernationStatus | None = None
    """Since when the control plane sleeps; absent while it is awake. It is written before the API server ends, and goes
    when an API server answers again.
    """
    restore: RestoreStatus | None = None
    """What the control plane was restored or cloned from; absent for one without spec.source."""
    rotation: RotationStatus | None = None
    """The latest exchange of the CAs and the ServiceAccount key; begun by the annotation
    `controlplane.kplane.dev/rotate`, once for each of its values.
    """
    key_fingerprints: Annotated[dict[str, Annotated[str, StringConstraints(max_length=64)]], Field(max_length=16)] = (
        Field(default_factory=dict)
    )
    """The SHA-256 of each key, by entry of Secret `control-plane-authorities`: of a public key, or of `encryption.key`
    itself. No key can be read from it. The operator uses no other keys: see reason KeysChanged.
    """
    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """The metadata.generation that this status answers."""
    conditions: Conditions = Field(default_factory=list)
    """The state in detail; Ready sums it up."""


class ControlPlane(ResourceModel):
    """A Kubernetes control plane of its own: an API server with its own data, users and resource types."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                rule=(
                    # Finalizers must go even where path and status differ: what leaves the spec alone is not refused.
                    # One of mode Dedicated cannot name a path, and keeps that which it had as Virtual.
                    "self.spec == oldSelf.spec || !has(oldSelf.status) || !has(oldSelf.status.clusterPath)"
                    " || self.spec.mode == 'Dedicated'"
                    " || self.spec.?virtual.?clusterPath.orValue(self.metadata.name) == oldSelf.status.clusterPath"
                ),
                message=(
                    "spec.virtual.clusterPath cannot be changed, because the data lies under it: create a second"
                    " ControlPlane with the other path instead"
                ),
                field_path=".spec.virtual.clusterPath",
                reason="FieldValueForbidden",
            ),
            Rule(
                rule=(
                    "self.spec == oldSelf.spec || !has(oldSelf.status) || !has(oldSelf.status.endpoint)"
                    " || has(self.spec.endpointRef) == has(oldSelf.spec.endpointRef)"
                ),
                message=(
                    "spec.endpointRef must not be added or removed, because that would exchange the API"
                    " server under users; create a second ControlPlane, and switch registrations to it"
                ),
                field_path=".spec",
                reason="FieldValueForbidden",
            ),
            # A rule without oldSelf counts at creation too, and has to let pass what had such a name before. Edits of
            # the spec need a rule of their own. The models accept these names, because the operator reads such objects.
            Rule(
                rule=f"has(self.status) || {_EFFECTIVE_PATH_FITS}",
                message=_EFFECTIVE_PATH_MESSAGE,
                field_path=".spec.virtual.clusterPath",
            ),
            Rule(
                rule=f"self.spec == oldSelf.spec || {_EFFECTIVE_PATH_FITS}",
                message=_EFFECTIVE_PATH_MESSAGE,
                field_path=".spec.virtual.clusterPath",
            ),
        )
    )

    resource: ClassVar[ResourceInfo] = ResourceInfo(
        kind="ControlPlane",
        plural="controlplanes",
        short_names=("cp",),
        columns=(
            Column("Mode", "string", ".spec.mode"),
            Column("Phase", "string", ".status.phase"),
            Column("Ready", "string", '.status.conditions[?(@.type=="Ready")].status'),
            Column("Class", "string", ".spec.classRef.name", priority=1),
            Column("Version", "string", ".status.version", priority=1),
            Column("Endpoint", "string", ".status.endpoint", priority=1),
            Column("Migration", "string", ".status.migration.step", priority=1),
            Column("Copied %", "integer", ".status.migration.percent", priority=1),
            Column("Asleep", "date", ".status.hibernation.since", priority=1),
            Column("Next Wake", "string", ".status.hibernation.nextWake", priority=1),
            Column("Age", "date", ".metadata.creationTimestamp"),
        ),
        selectable=(".spec.mode", ".spec.classRef.name", ".spec.endpointRef.name"),
    )

    spec: ControlPlaneSpec
    """What the control plane should be."""
    status: ControlPlaneStatus = Field(default_factory=ControlPlaneStatus)
    """What the control plane is; written by the operator."""

    @property
    def cluster_path(self) -> str:
        """The path in force: `spec.virtual.clusterPath`, else the object's name, which need not be a valid path.

        One that was of mode Virtual keeps the path that it had.
        """
        given = self.spec.virtual.cluster_path if self.spec.virtual is not None else None
        if given is None and self.spec.mode is ControlPlaneMode.DEDICATED:
            given = self.status.cluster_path
        return given if given is not None else self.metadata.name

    @property
    def data_loss_acceptance(self) -> str:
        """Value of annotation `accept-data-loss` that accepts a loss of the present data, and not of later ones."""
        return self.status.data_identity or self.metadata.uid or ""

    @property
    def is_data_loss_accepted(self) -> bool:
        """Whether a user accepted the loss of the data that the status names."""
        return self.metadata.annotations.get(ACCEPT_DATA_LOSS_ANNOTATION) == self.data_loss_acceptance

    @property
    def home(self) -> Home:
        """Where the data live; the spec may ask for another mode."""
        return self.status.home or self.home_asked_for()

    def home_asked_for(self, *, by_class: DataStoreReference | None = None) -> Home:
        """Return what the spec asks for. `by_class` counts where it names no data store."""
        if self.spec.mode is ControlPlaneMode.DEDICATED:
            volume = self.spec.dedicated.volume if self.spec.dedicated is not None else None
            return Home(mode=self.spec.mode, volume=volume)
        named = (self.spec.virtual.data_store_ref if self.spec.virtual is not None else None) or by_class
        asked = named.name if named is not None else DEFAULT_DATA_STORE
        return Home(mode=self.spec.mode, data_store=asked if asked != DEFAULT_DATA_STORE else None)

    def at(self, home: Home) -> ControlPlane:
        """Return the control plane as one that lives there: for what is done in the other home of a migration."""
        return self.model_copy(update={"status": self.status.model_copy(update={"home": home})})
