"""Objects whose effect shows that the API server's authorization and admission have seen all earlier changes.

Authorization and admission follow objects by watches of their own, some milliseconds after the watch caches, and
policies by the second. So a marker is created after a reset. Once the marker has its effect, deleted objects have none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kplane.testing.clean.api import Api

__all__ = ["MARKERS", "PREFIX", "Marker"]

PREFIX: Final = "kplane-clean-"
_NAMESPACE: Final = "kube-system"
_CONFIG_MAPS: Final = f"/api/v1/namespaces/{_NAMESPACE}/configmaps?dryRun=All"
_RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_CREATES: Final = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Marker:
    """Describes objects to create after a reset of these kinds, and a check that they have their effect."""

    kinds: frozenset[str]
    """Kinds of the reset objects, by their names in the keys of etcd."""
    objects: Callable[[str], Sequence[tuple[str, Body]]]
    """Returns the paths and bodies of the objects for a marker's name."""
    seen: Callable[[Api, str], Awaitable[bool]]


def _rbac(name: str) -> Sequence[tuple[str, Body]]:
    subjects = [{"kind": "User", "name": name, "apiGroup": "rbac.authorization.k8s.io"}]
    rules = [{"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"], "resourceNames": [name]}]
    everywhere = [{"verbs": ["get"], "nonResourceURLs": [f"/{name}"]}]
    metadata, there = {"name": name}, f"{_RBAC}/namespaces/{_NAMESPACE}"

    def refers(kind: str) -> Body:
        return {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}

    return (
        (f"{_RBAC}/clusterroles", {"metadata": metadata, "rules": everywhere}),
        (f"{there}/roles", {"metadata": metadata, "rules": rules}),
        (
            f"{_RBAC}/clusterrolebindings",
            {"metadata": metadata, "roleRef": refers("ClusterRole"), "subjects": subjects},
        ),
        (f"{there}/rolebindings", {"metadata": metadata, "roleRef": refers("Role"), "subjects": subjects}),
    )


async def _allowed(api: Api, name: str) -> bool:
    asked: Sequence[Body] = (
        {"nonResourceAttributes": {"path": f"/{name}", "verb": "get"}},
        {"resourceAttributes": {"namespace": _NAMESPACE, "verb": "get", "resource": "configmaps", "name": name}},
    )
    for attributes in asked:
        _, answer = await api.create(_REVIEWS, {"spec": {"user": name, **attributes}})
        if not answer["status"]["allowed"]:
            return False
    return True


def _webhook(kind: str) -> Callable[[str], Sequence[tuple[str, Body]]]:
    def objects(name: str) -> Sequence[tuple[str, Body]]:
        hook = {
            "name": f"{name}.kplane.dev",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            # A closed port: the failing call shows that the marker has its effect.
            "clientConfig": {"url": "https://127.0.0.1:1/"},
            "rules": [_CREATES],
            "objectSelector": {"matchLabels": {name: kind}},
            "timeoutSeconds": 1,
        }
        return ((f"{_ADMISSION}/{kind}", {"metadata": {"name": name}, "webhooks": [hook]}),)

    return objects


def _policy(kind: str, *, spec: Mapping[str, Any], binding: Mapping[str, Any]) -> Callable[[str], Any]:
    def objects(name: str) -> Sequence[tuple[str, Body]]:
        matches = {"resourceRules": [_CREATES], "objectSelector": {"matchLabels": {name: kind}}}
        return (
            (f"{_ADMISSION}/{kind}", {"metadata": {"name": name}, "spec": {"matchConstraints": matches, **spec}}),
            (
                f"{_ADMISSION}/{kind.removesuffix('ies')}ybindings",
                {"metadata": {"name": name}, "spec": {"policyName": name, **binding}},
            ),
        )

    return objects


def _refused(kind: str) -> Callable[[Api, str], Awaitable[bool]]:
    async def seen(api: Api, name: str) -> bool:
        status, _ = await api.create(_CONFIG_MAPS, {"metadata": {"name": name, "labels": {name: kind}}})
        return status >= 400

    return seen


_VALIDATING: Final = "validatingadmissionpolicies"
_MUTATING: Final = "mutatingadmissionpolicies"
_HOOKS: Final = ("validatingwebhookconfigurations", "mutatingwebhookconfigurations")
_MUTATION: Final = {
    "patchType": "JSONPatch",
    "jsonPatch": {"expression": '[JSONPatch{op: "test", path: "/metadata/name", value: ""}]'},
}

MARKERS: Final = (
    Marker(frozenset({"roles", "rolebindings", "clusterroles", "clusterrolebindings"}), _rbac, _allowed),
    *(Marker(frozenset({kind}), _webhook(kind), _refused(kind)) for kind in _HOOKS),
    Marker(
        frozenset({_VALIDATING, "validatingadmissionpolicybindings"}),
        _policy(
            _VALIDATING,
            spec={"validations": [{"expression": "false"}]},
            binding={"validationActions": ["Deny"]},
        ),
        _refused(_VALIDATING),
    ),
    Marker(
        frozenset({_MUTATING, "mutatingadmissionpolicybindings"}),
        _policy(_MUTATING, spec={"reinvocationPolicy": "Never", "mutations": [_MUTATION]}, binding={}),
        _refused(_MUTATING),
    ),
)
