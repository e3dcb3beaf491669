"""Caches of the management cluster and their indexes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from kplane.api.names import (
    BUNDLE_LABEL,
    CLUSTER_PATH_ANNOTATION,
    CONTROL_PLANE_LABEL,
    SCHEDULED_FOR_ANNOTATION,
    management_namespace,
)
from kplane.components.names import components_of, mcm_mark
from kplane.controlplane_operator.kinds import (
    CONTROL_PLANE_CLASSES,
    CONTROL_PLANE_ENDPOINTS,
    CONTROL_PLANE_REGISTRATIONS,
    CONTROL_PLANE_SNAPSHOTS,
    CONTROL_PLANES,
)
from kplane.controlplane_operator.watch.addresses import begun_addresses, held_addresses, written_addresses
from kplane.controlplane_operator.watch.cache import MergedStore, Object, Store
from kplane.provider.client.resources import CONFIG_MAPS, NAMESPACES, SECRETS

__all__ = [
    "BUNDLES",
    "LABEL_SELECTORS",
    "Stores",
    "cluster_paths",
    "field_of",
    "mcm_marks",
    "recorded_path",
    "served_uids",
    "uid_of",
]


LABEL_SELECTORS: Final = {NAMESPACES: CONTROL_PLANE_LABEL}
"""Label selectors of watched kinds, so that other Namespaces of the cluster are not read."""

BUNDLES: Final = f"{BUNDLE_LABEL}=true"


def field_of(*path: str) -> Callable[[Object], list[str]]:
    """Return a function that returns the text at this path of an object: a single value, or none."""

    def values(obj: Object) -> list[str]:
        value: Any = obj
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return [value] if isinstance(value, str) and value else []

    return values


def cluster_paths(obj: Object) -> list[str]:
    """Return the clusterPaths that a control plane requests and has."""
    requested = field_of("spec", "virtual", "clusterPath")(obj) or [obj["metadata"]["name"]]
    return list({*requested, *field_of("status", "clusterPath")(obj)})


recorded_path: Final = field_of("metadata", "annotations", CLUSTER_PATH_ANNOTATION)


def _namespace(obj: Object) -> list[str]:
    return [management_namespace(obj["metadata"]["name"])]


def _addons(obj: Object) -> list[str]:
    return [addon for addon in obj.get("spec", {}).get("addons") or () if isinstance(addon, str)]


def _components(obj: Object) -> list[str]:
    return components_of(obj["metadata"]["name"])


def _kubeconfig_secret(obj: Object) -> list[str]:
    secrets = (obj.get("spec", {}).get("kubeconfigSecretRef"), obj.get("status", {}).get("resolvedKubeconfigSecretRef"))
    return [_reference(secret) for secret in secrets if secret]


uid_of: Final = field_of("metadata", "uid")


def mcm_marks(obj: Object) -> list[str]:
    """Return the mark of the mcm that a registration may have."""
    return [mcm_mark(uid) for uid in uid_of(obj)]


def served_uids(obj: Object) -> list[str]:
    """Return the uids of the control planes that a registration serves or is to serve."""
    resolved, working = field_of("status", "controlPlaneUID"), field_of("status", "instance", "controlPlaneUID")
    return list({*resolved(obj), *working(obj)})


def _reference(secret: Object) -> str:
    return f"{secret.get('namespace')}/{secret.get('name')}"


@dataclass(frozen=True, slots=True)
class Stores:
    """The caches of the management cluster."""

    control_planes: Store = field(
        default_factory=lambda: Store(
            CONTROL_PLANES,
            indexers={
                "class": field_of("spec", "classRef", "name"),
                "endpoint": field_of("spec", "endpointRef", "name"),
                "snapshot": field_of("spec", "source", "snapshotRef", "name"),
                "source": field_of("spec", "source", "controlPlaneRef", "name"),
                "path": cluster_paths,
                "address": held_addresses,
                "cluster": field_of("status", "clusterUID"),
                "namespace": _namespace,
                "component": _components,
                "uid": uid_of,
            },
        )
    )
    classes: Store = field(default_factory=lambda: Store(CONTROL_PLANE_CLASSES, indexers={"addon": _addons}))
    endpoints: Store = field(
        default_factory=lambda: Store(
            CONTROL_PLANE_ENDPOINTS,
            indexers={
                "credentials": lambda obj: [
                    _reference(secret) for secret in [obj["spec"].get("credentialsSecretRef")] if secret
                ],
                "address": written_addresses,
            },
        )
    )
    registrations: Store = field(
        default_factory=lambda: Store(
            CONTROL_PLANE_REGISTRATIONS,
            indexers={
                "control plane": field_of("spec", "controlPlaneRef", "name"),
                "endpoint": field_of("spec", "endpointRef", "name"),
                "secret": _kubeconfig_secret,
                "served": served_uids,
                "mcm": mcm_marks,
            },
        )
    )
    snapshots: Store = field(
        default_factory=lambda: Store(
            CONTROL_PLANE_SNAPSHOTS,
            indexers={
                "control plane": field_of("spec", "controlPlaneRef", "name"),
                "scheduled for": field_of("metadata", "annotations", SCHEDULED_FOR_ANNOTATION),
            },
        )
    )
    namespaces: Store = field(
        default_factory=lambda: Store(NAMESPACES, indexers={"path": recorded_path, "address": begun_addresses})
    )
    secrets: MergedStore = field(default_factory=lambda: MergedStore(SECRETS))
    """Secrets of control planes."""
    allowed_secrets: MergedStore = field(default_factory=lambda: MergedStore(SECRETS))
    """Secrets that their owners allow for registrations."""
    endpoint_secrets: MergedStore = field(default_factory=lambda: MergedStore(SECRETS))
    """Secrets that their owners allow for endpoints."""
    bundles: Store = field(default_factory=lambda: Store(CONFIG_MAPS))
    """Manifests of add-ons."""

    def secret_stores(self) -> tuple[Store, ...]:
        """Return the stores of Secrets."""
        return self.secrets, self.allowed_secrets, self.endpoint_secrets

    def cached(self) -> tuple[Store, ...]:
        """Return the stores that one informer of the kind fills: all but those of Secrets."""
        return (
            self.control_planes,
            self.classes,
            self.endpoints,
            self.registrations,
            self.snapshots,
            self.namespaces,
            self.bundles,
        )
