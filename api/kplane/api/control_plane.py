"""ControlPlane: a Kubernetes API of a tenant."""

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
"""Cluster paths that the shared endpoint and the shared etcd use themselves."""

_CLUSTER_PATH_PATTERN: Final = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_LONGEST_CLUSTER_PATH: Final = 63


def is_cluster_path(path: str) -> bool:
    """Return whether a text has the form of a clusterPath; reserved paths included."""
    return len(path) <= _LONGEST_CLUSTER_PATH and re.fullmatch(_CLUSTER_PATH_PATTERN, path) is not None


class DeletionPolicy(StrEnum):
    """Retain keeps the data of a deleted control plane; Destroy removes it for good."""

    RETAIN = "Retain"
    DESTROY = "Destroy"


class ControlPlanePhase(StrEnum):
    """Phase of a control plane."""

    PENDING = "Pending"
    """The control plane waits for an object that a person has to create, correct or free. It was never published."""
    PROVISIONING = "Provisioning"
    """The operator creates the control plane. It was never published."""
    READY = "Ready"
    """The control plane is published and serves requests."""
    UNAVAILABLE = "Unavailable"
    """The control plane is published and does not serve requests now. The operator retries."""
    MIGRATING = "Migrating"
    """The data of the control plane move to another home."""
    HIBERNATED = "Hibernated"
    """The control plane sleeps: it is published, and no API server runs until a client needs it."""
    WAKING = "Waking"
    """The control plane slept, and its API server starts."""
    FAILED = "Failed"
    """A person has to act; condition Ready has the cause."""
    TERMINATING = "Terminating"
    """The control plane is being deleted."""


class EndpointPolicy(StrEnum):
    """Addresses under which a control plane is published."""

    GATEWAY = "Gateway"
    OWN = "Own"
    BOTH = "Both"


class EndpointStyle(StrEnum):
    """Form of the address under which the gateway serves a control plane."""

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
    # A name is a DNS subdomain, so the two checks make it a label. A regular expression would exceed the cost budget.
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
    """Name of the control plane in the URL of a shared endpoint, `/clusters/<clusterPath>/control-plane`, and in the
    keys of a shared etcd. The default is the name of the object. It must be unique among control planes, and cannot be
    changed once it is in the status. `root` and `clusters` are reserved. If no path is set, the API server also refuses
    object names with a dot or of more than 63 characters. An older control plane with such a path does not become
    Ready, as its conditions report.
    """
    data_store_ref: DataStoreReference | None = None
    """The shared etcd with the data. A change moves the data while the control plane is in use, see `spec.migration`.
    The default is set by the class, or else `default`. The field is for API servers that kplane runs.
    """
    start: StartPolicy | None = None
    """The start policy of the API server. Always runs the API server at all times. OnDemand runs the API server while
    the control plane is in use. A new control plane is then Ready at once, in phase Hibernated, and its API server
    starts when a client needs it. The default is set by the class. If the class sets none, the default is OnDemand if
    the gateway's address is the only address, and Always otherwise. The field is for API servers that kplane runs.
    """


class EtcdSettings(ApiModel):
    """The etcd of a control plane of mode Dedicated."""

    members: Literal[1, 3] = 1
    """The number of etcd members. With three members, the data survive the loss of a member, and etcd continues to
    serve. A change from 1 to 3 adds members while etcd runs. Members are never removed: after a change from 3 to 1,
    condition UpToDate reports that.
    """


class DedicatedSpec(ApiModel):
    """Settings of a control plane of mode Dedicated."""

    etcd: EtcdSettings | None = None
    """The etcd of the control plane. It takes precedence over the etcd of the class. The default is set by the class,
    or else a single member.
    """
    volume: Volume | None = None
    """The volumes of the etcd members; absent for the operator's settings. A change moves the data to new volumes while
    the control plane is in use, see `spec.migration`.
    """
    provider_ref: TypedReference | None = None
    """Reserved for an infrastructure provider. The field has no effect, because kplane runs the control plane;
    condition Supported reports that.
    """
    parameters_ref: TypedReference | None = None
    """Reserved for parameters of the provider. The field has no effect, as providerRef."""


