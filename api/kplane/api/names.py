"""Names that several components agree on: labels, finalizers, namespaces, Secrets and their keys."""

from __future__ import annotations

import hashlib
import re
from typing import Final

__all__ = [
    "ACCEPT_DATA_LOSS_ANNOTATION",
    "ADDON_LABEL",
    "ADOPTION_TOKEN_ANNOTATION",
    "ADOPT_ANNOTATION",
    "ALLOW_ENDPOINT_LABEL",
    "ALLOW_REGISTRATION_LABEL",
    "API_VERSION",
    "BUNDLE_LABEL",
    "CA_KEY",
    "CLAIMED_ADDRESS_ANNOTATION",
    "CLUSTER_PATH_ANNOTATION",
    "CONTROLLERS_SECRET_KEYS",
    "CONTROL_PLANE_LABEL",
    "CONTROL_PLANE_UID_LABEL",
    "DATA_IDENTITY_ANNOTATION",
    "DATA_MARK_ANNOTATION",
    "DELETE_ADMISSION_ANNOTATION",
    "DESTROY_DATA_ANNOTATION",
    "FAKE_NODES_ANNOTATION",
    "FAKE_NODES_CONFIG_MAP",
    "FAKE_NODE_LABEL",
    "FINALIZER",
    "FINISH_ROTATION_ANNOTATION",
    "FORMER_SETTINGS_ANNOTATION",
    "GATEWAY_ACCOUNTS_KEY",
    "GATEWAY_AUTHENTICATION_KEY",
    "GATEWAY_BOOTSTRAP_TOKENS_KEY",
    "GATEWAY_HOST_KEY",
    "GATEWAY_LEASE_LABEL",
    "GATEWAY_LIMITS_KEY",
    "GATEWAY_NAMESPACE",
    "GATEWAY_SECRET_KEYS",
    "GROUP",
    "HOLDS_ANNOTATION",
    "HOME_DATA_STORE_ANNOTATION",
    "HOME_SLOT_ANNOTATION",
    "HOME_VOLUME_ANNOTATION",
    "IMPORTED_FROM_ANNOTATION",
    "IN_FLIGHT_ANNOTATION",
    "KEY_FINGERPRINTS_ANNOTATION",
    "KUBECONFIG_EXTERNAL_KEY",
    "KUBECONFIG_KEY",
    "LAST_USED_ANNOTATION",
    "MODE_ANNOTATION",
    "NAMESPACE_TOKEN_ANNOTATION",
    "OPERATOR_LEASE",
    "OPERATOR_LEASE_NAMESPACE",
    "PAUSED_ANNOTATION",
    "PROTECTION_FINALIZER",
    "REGISTRATION_LABEL",
    "RETAINED_LABEL",
    "RETAINED_UID_ANNOTATION",
    "ROTATE_ANNOTATION",
    "SCHEDULED_AT_ANNOTATION",
    "SCHEDULED_FOR_ANNOTATION",
    "SERVED_ANNOTATION",
    "SERVICE_CIDR_ANNOTATION",
    "SLEEP_REQUESTED_ANNOTATION",
    "SNAPSHOT_BYTES_ANNOTATION",
    "SNAPSHOT_FILE_ANNOTATION",
    "SNAPSHOT_FILE_LABEL",
    "UID_ANNOTATION",
    "VERSION",
    "WAKE_REQUESTED_ANNOTATION",
    "WRITES_HELD_UNTIL_ANNOTATION",
    "controllers_secret_name",
    "gateway_secret_name",
    "kubeconfig_secret_name",
    "label_value",
    "management_namespace",
    "saved_keys_name",
    "snapshot_name",
]

GROUP: Final = "controlplane.kplane.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

FINALIZER: Final = f"{GROUP}/finalizer"
"""On objects that the operator reconciles. The API server deletes the object after the operator has cleaned up."""

PROTECTION_FINALIZER: Final = f"{GROUP}/protected"
"""On the keys and the data volume of a control plane. The operator removes it when it deletes the control plane."""

