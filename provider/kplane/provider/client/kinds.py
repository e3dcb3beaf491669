"""Kinds by their names: `"v1/ConfigMap"`, `"apps/v1/Deployment"`, `"example.com/v1/Widget"`."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, overload

from typing_extensions import override

from kplane.provider.client.resources import Resource
from kplane.provider.client.typed import Kind, class_of, typed_of
from kplane.provider.errors import KindMisspelled, NotFound, NotServed, ProviderError

if TYPE_CHECKING:
    from kplane.provider.client.rest import Rest

__all__ = ["KindName", "discover", "parse_kind", "resource_of", "typed_kind"]

C = TypeVar("C")

# Kinds that a kube-apiserver of Kubernetes 1.36 serves by default and that support watch. The default plural is the
# kind in lower case with an s.
_NAMESPACED: Final = """
v1: ConfigMap Endpoints=endpoints Event LimitRange PersistentVolumeClaim Pod PodTemplate ReplicationController
v1: ResourceQuota Secret Service ServiceAccount
apps/v1: ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet
autoscaling/v1: HorizontalPodAutoscaler
autoscaling/v2: HorizontalPodAutoscaler
batch/v1: CronJob Job
coordination.k8s.io/v1: Lease
discovery.k8s.io/v1: EndpointSlice
events.k8s.io/v1: Event
networking.k8s.io/v1: Ingress=ingresses NetworkPolicy=networkpolicies
policy/v1: PodDisruptionBudget
rbac.authorization.k8s.io/v1: Role RoleBinding
resource.k8s.io/v1: ResourceClaim ResourceClaimTemplate
storage.k8s.io/v1: CSIStorageCapacity=csistoragecapacities
"""
_CLUSTER_SCOPED: Final = """
v1: Namespace Node PersistentVolume
admissionregistration.k8s.io/v1: MutatingAdmissionPolicy=mutatingadmissionpolicies MutatingAdmissionPolicyBinding
admissionregistration.k8s.io/v1: MutatingWebhookConfiguration ValidatingAdmissionPolicy=validatingadmissionpolicies
admissionregistration.k8s.io/v1: ValidatingAdmissionPolicyBinding ValidatingWebhookConfiguration
apiextensions.k8s.io/v1: CustomResourceDefinition
apiregistration.k8s.io/v1: APIService
certificates.k8s.io/v1: CertificateSigningRequest
flowcontrol.apiserver.k8s.io/v1: FlowSchema PriorityLevelConfiguration
networking.k8s.io/v1: IngressClass=ingressclasses IPAddress=ipaddresses ServiceCIDR
node.k8s.io/v1: RuntimeClass=runtimeclasses
rbac.authorization.k8s.io/v1: ClusterRole ClusterRoleBinding
resource.k8s.io/v1: DeviceClass=deviceclasses ResourceSlice
scheduling.k8s.io/v1: PriorityClass=priorityclasses
storage.k8s.io/v1: CSIDriver CSINode StorageClass=storageclasses VolumeAttachment
storage.k8s.io/v1: VolumeAttributesClass=volumeattributesclasses
"""


def _read(table: str, *, namespaced: bool) -> Iterator[tuple[str, Resource]]:
    for line in table.strip().splitlines():
        api_version, _, kinds = line.partition(": ")
        for entry in kinds.split():
            kind, _, plural = entry.partition("=")
            yield f"{api_version}/{kind}", Resource(api_version, kind, plural or f"{kind.lower()}s", namespaced)


BUILT_IN: Final[dict[str, Resource]] = {
    **dict(_read(_NAMESPACED, namespaced=True)),
    **dict(_read(_CLUSTER_SCOPED, namespaced=False)),
}
"""Kinds that need no discovery, by name."""

_NAME: Final = re.compile(r"(?P<api_version>(?:[a-z0-9.-]{1,253}/)?[a-z0-9]{1,63})/(?P<kind>[A-Za-z][A-Za-z0-9]{0,62})")

_VERSION: Final = re.compile(r"v[0-9]+((alpha|beta)[0-9]+)?")


class KindName(NamedTuple):
    """Name of a kind: upstream's GroupVersionKind."""

    api_version: str
    kind: str

    @property
    def group(self) -> str:
        """API group; empty for the kinds of `v1`."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        """Version of the API group, such as `v1`."""
        return self.api_version.rpartition("/")[2]

    @override
    def __str__(self) -> str:
        return f"{self.api_version}/{self.kind}"


@overload
def typed_kind(
    name: str, *, plural: str | None = None, namespaced: bool | None = None
) -> Callable[[type[C]], type[C]]: ...
@overload
def typed_kind(
    name: str,
    *,
    plural: str | None = None,
    namespaced: bool | None = None,
    decode: Callable[[dict[str, Any]], C],
    encode: Callable[[C], dict[str, Any]],
) -> Callable[[type[C]], type[C]]: ...
def typed_kind(
    name: str,
    *,
    plural: str | None = None,
    namespaced: bool | None = None,
    decode: Callable[[dict[str, Any]], Any] | None = None,
    encode: Callable[[Any], dict[str, Any]] | None = None,
) -> Callable[[type[C]], type[C]]:
    """Declare a class for a kind, such as `"example.com/v1/Widget"`; calls accept the class in place of the name.

    pydantic models, msgspec Structs, dataclasses and attrs classes need no functions. For other classes, `decode`
    turns a dict into an instance, and `encode` an instance into a dict. `plural` and `namespaced` together save the
    discovery in each cluster. Raises ProviderError for an invalid name of a kind, and for an unsupported class.
    """
    api_version, kind = parse_kind(name)
    if (plural is None) != (namespaced is None):
        raise ProviderError(f"{name}: give plural and namespaced together, or none of them")
    resource = BUILT_IN.get(name)
    if plural is not None and namespaced is not None:
        resource = Resource(api_version, kind, plural, namespaced)
    return lambda cls: class_of(name, cls, resource=resource, decode=decode, encode=encode)


def parse_kind(kind: Kind[Any]) -> KindName:
    """Return the name of a kind, which need not exist in a cluster. Raises ProviderError for an invalid name.

    A misspelled kind of Kubernetes, such as `v1/configmaps` or `v1/Deployment`, is invalid too, because no cluster
    serves it.
    """
    if isinstance(kind, Resource):
        return KindName(kind.api_version, kind.kind)
    if (typed := typed_of(kind)) is not None:
        return parse_kind(typed.name)
    match = _NAME.fullmatch(str(kind))
    if match is None:
        raise ProviderError(
            f"{kind!r} is not the name of a kind: it is written as 'v1/ConfigMap' or 'apps/v1/Deployment'"
        )
    name = KindName(match["api_version"], match["kind"])
    if kind not in BUILT_IN and (right := _spellings().get(kind.lower()) or _refused(name)) is not None:
        raise ProviderError(f"no cluster serves {kind!r}: the kind is written {right!r}")
    return name


@functools.cache
def _spellings() -> Mapping[str, str]:
    """Return the built-in kinds by their common misspellings: plurals, and names in lower case."""
    plurals = {f"{resource.api_version}/{resource.plural}": name for name, resource in BUILT_IN.items()}
    return plurals | {name.lower(): name for name in BUILT_IN}


@functools.cache
def _named() -> Mapping[str, list[KindName]]:
    """Return the built-in kinds by kind and plural, in lower case."""
    named: dict[str, list[KindName]] = {}
    for resource in BUILT_IN.values():
        for name in {resource.kind.lower(), resource.plural}:
            named.setdefault(name, []).append(KindName(resource.api_version, resource.kind))
    return named


def _refused(name: KindName) -> str | None:
    """Return the built-in kind that a name means which no cluster can serve, such as `v1/Deployment`; else None.

    Only Kubernetes has groups without a dot. It may serve further versions of the kinds in such a group.
    """
    same_group = any(other.group == name.group for other in _named().get(name.kind.lower(), []))
    served_somewhere = "." in name.group or (name.group and same_group and _VERSION.fullmatch(name.version))
    return None if served_somewhere else _built_in_for(name)


def _built_in_for(name: KindName) -> str | None:
    """Return the built-in kind that is closest to a name by group and version; None if no group has the kind."""
    candidates = _named().get(name.kind.lower())
    if candidates is None:
        return None
    # Authors call the group of `v1` core, and leave out versions and domains.
    group = (name.group or ("" if _VERSION.fullmatch(name.version) else name.version)).partition(".")[0]
    group = "" if group == "core" else group
    same_group = [other for other in candidates if other.group.partition(".")[0] == group] or candidates
    return str(([other for other in same_group if other.version == name.version] or same_group)[-1])


def resource_of(kind: Kind[Any]) -> Resource:
    """Return a kind by its name, such as `"apps/v1/Deployment"`, or by its class; a Resource is returned as it is.

    Raises ProviderError for names that are not built into Kubernetes.
    """
    if isinstance(kind, Resource):
        return kind
    if (typed := typed_of(kind)) is not None and typed.resource is not None:
        return typed.resource
    name = str(parse_kind(kind))
    resource = BUILT_IN.get(name)
    if resource is None:
        raise ProviderError(
            f"{name!r} is none of Kubernetes' own kinds: give a Resource instead, or let a cluster tell by "
            f"`await client.resource({name!r})`"
        )
    return resource


async def discover(client: Rest, kind: str) -> Resource:
    """Look a kind up in a cluster, such as `"example.com/v1/Widget"`; `Client.resource` keeps the result.

    Raises NotServed if the cluster does not serve the kind, KindMisspelled if the cluster spells it in another way, and
    ProviderError for an invalid name.
    """
    api_version, name = asked = parse_kind(kind)
    misspelled = ""
    path = f"/{'apis' if '/' in api_version else 'api'}/{api_version}"
    try:
        answer = await client.request("GET", path)
    except NotFound:
        answer = None
    for entry in _listed(answer):
        plural, namespaced, served = entry.get("name"), entry.get("namespaced"), entry.get("kind")
        # The list contains subresources too, such as `widgets/status`.
        if not (isinstance(plural, str) and isinstance(namespaced, bool) and isinstance(served, str)) or "/" in plural:
            continue
        if served == name:
            return Resource(api_version, name, plural, namespaced)
        if name.lower() in {plural, entry.get("singularName"), served.lower()}:
            misspelled = f"{api_version}/{served}"
    if not misspelled and any(other.group == asked.group for other in _named().get(name.lower(), [])):
        # The group is of Kubernetes, so no CustomResourceDefinition adds the version.
        built_in = _built_in_for(asked)
        misspelled = built_in if built_in is not None and built_in != kind else ""
    if misspelled:
        raise KindMisspelled(f"{client.config.server} serves no {kind}: the kind is written {misspelled!r}")
    raise NotServed(f"{client.config.server} serves no {kind}: apply its CustomResourceDefinition, or correct the name")


def _listed(answer: Any) -> list[dict[str, Any]]:
    resources = answer.get("resources") if isinstance(answer, dict) else None
    return [entry for entry in resources if isinstance(entry, dict)] if isinstance(resources, list) else []
