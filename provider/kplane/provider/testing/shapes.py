"""Merge types of fields for server-side apply, from the OpenAPI document of Kubernetes 1.36.

A live test compares the tables with the document of a kube-apiserver, for each kind that the server has by default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kplane.provider.client.kinds import BUILT_IN, parse_kind
from kplane.provider.client.resources import Resource

__all__ = ["Shape", "shape_of"]

_METADATA: Final = "v1/ObjectMeta"
_CUSTOM_FIELDS: Final = frozenset({"apiVersion", "kind", "metadata"})


def _by_name(table: dict[str, str]) -> dict[str, str]:
    return {name: style for style, names in table.items() for name in names.split()}


# Names of list fields by the keys of their items. All other lists are atomic. A kind in front of a name limits the
# entry to this kind.
_LISTS: Final = _by_name(
    {
        "atomic": "batch/v1/Job:conditions discovery.k8s.io/v1/EndpointSlice:ports v1/Namespace:finalizers"
        " v1/ServiceAccount:imagePullSecrets",
        "set": "failed finalizers podCIDRs succeeded validationActions volumeLifecycleModes",
        "containerPort,protocol": "ports",
        "devicePath": "volumeDevices",
        "driver,device,pool,shareID": "resource.k8s.io/v1/ResourceClaim:devices",
        "ip": "hostAliases podIPs",
        "mountPath": "volumeMounts",
        "name": "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy:variables claims containers drivers env"
        " ephemeralContainers imagePullSecrets initContainers matchConditions resourceClaims resourceClaimStatuses"
        " schedulingGates secrets volumes webhooks",
        "port,protocol": "v1/Service:ports",
        "topologyKey,whenUnsatisfiable": "topologySpreadConstraints",
        "type": "addresses conditions",
        "uid": "ownerReferences reservedFor",
    }
)
_REFERENCES: Final = (
    "autoscaling/v1/HorizontalPodAutoscaler:scaleTargetRef configMapKeyRef controllerExpandSecretRef fieldRef"
    " controllerPublishSecretRef fileKeyRef nodeExpandSecretRef nodePublishSecretRef nodeStageSecretRef paramRef"
    " resourceFieldRef roleRef secretKeyRef secretRef"
)
_SELECTORS: Final = (
    "dataSource imagePullSecrets[] involvedObject labelSelector matchConstraints matchResources namespaceSelector"
    " nodeSelector nodeTopology objectSelector ownerReferences[] paramKind podSelector port regarding related required"
    " requiredDuringSchedulingIgnoredDuringExecution resource scopeSelector secrets[] selector variables[]"
)
# Names of fields that are maps with any keys, and of atomic maps. All other maps are structs, whose keys are fields.
_MAPS: Final = _by_name(
    {
        "atomic": f"{_REFERENCES} {_SELECTORS}",
        "map": "allocatable allocatedResourceStatuses allocatedResources annotations attachmentMetadata binaryData"
        " capacity data disruptedPods extra hard labels limits options overhead parameters podFixed requests stringData"
        " used volumeAttributes",
        "struct": "networking.k8s.io/v1/IngressClass:parameters node.k8s.io/v1/RuntimeClass:overhead"
        " storage.k8s.io/v1/CSINode:allocatable",
    }
)
_DEFAULT_KEYS: Final = {"protocol": "TCP"}


@dataclass(frozen=True, slots=True)
class Shape:
    """Merge type of the content of a field with this name.

    `typed` is False for custom kinds, except for their metadata. In untyped content, maps merge and lists are atomic.
    """

    kind: str
    name: str = ""
    typed: bool = True

    @property
    def atomic(self) -> bool:
        """Whether a map has a single owner as a whole."""
        return self.typed and self._style(_MAPS) == "atomic"

    @property
    def keys(self) -> tuple[str, ...] | None:
        """Fields that identify the items of a list: an empty tuple for a set, None for an atomic list."""
        style = self._style(_LISTS) if self.typed else "atomic"
        return None if style in {"", "atomic"} else () if style == "set" else tuple(style.split(","))

    @property
    def defaults(self) -> dict[str, str]:
        """Default values of the keys of items."""
        return _DEFAULT_KEYS

    @property
    def item(self) -> Shape:
        """Shape of the items of a list."""
        return Shape(self.kind, f"{self.name}[]", self.typed)

    def has_field(self, key: str) -> bool:
        """Tell whether a key is a field of a struct, and not a key of a map."""
        return self._style(_MAPS) != "map" if self.typed else not self.name and key in _CUSTOM_FIELDS

    def at(self, key: str) -> Shape:
        """Return the shape of the value under a key."""
        if key == "metadata" and self.has_field(key):
            return Shape(_METADATA, key)
        if not self.typed:
            return Shape(self.kind, key, typed=False)
        return Shape(self.kind, key if self.has_field(key) else f"{self.name}{{}}")

    def _style(self, styles: dict[str, str]) -> str:
        return styles.get(f"{self.kind}:{self.name}") or styles.get(self.name, "")


def shape_of(resource: Resource) -> Shape:
    """Return the shape of the objects of a kind."""
    kind = str(parse_kind(resource))
    return Shape(kind, typed=kind in BUILT_IN)