DATA_MARK_ANNOTATION: Final = f"{GROUP}/data"
"""On the PersistentVolumeClaim of an etcd member: the state of its data, as recorded by the operator. Data without this
annotation count as lost, and a stopped member without it gets new data from its peers.
"""

CONTROL_PLANE_LABEL: Final = f"{GROUP}/name"
"""On every object in the management cluster that belongs to a control plane; its value is `label_value(name)`."""

CONTROL_PLANE_UID_LABEL: Final = f"{GROUP}/control-plane-uid"
"""On the ServiceAccounts and bindings that kplane creates inside a control plane: the uid of that control plane. The
deletion of another control plane does not delete them.
"""

REGISTRATION_LABEL: Final = f"{GROUP}/registration"
"""On every object in the management cluster that belongs to a registration; its value is `label_value(name)`."""

ALLOW_REGISTRATION_LABEL: Final = f"{GROUP}/allow-registration"
"""`"true"` on a Secret allows registrations to use it. A registration of a control plane needs no label on the Secrets
that kplane publishes for that control plane.
"""

ALLOW_ENDPOINT_LABEL: Final = f"{GROUP}/allow-endpoint"
"""`"true"` on a Secret allows ControlPlaneEndpoints to use it as their credentials."""

UID_ANNOTATION: Final = f"{GROUP}/uid"
"""On a management namespace and the authorities in it: the uid of their control plane."""

MODE_ANNOTATION: Final = f"{GROUP}/mode"
"""On a management namespace with keys: the mode of the home of the control plane."""

HOME_DATA_STORE_ANNOTATION: Final = f"{GROUP}/home-data-store"
"""On a management namespace with keys: the data store of the home; absent for the operator's first data store."""

HOME_SLOT_ANNOTATION: Final = f"{GROUP}/home-slot"
"""On a management namespace with keys: the slot of the home, as in `status.home.slot`; absent for slot 0."""

HOME_VOLUME_ANNOTATION: Final = f"{GROUP}/home-volume"
"""On a management namespace with keys: the volumes of the home, as JSON; absent for the operator's settings."""

CLUSTER_PATH_ANNOTATION: Final = f"{GROUP}/cluster-path"
"""On a management namespace with keys: the clusterPath below which the control plane's data are stored."""

CLAIMED_ADDRESS_ANNOTATION: Final = f"{GROUP}/claimed-address"
"""On the management namespace of an adopted control plane: the address that was first granted to the control plane."""

SERVICE_CIDR_ANNOTATION: Final = f"{GROUP}/service-cidr"
"""On a management namespace with keys: the Service network of the data."""

DATA_IDENTITY_ANNOTATION: Final = f"{GROUP}/data-identity"
"""On a management namespace whose control plane was deleted: the id of its data in etcd."""

KEY_FINGERPRINTS_ANNOTATION: Final = f"{GROUP}/key-fingerprints"
"""On a management namespace with keys, JSON: the SHA-256 of each key, by entry of Secret `control-plane-authorities`.
The operator does not use keys that are missing here. Remove the annotation to accept the current keys.
"""

RETAINED_LABEL: Final = f"{GROUP}/retained"
"""`"true"` on a management namespace whose control plane was deleted with policy Retain."""

RETAINED_UID_ANNOTATION: Final = f"{GROUP}/retained-uid"
"""On a management namespace with retained data, instead of `UID_ANNOTATION`: the uid of the deleted control plane."""

ADOPTION_TOKEN_ANNOTATION: Final = f"{GROUP}/adoption-token"
"""On a management namespace with retained data: the secret that a control plane must have in its annotation
`ADOPT_ANNOTATION` to adopt the keys and data.
"""

ADOPT_ANNOTATION: Final = f"{GROUP}/adopt"
"""On a control plane: the `ADOPTION_TOKEN_ANNOTATION` of the namespace whose keys and data the control plane adopts."""

NAMESPACE_TOKEN_ANNOTATION: Final = f"{GROUP}/namespace-token"
"""On a management namespace that the operator recreated: a secret by which the operator recognizes the namespace."""

