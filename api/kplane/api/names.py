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
"""On objects that the operator reconciles: their deletion waits until the operator has cleaned up."""

PROTECTION_FINALIZER: Final = f"{GROUP}/protected"
"""On the keys and on the data volume of a control plane: only the operator deletes them, with the control plane."""

DATA_MARK_ANNOTATION: Final = f"{GROUP}/data"
"""On the volume claim of a member of etcd: what the operator knows of its data. Without it the data are taken for lost,
and a member that does not run gets others from its peers.
"""

CONTROL_PLANE_LABEL: Final = f"{GROUP}/name"
"""On everything in the management cluster that belongs to a control plane; its value is `label_value(name)`."""

CONTROL_PLANE_UID_LABEL: Final = f"{GROUP}/control-plane-uid"
"""On the ServiceAccounts and bindings that kplane makes inside a control plane: the uid of that control plane. The
deletion of another control plane leaves them alone.
"""

REGISTRATION_LABEL: Final = f"{GROUP}/registration"
"""On everything in the management cluster that belongs to a registration; its value is `label_value(name)`."""

ALLOW_REGISTRATION_LABEL: Final = f"{GROUP}/allow-registration"
"""`"true"` on a Secret lets registrations use it; what kplane publishes for a control plane needs none for its own."""

ALLOW_ENDPOINT_LABEL: Final = f"{GROUP}/allow-endpoint"
"""`"true"` on a Secret lets ControlPlaneEndpoints name it as their credentials."""

UID_ANNOTATION: Final = f"{GROUP}/uid"
"""On a management namespace and the authorities in it: the uid of the control plane that they belong to."""

MODE_ANNOTATION: Final = f"{GROUP}/mode"
"""On a management namespace with keys in it: the mode of the home of their control plane."""

HOME_DATA_STORE_ANNOTATION: Final = f"{GROUP}/home-data-store"
"""On a management namespace with keys in it: the data store of that home; absent for the first one."""

HOME_SLOT_ANNOTATION: Final = f"{GROUP}/home-slot"
"""On a management namespace with keys in it: which of two sets of names that home has; absent for the first one."""

HOME_VOLUME_ANNOTATION: Final = f"{GROUP}/home-volume"
"""On a management namespace with keys in it: the volumes of that home, as JSON; absent for those of the operator."""

CLUSTER_PATH_ANNOTATION: Final = f"{GROUP}/cluster-path"
"""On a management namespace with keys in it: the clusterPath that the control plane's data lie under."""

CLAIMED_ADDRESS_ANNOTATION: Final = f"{GROUP}/claimed-address"
"""On the management namespace of an adopted control plane: the address that it was granted first."""

SERVICE_CIDR_ANNOTATION: Final = f"{GROUP}/service-cidr"
"""On a management namespace with keys in it: the network of Services, which the data are of."""

DATA_IDENTITY_ANNOTATION: Final = f"{GROUP}/data-identity"
"""On a management namespace whose control plane was deleted: the identity that its data have in etcd."""

KEY_FINGERPRINTS_ANNOTATION: Final = f"{GROUP}/key-fingerprints"
"""On a management namespace with keys in it, JSON: the SHA-256 of each key, by entry of Secret
`control-plane-authorities`. Keys that it does not name are not used. Remove it to accept the present keys.
"""

RETAINED_LABEL: Final = f"{GROUP}/retained"
"""`"true"` on a management namespace whose control plane was deleted and whose data were kept."""

RETAINED_UID_ANNOTATION: Final = f"{GROUP}/retained-uid"
"""On such a namespace, instead of `UID_ANNOTATION`: the uid of the deleted control plane."""

ADOPTION_TOKEN_ANNOTATION: Final = f"{GROUP}/adoption-token"
"""On such a namespace: the secret that a control plane must name to take its keys and data over."""

ADOPT_ANNOTATION: Final = f"{GROUP}/adopt"
"""On a control plane: the `ADOPTION_TOKEN_ANNOTATION` of the namespace whose keys and data it is to take over."""

NAMESPACE_TOKEN_ANNOTATION: Final = f"{GROUP}/namespace-token"
"""On a management namespace that the operator made anew: the secret by which the operator knows it again."""

DESTROY_DATA_ANNOTATION: Final = f"{GROUP}/destroy-data"
"""On a control plane: names data in a shared etcd that are not its own, and that its deletion is to destroy."""

ACCEPT_DATA_LOSS_ANNOTATION: Final = f"{GROUP}/accept-data-loss"
"""On a control plane whose data are lost: the value that condition Ready names. It continues with what is there."""

DELETE_ADMISSION_ANNOTATION: Final = f"{GROUP}/delete-admission"
"""On a control plane: `KIND/NAME` of a webhook configuration or an admission policy inside. The operator deletes it and
then removes the annotation. KIND is ValidatingWebhookConfiguration, MutatingWebhookConfiguration,
ValidatingAdmissionPolicy or MutatingAdmissionPolicy.
"""

