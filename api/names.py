"""Names that several components agree on: labels, finalizers, namespaces, Secrets and their keys."""

from __future__ import annotations

import hashlib
import re
from typing import Final

__all__ = [
    "ALLOW_REGISTRATION_LABEL",
    "CONTROLLERS_SECRET_KEYS",
    "CONTROL_PLANE_LABEL",
    "FINALIZER",
    "GROUP",
    "REGISTRATION_LABEL",
    "VERSION",
    "controllers_secret_name",
    "kubeconfig_secret_name",
    "label_value",
    "management_namespace",
]

GROUP: Final = "controlplane.kplane.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

FINALIZER: Final = f"{GROUP}/finalizer"

CONTROL_PLANE_LABEL: Final = f"{GROUP}/name"
"""On everything in the management cluster that belongs to a control plane; its value is `label_value(name)`."""

REGISTRATION_LABEL: Final = f"{GROUP}/registration"
"""On everything in the management cluster that belongs to a registration; its value is `label_value(name)`."""

ALLOW_REGISTRATION_LABEL: Final = f"{GROUP}/allow-registration"
"""`"true"` on a Secret outside of a control plane's management namespace lets registrations use it."""

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

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_MAX_LABEL = 63


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:8]


def _label(name: str, *, prefix: str, suffix: str, kept: int, short_prefix: str | None = None) -> str:
    """Join prefix, name and suffix into one DNS-1123 label, by digest where the name does not fit as it is."""
    plain = f"{prefix}{name}{suffix}"
    if len(plain) <= _MAX_LABEL and _DNS_LABEL.fullmatch(plain):
        return plain
    stem = re.sub(r"[^-a-z0-9]", "-", name.lower())[:kept].strip("-") or "x"
    return f"{short_prefix if short_prefix is not None else prefix}{stem}{suffix}-{_digest(name)}"


def management_namespace(name: str) -> str:
    """Name of the namespace that a control plane owns in the management cluster."""
    return _label(name, prefix="kplane-cp-", suffix="", kept=40)


def kubeconfig_secret_name(name: str) -> str:
    """Name of the Secret with the published kubeconfigs of a control plane."""
    return _label(name, prefix="controlplane-", suffix="-kubeconfig", kept=30, short_prefix="cp-")


def controllers_secret_name(name: str) -> str:
    """Name of the Secret with what controllers of a control plane need."""
    return _label(name, prefix="controlplane-", suffix="-controllers", kept=30, short_prefix="cp-")


def label_value(name: str) -> str:
    """Render an object's name as a label value: as it is where it fits, else a stem and a digest."""
    return name if len(name) <= _MAX_LABEL else f"{name[:50].rstrip('-.')}-{_digest(name)}"