DESTROY_DATA_ANNOTATION: Final = f"{GROUP}/destroy-data"
"""On a control plane: the data of another owner in a shared etcd that the deletion of the control plane destroys."""

ACCEPT_DATA_LOSS_ANNOTATION: Final = f"{GROUP}/accept-data-loss"
"""On a control plane whose data are lost: the value in the message of condition Ready. The control plane then continues
with the remaining data.
"""

DELETE_ADMISSION_ANNOTATION: Final = f"{GROUP}/delete-admission"
"""On a control plane: `KIND/NAME` of a webhook configuration or an admission policy inside. The operator deletes that
object and then removes the annotation. KIND is ValidatingWebhookConfiguration, MutatingWebhookConfiguration,
ValidatingAdmissionPolicy or MutatingAdmissionPolicy.
"""

SCHEDULED_FOR_ANNOTATION: Final = f"{GROUP}/scheduled-for"
"""On a ControlPlaneSnapshot that the operator created by the schedule of a class: the uid of its control plane."""

SCHEDULED_AT_ANNOTATION: Final = f"{GROUP}/scheduled-at"
"""On a ControlPlaneSnapshot that the operator created by the schedule of a class: the scheduled time."""

IMPORTED_FROM_ANNOTATION: Final = f"{GROUP}/imported-from"
"""On a ControlPlaneSnapshot that the operator recreated from the storage: the location of its file."""

SNAPSHOT_FILE_LABEL: Final = f"{GROUP}/snapshot-file"
"""On a Secret in the operator's namespace with a part of a snapshot's file: a digest of the file's name."""

SNAPSHOT_FILE_ANNOTATION: Final = f"{GROUP}/snapshot-file"
"""On a Secret in the operator's namespace with a part of a snapshot's file: the name of the file."""

SNAPSHOT_BYTES_ANNOTATION: Final = f"{GROUP}/snapshot-bytes"
"""On a Secret in the operator's namespace with a part of a snapshot's file: the size of the part in bytes."""

BUNDLE_LABEL: Final = f"{GROUP}/addon"
"""`"true"` on a ConfigMap in the operator's namespace makes the ConfigMap an add-on for classes."""

ADDON_LABEL: Final = f"{GROUP}/installed-by"
"""In a control plane, on every object that an add-on installed; its value is `label_value(addon)`."""

ROTATE_ANNOTATION: Final = f"{GROUP}/rotate"
"""On a control plane: a new value starts a rotation of the CAs and the ServiceAccount key."""

FINISH_ROTATION_ANNOTATION: Final = f"{GROUP}/finish-rotation"
"""On a control plane: the value of `ROTATE_ANNOTATION` of the rotation whose overlap ends at once."""

PAUSED_ANNOTATION: Final = f"{GROUP}/paused"
"""`"true"` on a control plane or a registration pauses its reconciliation and its deletion."""

WAKE_REQUESTED_ANNOTATION: Final = f"{GROUP}/wake-requested"
"""On a control plane: the last time that a client needed its API server. A time after `status.hibernation.since` wakes
the control plane.
"""

SLEEP_REQUESTED_ANNOTATION: Final = f"{GROUP}/sleep-requested"
"""On a control plane that starts on demand: the last time that a user requested its sleep."""

LAST_USED_ANNOTATION: Final = f"{GROUP}/last-used"
"""On a control plane: the time of its last use. The gateway writes the annotation, at most once a minute. If the
control plane has a host name, the operator writes it.
"""

FORMER_SETTINGS_ANNOTATION: Final = f"{GROUP}/former-settings"
"""On a control plane, JSON: by mode, the `spec.virtual` or `spec.dedicated` that a move to the other mode removed."""

FAKE_NODES_ANNOTATION: Final = f"{GROUP}/fake-nodes"
"""On a control plane: the number of nodes that kwok simulates, if `kplane up --fake-nodes` started the management
cluster.
"""

FAKE_NODE_LABEL: Final = f"{GROUP}/fake-node"
"""In a control plane, `"true"` on each node that was created because of `FAKE_NODES_ANNOTATION`."""

