"""Reasons of the conditions that the operator writes, with their phases, causes, retries and remedies.

Phases follow from this list, and `docs/reference/conditions.md` is generated from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from kplane.api import ControlPlanePhase
from kplane.api.conditions import WAITS_FOR_ROOM

__all__ = ["EXPECTED", "FALLS_ASLEEP", "Cause", "Reason", "reason_tables"]

_READY: Final = "ControlPlane: `Ready`"
_UP_TO_DATE: Final = "ControlPlane: `UpToDate`"
_CLASS_FOUND: Final = "ControlPlane: `ClassFound`"
_FACTS: Final = "ControlPlane: `Managed`, `Supported`, `Paused`"
_ADDONS: Final = "ControlPlane: `AddonsReady`"
_STORAGE: Final = "ControlPlane: `StorageSufficient`"
_LEASES: Final = "ControlPlane: `LeasesUnguarded`"
_HIBERNATED: Final = "ControlPlane: `Hibernated`"
_MIGRATING: Final = "ControlPlane: `Migrating`"
_DELETING: Final = "ControlPlane: `Deleting`, in the order of the steps"
_REGISTRATION: Final = "ControlPlaneRegistration: `Ready`"
_DEDICATED: Final = "ControlPlaneRegistration: `DedicatedReady`"
_ENDPOINT: Final = "ControlPlaneEndpoint: `Ready`"
_REACHABLE: Final = "ControlPlaneEndpoint: `Reachable`"
_CONTESTED: Final = "ControlPlaneEndpoint: `Contested`"
_CLASS: Final = "ControlPlaneClass: `Ready`"
_SNAPSHOT: Final = "ControlPlaneSnapshot: `Ready`"
_ANY: Final = "Every kind: `Ready`, or `Synced` while what is published stays good"
_TABLES: Final = (
    _READY,
    _ANY,
    _UP_TO_DATE,
    _CLASS_FOUND,
    _FACTS,
    _ADDONS,
    _STORAGE,
    _LEASES,
    _HIBERNATED,
    _MIGRATING,
    _DELETING,
    _REGISTRATION,
    _DEDICATED,
    _ENDPOINT,
    _REACHABLE,
    _CONTESTED,
    _CLASS,
    _SNAPSHOT,
)


@dataclass(frozen=True, slots=True)
class _Traits:
    tables: tuple[str, ...]
    phase: ControlPlanePhase
    waits_for_event: bool
    transient: bool
    expected: bool
    by_user: bool
    at_first: str | None


def _in(
    *tables: str,
    phase: ControlPlanePhase = ControlPlanePhase.FAILED,
    waits: bool = False,
    transient: bool = False,
    expected: bool = False,
    by_user: bool = False,
    at_first: str | None = None,
) -> _Traits:
    return _Traits(
        tables,
        phase,
        waits_for_event=waits,
        transient=transient,
        expected=expected,
        by_user=by_user,
        at_first=at_first,
    )


_LASTING: Final = frozenset(
    {
        ControlPlanePhase.READY,
        ControlPlanePhase.HIBERNATED,
        ControlPlanePhase.WAKING,
        ControlPlanePhase.MIGRATING,
        ControlPlanePhase.TERMINATING,
    }
)
"""Phases that are independent of whether the control plane is published."""
_DECIDED_BY_PERSON: Final = frozenset({"DataLost", "KeysChanged", "KeysUnusable"})
"""Reasons without a mistake in the object, whose remedy a person has to choose."""
_PENDING: Final = ControlPlanePhase.PENDING
_PROVISIONING: Final = ControlPlanePhase.PROVISIONING
_TERMINATING: Final = ControlPlanePhase.TERMINATING


class Cause(StrEnum):
    """Party that has to repair the object, as a label of metrics."""

    USER = "User"
    """The author of the object: a spec, class or Secret is invalid, or a referenced object is missing."""
    SYSTEM = "System"
    """The operator, which retries, or the administrator of operator, machines and etcd."""


class Reason(StrEnum):
    """Reason of a condition, with a remedy."""

    meaning: str
    """Remedy, or next action of the operator, in a sentence."""
    waits_for_event: bool
    """Whether only a change of a watched object helps, so that the operator does not retry by time."""
    transient: bool
    """Whether the failure ends without the action of a person."""
    expected: bool
    """Whether the reason is part of normal operation: its Event is no warning, and failure metrics exclude it."""
    cause: Cause
    """Party that has to repair the object."""
    needs_person: bool
    """Whether the control plane continues only after the action of a person, such as a corrected spec."""
    traits: _Traits
    """Tables of conditions with this reason, and the phase that the reason causes."""

    def __new__(cls, word: str, meaning: str, traits: _Traits) -> Self:
        member = str.__new__(cls, word)
        member._value_ = word
        member.meaning = meaning
        member.waits_for_event = traits.waits_for_event
        member.transient = traits.transient
        member.expected = traits.expected
        member.cause = Cause.USER if traits.by_user else Cause.SYSTEM
        lasts = traits.waits_for_event or traits.phase is ControlPlanePhase.FAILED
        member.needs_person = word in _DECIDED_BY_PERSON or (traits.by_user and lasts and not traits.expected)
        member.traits = traits
        return member

    # Success
    RECONCILED = ("Reconciled", "nothing to do", _in(_READY, _ENDPOINT, phase=ControlPlanePhase.READY))
    VALID = ("Valid", "nothing to do", _in(_CLASS))
    RESOLVED = ("Resolved", "nothing to do: services can run", _in(_REGISTRATION))
    ANSWERED = ("Answered", "nothing to do: `/readyz` answered", _in(_REACHABLE))
    RUN_BY_KPLANE = ("RunByKplane", "kplane runs the API server", _in(_FACTS))
    ENDPOINT_REFERENCED = (
        "EndpointReferenced",
        "the API server at `spec.endpointRef` is adopted",
        _in(_FACTS, expected=True),
    )
    NOT_SUPPORTED = ("NotSupported", "the message names the fields that have no effect", _in(_FACTS))
    PAUSED_BY_ANNOTATION = ("PausedByAnnotation", "remove the annotation to resume", _in(_FACTS, by_user=True))

    # Failures of control planes
    INVALID_CLUSTER_PATH = (
        "InvalidClusterPath",
        "set `spec.virtual.clusterPath` to a DNS label, or back",
        _in(_READY, waits=True, by_user=True),
    )
    CLUSTER_PATH_RESERVED = (
        "ClusterPathReserved",
        "choose another `spec.virtual.clusterPath`",
        _in(_READY, waits=True, by_user=True),
    )
    CLUSTER_PATH_IN_USE = (
        "ClusterPathInUse",
        "choose another `spec.virtual.clusterPath`, or revert the endpoint's URL",
        _in(_READY, phase=_PENDING, by_user=True),
    )
    DATA_STORE_NOT_FOUND = (
        "DataStoreNotFound",
        "name a data store of the operator, or start it with that one",
        _in(_READY, phase=_PENDING, by_user=True),
    )
    ENDPOINT_IN_USE = (
        "EndpointInUse",
        "adopt each cluster once: correct the endpoint, or delete the control plane that the message names",
        _in(_READY, phase=_PENDING, by_user=True),
    )
    CLUSTER_CHANGED = (
        "ClusterChanged",
        "lead the endpoint back to the adopted cluster, or create another control plane for the other cluster",
        _in(_READY, phase=_PENDING, by_user=True),
    )
    CLASS_NOT_FOUND = (
        "ClassNotFound",
        "create the class, or name another",
        _in(_READY, _CLASS_FOUND, phase=_PENDING, waits=True, by_user=True),
    )
    CLASS_INVALID = (
        "ClassInvalid",
        "correct the class, or upgrade the operator",
        _in(_READY, _CLASS_FOUND, _CLASS, waits=True, by_user=True),
    )
    MODE_NOT_ALLOWED = (
        "ModeNotAllowed",
        "name a class that allows this mode",
        _in(_READY, _CLASS_FOUND, waits=True, by_user=True),
    )
    AUTH_MODEL_NOT_SUPPORTED = (
        "AuthModelNotSupported",
        "name a class with `auth.model: token`: x509 needs the client CA",
        _in(_READY, _CLASS_FOUND, waits=True, by_user=True),
    )
    ROLE_NOT_FOUND = (
        "RoleNotFound",
        "create the ClusterRole in the control plane, or correct `auth.defaultRole`",
        _in(_READY, by_user=True),
    )
    NO_GATEWAY = (
        "NoGateway",
        "give the operator a gateway by `--gateway-url`, or set `spec.endpointPolicy: Own`",
        _in(_READY, waits=True, by_user=True),
    )
    NO_GATEWAY_DOMAIN = (
        "NoGatewayDomain",
        "give the operator a domain by `--gateway-domain`, or set `spec.endpointStyle: Path`",
        _in(_READY, waits=True, by_user=True),
    )
    ROUTE_PENDING = (
        "RoutePending",
        "wait until each replica of the gateway serves the control plane",
        _in(_READY, phase=_PROVISIONING, transient=True, expected=True),
    )
    GATEWAY_BEHIND = (
        "GatewayBehind",
        "see the logs of the replicas that the message names; the operator retries",
        _in(_READY, phase=_PROVISIONING, transient=True),
    )
    ETCD_REFUSED = ("EtcdRefused", "upgrade the shared etcd as the message says; the operator retries", _in(_READY))
    ENDPOINT_PENDING = (
        "EndpointPending",
        "create the ControlPlaneEndpoint, or give it a URL",
        _in(_READY, _ENDPOINT, _REGISTRATION, phase=_PENDING, waits=True, expected=True, by_user=True),
    )
    ENDPOINT_INVALID = (
        "EndpointInvalid",
        "correct the ControlPlaneEndpoint",
        _in(_READY, _ENDPOINT, _REGISTRATION, by_user=True),
    )
    CREDENTIALS_MISSING = (
        "CredentialsMissing",
        "name a Secret with a working kubeconfig in `spec.credentialsSecretRef`",
        _in(_READY, _ENDPOINT, phase=_PENDING, by_user=True),
    )
    CREDENTIALS_REJECTED = (
        "CredentialsRejected",
        "do what the message says; of an adopted API server, replace the kubeconfig in the endpoint's Secret",
        _in(_READY, _ADDONS),
    )
    SECRET_NOT_ALLOWED = (
        "SecretNotAllowed",
        "label the Secret as the message says",
        _in(_READY, _ENDPOINT, _REGISTRATION, by_user=True),
    )
    SECRETS_NOT_READABLE = (
        "SecretsNotReadable",
        "make the RoleBinding that the message names",
        _in(_ANY, phase=_PENDING, by_user=True),
    )
    ENDPOINT_UNREACHABLE = (
        "EndpointUnreachable",
        "check the address; the operator retries",
        _in(_READY, _REACHABLE, _ADDONS, phase=_PROVISIONING, transient=True),
    )
    CERTIFICATE_INVALID = (
        "CertificateInvalid",
        "check the address and its certificate; the operator retries",
        # When a Service gets its first endpoint, kube-proxy removes the refusal before it adds the address. A
        # connection of that moment leaves the cluster, and another server may answer.
        _in(_READY, _REACHABLE, _ADDONS, phase=_PROVISIONING, at_first="Bootstrapping"),
    )
    ANSWER_TOO_LARGE = (
        "AnswerTooLarge",
        "the API server sends more than kplane accepts; the operator retries",
        _in(_READY, _REACHABLE, _ADDONS),
    )
    VERSION_NOT_ALLOWED = (
        "VersionNotAllowed",
        "set another `spec.version`, or another version of the class",
        _in(_READY, _UP_TO_DATE, waits=True, by_user=True),
    )
    VERSION_NOT_AVAILABLE = (
        "VersionNotAvailable",
        "set another version, or make this one available",
        _in(_READY, _UP_TO_DATE, by_user=True),
    )
    DATA_RETAINED = (
        "DataRetained",
        "[adopt the data](../how-to/retained-data.md), or choose another name or path",
        _in(_READY, phase=_PENDING, waits=True, by_user=True),
    )
    DATA_NOT_OWNED = (
        "DataNotOwned",
        "[say what becomes of the data](../troubleshoot/data-of-another-owner.md), or choose another path",
        _in(_READY, phase=_PENDING),
    )
    DATA_LOST = (
        "DataLost",
        "[restore the data, or accept the loss](../troubleshoot/lost-data.md); no API server runs meanwhile",
        _in(_READY),
    )
    KEYS_CHANGED = (
        "KeysChanged",
        "[restore the former keys, or accept the present ones](../troubleshoot/changed-keys.md)",
        _in(_READY),
    )
    KEYS_UNUSABLE = (
        "KeysUnusable",
        "[restore the entry that the message names](../troubleshoot/changed-keys.md#keysunusable)",
        _in(_READY),
    )
    NAMESPACE_CONFLICT = (
        "NamespaceConflict",
        "delete that namespace, or choose another name",
        _in(_READY, by_user=True),
    )
    NAMESPACE_DELETED = (
        "NamespaceDeleted",
        "wait; with a data volume, [secure it first](../troubleshoot/lost-namespace.md)",
        _in(_READY, phase=_PROVISIONING, transient=True),
    )
    PROVISIONING = (
        "Provisioning",
        "wait; the message says for what",
        _in(_READY, phase=_PROVISIONING, transient=True, expected=True),
    )
    ETCD_UNAVAILABLE = (
        "EtcdUnavailable",
        "look at etcd, which the message quotes: its members, disk and quota; the operator retries",
        _in(_READY, phase=_PROVISIONING, transient=True, at_first="Provisioning"),
    )
    START_FAILED = (
        "StartFailed",
        "see the last words of the program in the message, and disk and memory of its machine; the operator retries",
        _in(_READY, phase=_PROVISIONING, transient=True, at_first="Provisioning"),
    )
    API_SERVER_NOT_READY = (
        "APIServerNotReady",
        "wait; the operator starts it again, and the message says how far it is",
        _in(_READY, phase=_PROVISIONING, transient=True),
    )
    BOOTSTRAPPING = (
        "Bootstrapping",
        "wait; the operator retries what the message names",
        _in(_READY, phase=_PROVISIONING, transient=True, expected=True),
    )
    BOOTSTRAP_FAILED = (
        "BootstrapFailed",
        "see why the API server refuses the request that the message names; the operator retries",
        _in(_READY, phase=_PROVISIONING, transient=True, at_first="Bootstrapping"),
    )
    WEBHOOK_REFUSED = (
        "WebhookRefused",
        "[mend or delete the admission webhook or policy](../troubleshoot/webhooks.md) that the message names",
        _in(_READY, _ADDONS, by_user=True),
    )
    WEBHOOKS_ON_LEASES = (
        "WebhooksOnLeases",
        "[exclude namespace `kube-system`](../troubleshoot/webhooks.md) from the webhooks that the message names",
        _in(_LEASES, by_user=True),
    )
    DELETING = (
        "Deleting",
        "wait; the message says for what",
        _in(_READY, _REGISTRATION, phase=_TERMINATING, transient=True, expected=True),
    )
    FAILED = ("Failed", "the message says what is wrong", _in(_READY))

    # Sleep
    HIBERNATED = (
        "Hibernated",
        "nothing to do: [what wakes the control plane](../concepts/sleep.md#what-wakes-it) starts its API server",
        _in(
            _READY,
            _HIBERNATED,
            _REGISTRATION,
            _REACHABLE,
            phase=ControlPlanePhase.HIBERNATED,
            waits=True,
            expected=True,
        ),
    )
    WAKING = (
        "Waking",
        "wait: the API server starts",
        _in(_READY, _HIBERNATED, phase=ControlPlanePhase.WAKING, transient=True, expected=True),
    )
    WAITS_FOR_ROOM = (
        WAITS_FOR_ROOM,
        "wait, or raise `--awake-limit` or `--awake-memory`: as many control planes are awake as may be",
        _in(_READY, _HIBERNATED, phase=ControlPlanePhase.HIBERNATED, transient=True, expected=True),
    )
    FALLING_ASLEEP = (
        "FallingAsleep",
        "wait: instances end, then the API server; the message says for what",
        _in(_READY, _HIBERNATED, phase=ControlPlanePhase.READY, transient=True, expected=True),
    )
    SLEEP_FAILED = (
        "SleepFailed",
        "the message says why the API server cannot be ended; the operator retries",
        _in(_HIBERNATED, phase=ControlPlanePhase.READY, transient=True, at_first="FallingAsleep"),
    )
    AWAKE = ("Awake", "nothing to do: its API server runs", _in(_HIBERNATED, expected=True))
    KEPT_AWAKE = (
        "KeptAwake",
        "the message says what has to end before the control plane can sleep",
        _in(_HIBERNATED, transient=True, expected=True),
    )
    NAMESPACE_STUCK = (
        "NamespaceStuck",
        "mend what the message names inside the control plane, which sleeps after an hour of this deletion",
        _in(_HIBERNATED, by_user=True),
    )

    # Migrations
    MIGRATING = (
        "Migrating",
        "wait: the message says how far it is; to abort, set the spec back",
        _in(_READY, _MIGRATING, _REGISTRATION, phase=ControlPlanePhase.MIGRATING, transient=True, expected=True),
    )
    MIGRATION_PLANNED = (
        "MigrationPlanned",
        "read `status.migration.plan`; to begin, set `spec.migration.plan` to false",
        _in(_MIGRATING, expected=True),
    )
    MIGRATION_BLOCKED = (
        "MigrationBlocked",
        "the message says what stands in the way; to give it up, set the spec back",
        _in(_MIGRATING),
    )
    MIGRATION_ABORTED = (
        "MigrationAborted",
        "nothing to do: the control plane lives where it did",
        _in(_MIGRATING, expected=True),
    )
    RETAINING_FORMER_HOME = (
        "RetainingFormerHome",
        "nothing to do; to move back, set the spec back before `spec.migration.rollbackWindow` ends",
        _in(_MIGRATING, expected=True),
    )
    MIGRATED = ("Migrated", "nothing to do: of the former home nothing is left", _in(_MIGRATING, expected=True))

    # Failures of any object
    MANAGEMENT_CLUSTER_REFUSED = (
        "ManagementClusterRefused",
        "raise the quota, or correct the admission policy; the operator retries",
        _in(_ANY, _DEDICATED),
    )
    SPEC_INVALID = (
        "SpecInvalid",
        "correct the field that the message names, or upgrade the operator",
        _in(_ANY, waits=True, by_user=True),
    )
    TIMED_OUT = (
        "TimedOut",
        "check what answers slowly; the operator retries",
        _in(_ANY, phase=_PROVISIONING, transient=True),
    )
    INTERNAL_ERROR = ("InternalError", "report this fault of the operator, with its log", _in(_ANY))

    # Condition UpToDate of an API server
    ROLLING_OUT = (
        "RollingOut",
        "wait: the next API server is not ready yet",
        _in(_UP_TO_DATE, transient=True, expected=True),
    )
    CHANGE_FAILED = (
        "ChangeFailed",
        "correct the setting of class or spec that the message names: kube-apiserver ends with it, and runs as before",
        _in(_UP_TO_DATE, by_user=True),
    )
    ETCD_INCOMPLETE = (
        "EtcdIncomplete",
        "wait: a member of the dedicated etcd joins or is not ready; the message names it",
        _in(_UP_TO_DATE, transient=True, expected=True),
    )
    ETCD_MEMBERS_KEPT = (
        "EtcdMembersKept",
        "set `etcd.members` to 3 again: no member is taken away",
        _in(_UP_TO_DATE),
    )
    VERSION_DIFFERS = ("VersionDiffers", "correct the image or program: it reports another version", _in(_UP_TO_DATE))

    # Add-ons
    INSTALLED = ("Installed", "nothing to do", _in(_ADDONS))
    INSTALLING = ("Installing", "wait", _in(_ADDONS, transient=True, expected=True))
    ADDON_UNKNOWN = (
        "AddonUnknown",
        "create the ConfigMap that the message names, or remove the add-on",
        _in(_ADDONS, _CLASS, waits=True),
    )
    BUNDLE_INVALID = ("BundleInvalid", "correct the manifests that the message names", _in(_ADDONS, _CLASS, waits=True))
    ADDON_FAILED = ("AddonFailed", "correct the objects that the message names; the operator retries", _in(_ADDONS))

    # Storage
    NEAR_STORAGE_QUOTA = (
        "NearStorageQuota",
        "delete objects of the control plane, or raise `spec.virtual.storage.quota` of the class",
        _in(_STORAGE),
    )
    STORAGE_QUOTA_REACHED = (
        "StorageQuotaReached",
        "the same, before the shared etcd is full: then it refuses writes of all control planes",
        _in(_STORAGE),
    )

    # The steps of a deletion
    REGISTRATIONS_PENDING = (
        "RegistrationsPending",
        "registrations are still ready for it",
        _in(_DELETING, phase=_TERMINATING, transient=True, expected=True),
    )
    INSTANCES_ENDING = (
        "InstancesEnding",
        "instances have not confirmed their end; 30 s at most",
        _in(_DELETING, phase=_TERMINATING, transient=True, expected=True),
    )
    REVOKING_CREDENTIALS = (
        "RevokingCredentials",
        "credentials are revoked, and the API server stops",
        _in(_DELETING, phase=_TERMINATING, transient=True, expected=True),
    )
    DELETING_DATA = (
        "DeletingData",
        "policy Destroy: the keys, or the etcd with its volume, are deleted",
        _in(_DELETING, phase=_TERMINATING, transient=True, expected=True),
    )
    VERIFYING_EMPTY = (
        "VerifyingEmpty",
        "policy Destroy: the operator looks for keys once more",
        _in(_DELETING, phase=_TERMINATING, transient=True, expected=True),
    )
    RETAINING_DATA = (
        "RetainingData",
        "policy Retain: the data and a record of them stay",
        _in(_DELETING, phase=_TERMINATING, transient=True, expected=True),
    )
    REMOVING_NAMESPACE = (
        "RemovingNamespace",
        "the namespace is removed with what is in it",
        _in(_DELETING, phase=_TERMINATING, transient=True, expected=True),
    )

    DELETION_FAILED = (
        "DeletionFailed",
        "of an Event and the metric of failures: the message says what fails; the operator retries",
        _in(_DELETING, phase=_TERMINATING, transient=True, at_first="Deleting"),
    )

    # Registrations
    CONTROL_PLANE_NOT_FOUND = (
        "ControlPlaneNotFound",
        "create the control plane, or correct `spec.controlPlaneRef`",
        _in(_REGISTRATION, _SNAPSHOT, waits=True),
    )
    CONTROL_PLANE_NOT_READY = (
        "ControlPlaneNotReady",
        "wait, or see the control plane's conditions",
        _in(_REGISTRATION, _SNAPSHOT, waits=True, expected=True),
    )
    KUBECONFIG_PENDING = (
        "KubeconfigPending",
        "wait until the control plane has published its kubeconfig",
        _in(_REGISTRATION, waits=True, expected=True),
    )
    SECRET_NOT_FOUND = ("SecretNotFound", "create the Secret, or omit `spec.kubeconfigSecretRef`", _in(_REGISTRATION))
    DEDICATED_NOT_AVAILABLE = (
        "DedicatedNotAvailable",
        "[tell the operator how to run mcm](../how-to/dedicated-mcm.md#configure-it), or set mode Shared",
        _in(_REGISTRATION, waits=True),
    )
    SERVICE_TAKEN = (
        "ServiceTaken",
        "delete one of the two registrations, or remove the service from one; the next one then takes over by itself",
        _in(_REGISTRATION, waits=True),
    )
    MCM_RUNNING = ("McmRunning", "nothing to do", _in(_DEDICATED))
    MCM_STARTING = ("McmStarting", "wait", _in(_DEDICATED, transient=True, expected=True))
    MCM_ENDING = (
        "McmEnding",
        "wait; delete a pod on a lost node with `--force`",
        _in(_REGISTRATION, _DEDICATED, transient=True, expected=True),
    )
    WAITING_FOR_SHARED = (
        "WaitingForShared",
        "wait until the shared mcm confirms that its instance ended",
        _in(_DEDICATED, transient=True, expected=True),
    )
    MCM_FAILED = ("McmFailed", "see the program's last words in the message; the operator retries", _in(_DEDICATED))

    # Endpoints
    PROBING = ("Probing", "wait for the first answer", _in(_REACHABLE, transient=True, expected=True))
    OWNED_BY_ANOTHER_MANAGER = (
        "OwnedByAnotherManager",
        "nothing, if that field manager is to set the condition; otherwise end it, and remove the condition",
        _in(_CONTESTED),
    )

    # Snapshots
    SOURCE_NOT_READY = (
        "SourceNotReady",
        "wait until what `spec.source` names is there, and completed or Ready; or create another control plane",
        _in(_READY, phase=_PENDING, waits=True, by_user=True),
    )
    SOURCE_ENCRYPTED = (
        "SourceEncrypted",
        "restore a snapshot instead, or decrypt the objects; the operator tries it again",
        _in(_READY, by_user=True),
    )
    RESTORE_FAILED = (
        "RestoreFailed",
        "the message says what fails; the operator begins the restore or clone again",
        _in(_READY, phase=_PROVISIONING),
    )
    SAVED = ("Saved", "nothing to do: the file was read again", _in(_SNAPSHOT))
    IMPORTED = (
        "Imported",
        "nothing to do: the snapshot was made again from [its file in the storage](../how-to/import-snapshots.md)",
        _in(_SNAPSHOT),
    )
    FILE_NOT_IMPORTED = (
        "FileNotImported",
        "the message says what is wrong with the file; mend the storage, or delete the snapshot",
        _in(_SNAPSHOT),
    )
    SAVING = ("Saving", "wait; at most two snapshots are made at once", _in(_SNAPSHOT, transient=True, expected=True))
    SNAPSHOT_FAILED = ("SnapshotFailed", "the message says what fails; the operator retries", _in(_SNAPSHOT))
    NO_SNAPSHOT_STORAGE = (
        "NoSnapshotStorage",
        "[configure encrypted backups](../how-to/backup.md#before-the-first-one), or delete the snapshot",
        _in(_SNAPSHOT, waits=True),
    )
    NOT_RUN_BY_KPLANE = (
        "NotRunByKplane",
        "save the API server of `spec.endpointRef` by its own means, and delete the snapshot",
        _in(_SNAPSHOT, waits=True),
    )
    SCHEDULE_INVALID = ("ScheduleInvalid", "correct `spec.snapshots.schedule` of the class", _in(_CLASS, waits=True))

    @property
    def at_first(self) -> Reason | None:
        """The reason that replaces this failure during the first tries; None if the failure is reported at once."""
        return _BY_WORD[self.traits.at_first] if self.traits.at_first is not None else None

    @classmethod
    def of(cls, word: str) -> Reason | None:
        """Return the reason of a condition; None for a reason of another writer or of a later version."""
        return _BY_WORD.get(word)

    def phase(self, *, published: bool) -> ControlPlanePhase:
        """Return the phase of a control plane whose condition Ready has this reason.

        A published control plane is never Pending or Provisioning. It is Unavailable while the reason is transient, and
        Failed while a person has to act.
        """
        phase = self.traits.phase
        if not published or phase in _LASTING:
            return phase
        return ControlPlanePhase.UNAVAILABLE if self.transient else ControlPlanePhase.FAILED

    def is_in(self, table: str) -> bool:
        """Return whether conditions of this table can have the reason."""
        return table in self.traits.tables


EXPECTED: Final = frozenset(reason for reason in Reason if reason.expected)
"""Reasons that are part of normal operation."""
FALLS_ASLEEP: Final = frozenset({Reason.FALLING_ASLEEP, Reason.SLEEP_FAILED})
"""Reasons of Hibernated while an API server is being stopped."""
_BY_WORD: Final = {str(reason): reason for reason in Reason}


def reason_tables() -> Iterator[str]:
    """Yield the lines of Markdown tables of the reasons."""
    for table in _TABLES:
        yield from (f"## {table}", "", *_rows(table), "")


def _rows(table: str) -> Iterator[str]:
    with_phase = table in {_READY, _ANY}
    yield (
        "| reason | retried |" + (" phase at first | once published | cause |" if with_phase else "") + " what to do |"
    )
    yield "|---|---|" + ("---|---|---|" if with_phase else "") + "---|"
    for reason in Reason:
        if not reason.is_in(table):
            continue
        retried = "on an event" if reason.waits_for_event else "by time"
        phases = f" {reason.phase(published=False)} | {reason.phase(published=True)} | {reason.cause} |"
        yield f"| `{reason}` | {retried} |{phases if with_phase else ''} {reason.meaning} |"