class SourceSpec(ApiModel):
    """Initial data of a control plane: a snapshot, restored or cloned, or a clone of another control plane."""

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
    """The completed ControlPlaneSnapshot whose data are loaded before the API server first starts. The snapshot may be
    of either mode. The keys of the snapshot are loaded too, unless `clone` is set.
    """
    control_plane_ref: ObjectReference | None = None
    """The ControlPlane whose data are copied at a single revision. It continues to serve, or to sleep. `clone` must be
    set.
    """
    clone: bool = False
    """Whether the control plane is a clone, and not a restore of the former control plane. Each object of a clone gets
    a new uid, and the clone gets a new CA and a new ServiceAccount key. Tokens, certificates, Leases and Events of the
    original are left out.
    """
    nodes: bool = False
    """Whether a clone gets the Nodes of the original."""
    identity_secret_ref: ObjectReference | None = None
    """The Secret in the namespace of the operator with the age private key of the snapshot, in its key `identity`.
    Delete the Secret when the control plane is Ready.
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
    """Desired state of the control plane."""

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
    """The ControlPlaneClass with defaults and policies of the control plane; absent for the defaults of kplane."""
    mode: ControlPlaneMode = ControlPlaneMode.VIRTUAL
    """mode is Virtual or Dedicated. Virtual shares etcd and public address with other control planes, Dedicated has an
    etcd and an address of its own. A change moves the data while the control plane is in use, see `spec.migration`.
    """
    migration: MigrationSpec | None = None
    """Settings of a migration by a change of spec.mode, spec.dedicated.volume or spec.virtual.dataStoreRef."""
    endpoint_ref: ObjectReference | None = None
    """The ControlPlaneEndpoint with the address of an existing API server that serves this control plane. If absent,
    kplane runs the API server and creates the endpoint.
    """
    endpoint_policy: EndpointPolicy | None = None
    """The addresses that kplane publishes. With Gateway, people and nodes use the gateway's address. With Own, they use
    the API server's address, and the gateway does not serve the control plane. With Both, people use the gateway's
    address, and nodes use the API server's. The default is set by the class. If the class sets none, the default is
    Gateway for mode Virtual if the operator has a gateway, and for a spec with endpointStyle. It is Own otherwise. A
    control plane keeps its address when it moves from Virtual to Dedicated.
    """
    endpoint_style: EndpointStyle | None = None
    """The form of the gateway's address. Path is `https://HOST/clusters/<clusterPath>/control-plane`, and the gateway
    terminates TLS. HostName is `https://<clusterPath>.DOMAIN`, and TLS passes through to the API server. HostName
    requires a domain of the operator. The default is set by the class, or else Path.
    """
    deletion_policy: DeletionPolicy | None = None
    """Treatment of the data on deletion: Retain keeps the data, Destroy removes them permanently. The default is set by
    the class, or else Retain.
    """
    source: SourceSpec | None = None
    """Initial data of the control plane; absent for no data. The field is immutable."""
    virtual: VirtualSpec | None = None
    """Settings of mode Virtual."""
    dedicated: DedicatedSpec | None = None
    """Settings of mode Dedicated."""
    version: VersionText | None = None
    """The Kubernetes version of the API server, such as 1.36.3 or v1.36.3. The default is set by the class, or else by
    the operator. A version below the current version is refused, and a version that skips a minor version is refused.
    In these cases the current version keeps running, and condition UpToDate has the cause.
    """
    resources: ComputeResources | None = None
    """Processor and memory of the API server. They take precedence over the resources of the class. kplane's defaults
    apply to omitted amounts: requests of 100m and 256Mi, and a limit of 2Gi.
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
    """An address of the control plane."""

    type: EndpointType
    """The clients of the address: Internal for clients in the management cluster, External for people, Join for nodes.
    """
    url: Annotated[str, StringConstraints(max_length=2048)]
    """The URL for kubeconfigs."""


class RememberedClass(ApiModel):
    """Copy of the class, from the last time that the control plane followed the class."""

    model_config = ConfigDict(json_schema_extra=ATOMIC_MAP)

    name: Annotated[str, StringConstraints(max_length=253)] | None = None
    """Name of the ControlPlaneClass."""
    spec: dict[str, Any] = Field(default_factory=dict)
    """Spec of the ControlPlaneClass."""