FAKE_NODES_CONFIG_MAP: Final = "kplane-fake-nodes"
"""Name of a ConfigMap in namespace `kube-public`. It exists if control planes of an embedded cluster can have fake
nodes.
"""

KUBECONFIG_KEY: Final = "kubeconfig"
KUBECONFIG_EXTERNAL_KEY: Final = "kubeconfig-external"
CA_KEY: Final = "ca.crt"

CONTROLLERS_SECRET_KEYS: Final = {
    "kubeconfig": "kubeconfig of the controllers' identity, credentials inline",
    "ca.crt": "root CA that goes into every namespace's kube-root-ca.crt",
    "sa.key": "key that signs ServiceAccount tokens (absent where the API server is not run by kplane)",
    "signing-ca.crt": "certificate of the CA that signs CSRs (absent likewise)",
    "signing-ca.key": "its key (absent likewise)",
}
"""Keys of the Secret `controllers_secret_name(...)`, which has the credentials of kube-controller-manager instances."""

GATEWAY_NAMESPACE: Final = "kplane-gateway"
"""Namespace with a Secret for each control plane that the gateway serves. The gateway may read all of the namespace."""

GATEWAY_SECRET_KEYS: Final = {
    "server": "URL of the API server, without a path",
    "ca.crt": "CAs of its serving certificate",
    "client-ca.crt": "CAs of the client certificates of its users",
    "sa.pub": "public keys of its ServiceAccount tokens",
    "tls.crt": "certificate by which the API server takes X-Remote-User from the gateway",
    "tls.key": "its key",
}
"""Keys of the Secret `gateway_secret_name(...)`, whose annotation `UID_ANNOTATION` is the uid of the control plane."""

WRITES_HELD_UNTIL_ANNOTATION: Final = f"{GROUP}/writes-held-until"
"""On the Secret `gateway_secret_name(...)`: the time until which the gateway holds requests that write. The operator
removes the annotation when every replica of the gateway routes to the address at which the requests continue.
"""

OPERATOR_LEASE: Final = "kplane-operator"
"""Name of the Lease of the active operator of a management cluster."""

OPERATOR_LEASE_NAMESPACE: Final = "kube-system"
"""Namespace of the operator's Lease. It exists in every cluster, so all operators of a cluster compete for the same
Lease.
"""

GATEWAY_LEASE_LABEL: Final = f"{GROUP}/gateway"
"""On the Lease of each replica of the gateway, in `GATEWAY_NAMESPACE`."""

HOLDS_ANNOTATION: Final = f"{GROUP}/holds"
"""On the Lease of a gateway replica, JSON: by uid of a control plane, the `WRITES_HELD_UNTIL_ANNOTATION` that is in
force in the replica. No request that writes is in flight then.
"""

IN_FLIGHT_ANNOTATION: Final = f"{GROUP}/in-flight"
"""On the Lease of a gateway replica, JSON: by uid of a control plane, the `count` of writes in flight for which a hold
waits. The `oldest` writes have `method`, `path`, `client` and `began`. The tenant controls these texts.
"""

SERVED_ANNOTATION: Final = f"{GROUP}/served"
"""On the Lease of a gateway replica, JSON: `controlplanes` and `secrets`. They are the resourceVersions up to which the
replica serves control planes and the Secrets in `GATEWAY_NAMESPACE`. A replica that starts has none.
"""

GATEWAY_LIMITS_KEY: Final = "limits.json"
"""Key of the Secret `gateway_secret_name(...)`: the limits of the control plane's class. It has the name of the class
as `class`, and the fields of `spec.limits`. The key is absent if there is no class.
"""

GATEWAY_AUTHENTICATION_KEY: Final = "authentication.json"
"""Key of the Secret `gateway_secret_name(...)`: the tokens that the API server accepts. It has `audiences` of
ServiceAccount tokens, and OIDC `issuers`. Each issuer has `issuerURL`, `audiences`, `certificateAuthority` and
`requiredClaims`. `clusterInfo` is true if anonymous users may read ConfigMap `kube-public/cluster-info`. The key is
absent if the class sets none of these.
"""