SCHEDULED_FOR_ANNOTATION: Final = f"{GROUP}/scheduled-for"
"""On a ControlPlaneSnapshot that the operator made by the schedule of a class: the uid of its control plane."""

SCHEDULED_AT_ANNOTATION: Final = f"{GROUP}/scheduled-at"
"""On such a ControlPlaneSnapshot: the time of the schedule that it was made for."""

IMPORTED_FROM_ANNOTATION: Final = f"{GROUP}/imported-from"
"""On a ControlPlaneSnapshot that was made again from the storage: the location of its file."""

SNAPSHOT_FILE_LABEL: Final = f"{GROUP}/snapshot-file"
"""On a Secret in the operator's namespace: a digest of the name of the snapshot's file that it is a part of."""

SNAPSHOT_FILE_ANNOTATION: Final = f"{GROUP}/snapshot-file"
"""On such a Secret: the name of the file."""

SNAPSHOT_BYTES_ANNOTATION: Final = f"{GROUP}/snapshot-bytes"
"""On such a Secret: how many bytes of the file it has."""

BUNDLE_LABEL: Final = f"{GROUP}/addon"
"""`"true"` on a ConfigMap in the operator's namespace makes it an add-on that classes can name."""

ADDON_LABEL: Final = f"{GROUP}/installed-by"
"""In a control plane, on everything that an add-on installed; its value is `label_value(addon)`."""

ROTATE_ANNOTATION: Final = f"{GROUP}/rotate"
"""On a control plane: a value that was not there before has its CAs and its ServiceAccount key exchanged."""

FINISH_ROTATION_ANNOTATION: Final = f"{GROUP}/finish-rotation"
"""On a control plane: the value of `ROTATE_ANNOTATION` whose overlap is to end at once."""

PAUSED_ANNOTATION: Final = f"{GROUP}/paused"
"""`"true"` on a control plane or a registration: the operator leaves it as it is, its deletion included."""

WAKE_REQUESTED_ANNOTATION: Final = f"{GROUP}/wake-requested"
"""On a control plane: when a client last needed its API server. A time after `status.hibernation.since` wakes it."""

SLEEP_REQUESTED_ANNOTATION: Final = f"{GROUP}/sleep-requested"
"""On a control plane that starts on demand: when a user last asked that its API server ends."""

LAST_USED_ANNOTATION: Final = f"{GROUP}/last-used"
"""On a control plane: when it was last used. The gateway writes this, once a minute at most; the operator writes it if
the control plane has a host name."""

FORMER_SETTINGS_ANNOTATION: Final = f"{GROUP}/former-settings"
"""On a control plane: `spec.virtual` or `spec.dedicated` as JSON by mode, which a move to the other mode set aside."""

FAKE_NODES_ANNOTATION: Final = f"{GROUP}/fake-nodes"
"""On a control plane: how many nodes kwok plays there, if `kplane up --fake-nodes` started the management cluster."""

FAKE_NODE_LABEL: Final = f"{GROUP}/fake-node"
"""In a control plane, `"true"` on each node that is there because of `FAKE_NODES_ANNOTATION`."""

FAKE_NODES_CONFIG_MAP: Final = "kplane-fake-nodes"
"""Name of a ConfigMap in namespace `kube-public` of an embedded cluster whose control planes can have fake nodes."""

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
"""Keys of the Secret `controllers_secret_name(...)`: what an instance of kube-controller-manager needs."""

GATEWAY_NAMESPACE: Final = "kplane-gateway"
"""Holds one Secret for each control plane that the gateway serves, and nothing else: the gateway may read all of it."""

GATEWAY_SECRET_KEYS: Final = {
    "server": "URL of the API server, without a path",
    "ca.crt": "CAs of its serving certificate",
    "client-ca.crt": "CAs of the client certificates of its users",
    "sa.pub": "public keys of its ServiceAccount tokens",
    "tls.crt": "certificate by which the API server takes X-Remote-User from the gateway",
    "tls.key": "its key",
}
"""Keys of the Secret `gateway_secret_name(...)`; `UID_ANNOTATION` on it names the control plane that they are of."""

WRITES_HELD_UNTIL_ANNOTATION: Final = f"{GROUP}/writes-held-until"
"""On the Secret `gateway_secret_name(...)`, a time: until then the gateway has requests wait that change something. The
operator removes it when every replica of the gateway leads to the address where they continue."""

OPERATOR_LEASE: Final = "kplane-operator"
"""Lease of the operator that works on a management cluster."""

OPERATOR_LEASE_NAMESPACE: Final = "kube-system"
"""Namespace of that Lease. Every cluster has it, so operators of all namespaces and machines meet there."""

GATEWAY_LEASE_LABEL: Final = f"{GROUP}/gateway"
"""On the Lease that each replica of the gateway keeps in `GATEWAY_NAMESPACE`."""