class StorageStatus(ApiModel):
    """Data of a control plane in the shared etcd."""

    keys: Annotated[int, Field(ge=0)]
    """The number of keys: a key for each object, and some keys of the API server."""
    bytes: Annotated[int, Field(ge=0)]
    """The number of bytes of the keys and their current values. The history that etcd keeps for some minutes is not
    counted.
    """
    quota_bytes: Annotated[int, Field(ge=1)] | None = None
    """The quota in force, in bytes; absent if the class sets none."""

    @property
    def is_full(self) -> bool:
        """Whether the quota is exhausted."""
        return self.quota_bytes is not None and self.bytes >= self.quota_bytes


class RestoreStatus(ApiModel):
    """Initial data of a control plane, as they were when the control plane was created."""

    snapshot: Annotated[str, StringConstraints(max_length=253)] | None = None
    """Name of the ControlPlaneSnapshot; absent for the clone of a ControlPlane."""
    location: Annotated[str, StringConstraints(max_length=1024)] | None = None
    """Name of the snapshot's file."""
    sha256: Annotated[str, StringConstraints(max_length=64)] | None = None
    """The SHA-256 of the snapshot's file."""
    control_plane_uid: Annotated[str | None, Field(alias="controlPlaneUID", max_length=64)] = None
    """The uid of the control plane from which the data originate."""
    kubernetes_version: Annotated[str, StringConstraints(max_length=63)] | None = None
    """The version of the API server that wrote the data last."""
    begins_at: Annotated[int, Field(ge=1)] | None = None
    """The minimum revision of the etcd, which exceeds every revision of the former control plane; absent for a clone.
    """


class ControlPlaneStatus(ApiModel):
    """Observed state of the control plane.

    Published values stay through transient errors, which are reported in the conditions.
    """

    phase: ControlPlanePhase | None = None
    """Pending and Provisioning come before the first publication. Ready means that the control plane serves requests,
    or that its sleep begins. Unavailable means that it does not serve requests, and the operator retries. Failed means
    that a person has to act. Migrating means that its data move. Hibernated means that it sleeps, and Waking that its
    API server starts after a sleep. Terminating means that it is being deleted.
    """
    endpoint: Annotated[str, StringConstraints(max_length=2048)] | None = None
    """The URL of the API server for clients in the management cluster."""
    endpoints: Annotated[list[EndpointAddress], Field(max_length=8), list_map("type")] = Field(default_factory=list)
    """All addresses of the API server."""
    kubeconfig_secret_ref: SecretReference | None = None
    """The Secret with the administrator's kubeconfig. Key `kubeconfig` is for the internal endpoint, key
    `kubeconfig-external` for the external endpoint, and key `ca.crt` has the CA.
    """
    controllers_secret_ref: SecretReference | None = None
    """The Secret with the credentials and keys of the control plane's controllers."""
    cluster_path: Annotated[str, StringConstraints(max_length=63)] | None = None
    """The path below which the control plane's data are stored in a shared etcd."""
    claimed_address: Annotated[str, StringConstraints(max_length=4096)] | None = None
    """The address that the control plane reserves at an API server that kplane does not run. It is recorded before the
    operator creates any object there. Other control planes cannot use an address that is here or in `endpoint`.
    """
    cluster_uid: Annotated[str | None, Field(alias="clusterUID", max_length=64)] = None
    """The uid of namespace `kube-system` in the control plane. It identifies the cluster independently of its address.
    The operator writes no object into an adopted cluster before this uid is recorded, or if the cluster has another
    uid.
    """
    service_cidr: Annotated[str | None, Field(alias="serviceCIDR", max_length=43)] = None
    """The network from which Services get their addresses, if kplane runs the API server. It is set when the control
    plane is created, and does not change.
    """
    namespace_uid: Annotated[str | None, Field(alias="namespaceUID", max_length=64)] = None
    """The uid of the control plane's namespace. The operator does not use another namespace of the same name."""
    deletion_policy: DeletionPolicy | None = None
    """The deletion policy in force. It is recorded so that a deletion follows it after the class is deleted."""
    remembered_class: RememberedClass | None = None
    """Copy of the class. It stays in force after the deletion of the class, until the spec names another class."""
    credentials_expire_at: AwareDatetime | None = None
    """The time at which the credentials in the published kubeconfig expire. The operator renews them earlier, after a
    third of their lifetime.
    """
    version: Annotated[str, StringConstraints(max_length=63)] | None = None
    """The version that the API server reports."""
    home: Home | None = None
    """The home with the data; absent if kplane does not run the API server."""
    data_identity: Annotated[str, StringConstraints(max_length=64)] | None = None
    """A random id of the data in etcd. No API server starts on data without this id: see reason DataLost."""
    served_revision: Annotated[int, Field(ge=0)] | None = None
    """The highest revision of etcd that the operator saw while the API server ran, in steps of 10,000. If the etcd is
    lost, a restore begins above it.
    """
    migration: MigrationStatus | None = None
    """The latest migration of the data to another home; absent if there was none."""
    storage: StorageStatus | None = None
    """Data of the control plane in the shared etcd; only for control planes of mode Virtual that kplane runs. The
    operator measures every ten minutes. It updates the field after a change by a tenth, or if the usage passes 80 % or
    100 % of the quota.
    """
    hibernation: HibernationStatus | None = None
    """Start and reason of the sleep; absent while the control plane is awake. The field is set before the API server
    stops, and removed when an API server responds again.
    """
    restore: RestoreStatus | None = None
    """The snapshot or control plane with the initial data; absent without spec.source."""
    rotation: RotationStatus | None = None
    """The latest rotation of the CAs and the ServiceAccount key. Each new value of annotation
    `controlplane.kplane.dev/rotate` starts a rotation.
    """
    key_fingerprints: Annotated[dict[str, Annotated[str, StringConstraints(max_length=64)]], Field(max_length=16)] = (
        Field(default_factory=dict)
    )
    """The SHA-256 of each public key, and of `encryption.key`, by entry of Secret `control-plane-authorities`. Keys
    cannot be derived from it. The operator uses no keys with other fingerprints: see reason KeysChanged.
    """
    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """The metadata.generation that the operator observed last."""
    conditions: Conditions = Field(default_factory=list)
    """The detailed state; Ready summarizes it."""


