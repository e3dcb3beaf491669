"""What a namespace that is being deleted waits for, as its cluster tells it: the management cluster or a tenant.

The namespace controller of Kubernetes writes the conditions, see status_condition_utils.go of
k8s.io/kubernetes/pkg/controller/namespace/deletion. They are True while something is left.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from kplane.controlplane_operator.watch.cache import Object

__all__ = ["describe_leaving"]

_REMEDIES: Final = {
    "NamespaceDeletionDiscoveryFailure": "mend or delete the APIService that is down: kubectl get apiservices",
    "NamespaceDeletionGroupVersionParsingFailure": "mend or delete the APIService: kubectl get apiservices",
    "NamespaceDeletionContentFailure": "mend what refuses the deletion",
    "NamespaceFinalizersRemaining": "let the programs of these finalizers end their work, or remove the finalizers",
    "NamespaceContentRemaining": "",
}
"""By type of condition, the causes first: what a person does. Content remains for one of the other causes."""
_PATIENCE_SECONDS: Final = 60.0
"""Maximum time since the deletion in which the namespace controller has written its conditions."""
_LONGEST: Final = 500
"""Characters of one message: a list of groups that fail, or of finalizers, has no bound of its own."""


def describe_leaving(namespace: Object, *, now: datetime | None = None, cluster: str = "the management cluster") -> str:
    """Say since when a namespace is being deleted, and which contents, finalizers or APIs it waits for.

    The text has no age, so that it stays the same while nothing changes. `now` is the time, for tests. `cluster` names
    the cluster in which the namespace is.
    """
    name = namespace["metadata"]["name"]
    since = _time(namespace["metadata"].get("deletionTimestamp"))
    begun = f" since {since:%Y-%m-%d %H:%M:%S} UTC" if since is not None else ""
    said = f"namespace {name} is being deleted{begun}"
    told = {each.get("type"): each for each in _conditions(namespace) if each.get("status") == "True"}
    causes = [_cut(str(told[kind].get("message", ""))) for kind in _REMEDIES if kind in told]
    if causes:
        remedies = dict.fromkeys(_REMEDIES[kind] for kind in _REMEDIES if kind in told and _REMEDIES[kind])
        todo = f"; {'; '.join(remedies)}" if remedies else ""
        return f"{said}: {'. '.join(causes)}{todo}"
    if since is not None and ((now or datetime.now(UTC)) - since).total_seconds() > _PATIENCE_SECONDS:
        return (
            f"{said}, and its status does not say what it waits for; see whether kube-controller-manager of {cluster}"
            f" runs: kubectl describe namespace {name}"
        )
    return said


def _conditions(namespace: Object) -> list[dict[str, Any]]:
    found = (namespace.get("status") or {}).get("conditions") or []
    return [each for each in found if isinstance(each, dict)]


def _cut(message: str) -> str:
    text = " ".join(message.split()).rstrip(".")
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _time(text: str | None) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if text is not None else None
    except ValueError:
        return None