HOLDS_ANNOTATION: Final = f"{GROUP}/holds"
"""On these Leases, JSON: by uid of a control plane, the `WRITES_HELD_UNTIL_ANNOTATION` that the replica has in force.
Then no request is in flight that changes something."""

IN_FLIGHT_ANNOTATION: Final = f"{GROUP}/in-flight"
"""On these Leases, JSON: by uid of a control plane, the `count` of changes in flight that a hold waits for. The
`oldest` of them have `method`, `path`, `client` and `began`, as a tenant chose them."""

SERVED_ANNOTATION: Final = f"{GROUP}/served"
"""On these Leases, JSON: `controlplanes` and `secrets`, the resourceVersions up to which the replica serves what the
control planes and the Secrets in `GATEWAY_NAMESPACE` say. A replica that starts has none."""

GATEWAY_LIMITS_KEY: Final = "limits.json"
"""Key of the same Secret, with the limits of the control plane's class: its name as `class`, and fields of
`spec.limits`. It is absent if there is no class."""

GATEWAY_AUTHENTICATION_KEY: Final = "authentication.json"
"""Key of the same Secret, with the tokens that the API server accepts: `audiences` of ServiceAccount tokens, and OIDC
`issuers`. Each issuer has `issuerURL`, `audiences`, `certificateAuthority` and `requiredClaims`. `clusterInfo` is true
if everybody may read ConfigMap `kube-public/cluster-info`. The key is absent if the class sets nothing of that."""

GATEWAY_BOOTSTRAP_TOKENS_KEY: Final = "bootstrap-tokens.json"
"""Key of the same Secret while the control plane sleeps, with the bootstrap tokens that wake it: `salt`, in hexadecimal
digits, and `tokens`. Each token has `hmac`, the HMAC-SHA256 of the whole token by the salt, and `expiration`, absent if
it never expires. No token can be read from it: 16 random characters of a token are secret."""

GATEWAY_HOST_KEY: Final = "host"
"""Key of that Secret for a control plane by host name: that name. It has `server` beside it, and no other key."""

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_MAX_LABEL = 63
_STEM = 30
_MAX_SNAPSHOT_STEM = 230


def management_namespace(name: str) -> str:
    """Name of the namespace that a control plane owns in the management cluster."""
    return _label("kplane-cp-{}", "kplane-cpx-{}", name=name)


def kubeconfig_secret_name(name: str) -> str:
    """Name of the Secret with the published kubeconfigs of a control plane."""
    return _label("controlplane-{}-kubeconfig", "cp-{}-kubeconfig", name=name)


def controllers_secret_name(name: str) -> str:
    """Name of the Secret with what controllers of a control plane need."""
    return _label("controlplane-{}-controllers", "cp-{}-controllers", name=name)


def gateway_secret_name(name: str) -> str:
    """Name of the Secret, in `GATEWAY_NAMESPACE`, with what the gateway needs to serve a control plane."""
    return _label("controlplane-{}", "cp-{}", name=name)


def saved_keys_name(uid: str) -> str:
    """Name of the Secret, in the operator's namespace, with the keys of a control plane whose namespace was deleted."""
    return f"kplane-saved-keys-{uid}"


def snapshot_secret_name(file: str, *, number: int) -> str:
    """Name of a Secret, in the operator's namespace, with a part of the file of a snapshot; `number` counts from 0."""
    return f"kplane-snapshot-{snapshot_file_label(file)}-{number}"


def snapshot_file_label(file: str) -> str:
    """Value of `SNAPSHOT_FILE_LABEL` for the file of a snapshot."""
    return _digest(file)


def snapshot_name(name: str, *, time: str) -> str:
    """Name of the ControlPlaneSnapshot that is made of a control plane by schedule; `time` is the time of that."""
    stem = name if len(name) <= _MAX_SNAPSHOT_STEM else f"{name[:_STEM].rstrip('-.')}-{_digest(name)}"
    return f"{stem}-{time}"


def label_value(name: str) -> str:
    """Render an object's name as a label value: as it is where it fits, else a stem and a digest."""
    # No object's name has an underscore, so no name that fits is the value of one that does not.
    return name if len(name) <= _MAX_LABEL else f"{name[:_STEM].rstrip('-.')}_{_digest(name)}"


def _label(plain: str, hashed: str, *, name: str) -> str:
    """Put a name into a DNS-1123 label: as it is where it fits, else a stem and a digest.

    The two formats begin differently, so that nobody can choose a short name that gets the label of a long one.
    """
    label = plain.format(name)
    if len(label) <= _MAX_LABEL and _DNS_LABEL.fullmatch(label):
        return label
    stem = re.sub(r"[^-a-z0-9]", "-", name.lower())[:_STEM].strip("-") or "x"
    return hashed.format(f"{stem}-{_digest(name)}")


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:16]