class ControlPlane(ResourceModel):
    """A Kubernetes control plane of a tenant: an API server with separate data, users and resource types."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                rule=(
                    # Updates that keep the spec are accepted: finalizers must go even if path and status differ.
                    # A control plane of mode Dedicated cannot set a path, and keeps the path from mode Virtual.
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
            # A rule without oldSelf applies to creations too, and must accept older objects with such a name. Edits of
            # the spec need a separate rule. The models accept these names, because the operator reads such objects.
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
    """Desired state of the control plane."""
    status: ControlPlaneStatus = Field(default_factory=ControlPlaneStatus)
    """Observed state of the control plane; written by the operator."""

    @property
    def cluster_path(self) -> str:
        """The path in force: `spec.virtual.clusterPath`, or else the object's name, which may be an invalid path.

        A control plane that was of mode Virtual keeps its path in mode Dedicated.
        """
        path = self.spec.virtual.cluster_path if self.spec.virtual is not None else None
        if path is None and self.spec.mode is ControlPlaneMode.DEDICATED:
            path = self.status.cluster_path
        return path if path is not None else self.metadata.name

    @property
    def data_loss_acceptance(self) -> str:
        """Value of annotation `accept-data-loss` that accepts the loss of the current data, but no later loss."""
        return self.status.data_identity or self.metadata.uid or ""

    @property
    def is_data_loss_accepted(self) -> bool:
        """Whether a user accepted the loss of the data whose id is in the status."""
        return self.metadata.annotations.get(ACCEPT_DATA_LOSS_ANNOTATION) == self.data_loss_acceptance

    @property
    def home(self) -> Home:
        """The current home of the data; the spec may request another mode."""
        return self.status.home or self.home_asked_for()

    def home_asked_for(self, *, by_class: DataStoreReference | None = None) -> Home:
        """Return the home that the spec requests. `by_class` is the data store if the spec names none."""
        if self.spec.mode is ControlPlaneMode.DEDICATED:
            volume = self.spec.dedicated.volume if self.spec.dedicated is not None else None
            return Home(mode=self.spec.mode, volume=volume)
        reference = (self.spec.virtual.data_store_ref if self.spec.virtual is not None else None) or by_class
        name = reference.name if reference is not None else DEFAULT_DATA_STORE
        return Home(mode=self.spec.mode, data_store=name if name != DEFAULT_DATA_STORE else None)

    def at(self, home: Home) -> ControlPlane:
        """Return a copy of the control plane that has this home, for operations on the other home of a migration."""
        return self.model_copy(update={"status": self.status.model_copy(update={"home": home})})