GATEWAY_BOOTSTRAP_TOKENS_KEY: Final = "bootstrap-tokens.json"
"""Key of the Secret `gateway_secret_name(...)` while the control plane sleeps: the bootstrap tokens that wake the
control plane. It has `salt`, in hexadecimal digits, and `tokens`. Each token has `hmac`, the HMAC-SHA256 of the whole
token with the salt, and `expiration`, absent if the token never expires. Tokens cannot be derived from it: 16 random
characters of a token are secret.
"""

GATEWAY_ACCOUNTS_KEY: Final = "accounts.json"
"""Key of the Secret `gateway_secret_name(...)` while the control plane sleeps: its ServiceAccounts. It has `salt`, in
hexadecimal digits, and `accounts`: of each, the first 16 bytes of the HMAC-SHA256 of `namespace/name/uid` with the
salt. The key is absent if the control plane has more than 1,000 ServiceAccounts.
"""

GATEWAY_HOST_KEY: Final = "host"
"""Key of the Secret `gateway_secret_name(...)` of a control plane with a host name: the host name. The Secret has key
`server` besides, and no other key.
"""

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_MAX_LABEL = 63
_STEM = 30
_MAX_SNAPSHOT_STEM = 230


def management_namespace(name: str) -> str:
    """Return the name of the namespace of a control plane in the management cluster."""
    return _label("kplane-cp-{}", "kplane-cpx-{}", name=name)


def kubeconfig_secret_name(name: str) -> str:
    """Return the name of the Secret with the published kubeconfigs of a control plane."""
    return _label("controlplane-{}-kubeconfig", "cp-{}-kubeconfig", name=name)


def controllers_secret_name(name: str) -> str:
    """Return the name of the Secret with the credentials and keys of a control plane's controllers."""
    return _label("controlplane-{}-controllers", "cp-{}-controllers", name=name)


def gateway_secret_name(name: str) -> str:
    """Return the name of the Secret in `GATEWAY_NAMESPACE` with the gateway's data about a control plane."""
    return _label("controlplane-{}", "cp-{}", name=name)


def saved_keys_name(uid: str) -> str:
    """Return the name of the operator's Secret with the keys of a control plane whose namespace was deleted."""
    return f"kplane-saved-keys-{uid}"


def snapshot_secret_name(file: str, *, number: int) -> str:
    """Return the name of the operator's Secret with a part of a snapshot's file; `number` counts from 0."""
    return f"kplane-snapshot-{snapshot_file_label(file)}-{number}"


def snapshot_file_label(file: str) -> str:
    """Return the value of `SNAPSHOT_FILE_LABEL` for the file of a snapshot."""
    return _digest(file)


def snapshot_name(name: str, *, time: str) -> str:
    """Return the name of a scheduled ControlPlaneSnapshot of a control plane; `time` is the scheduled time."""
    stem = name if len(name) <= _MAX_SNAPSHOT_STEM else f"{name[:_STEM].rstrip('-.')}-{_digest(name)}"
    return f"{stem}-{time}"


def label_value(name: str) -> str:
    """Return an object's name as a label value: unchanged if it fits, else a stem and a digest."""
    # Names of objects have no underscore, so a name that fits never equals the label value of a long name.
    return name if len(name) <= _MAX_LABEL else f"{name[:_STEM].rstrip('-.')}_{_digest(name)}"


def _label(plain: str, hashed: str, *, name: str) -> str:
    """Return a DNS-1123 label for a name: unchanged if it fits, else a stem and a digest.

    The two formats begin differently. A user cannot choose a short name that gets the label of a long name.
    """
    label = plain.format(name)
    if len(label) <= _MAX_LABEL and _DNS_LABEL.fullmatch(label):
        return label
    stem = re.sub(r"[^-a-z0-9]", "-", name.lower())[:_STEM].strip("-") or "x"
    return hashed.format(f"{stem}-{_digest(name)}")


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:16]
