"""Causes that delay the deletion of a namespace, according to its conditions in the management cluster or a tenant.

The namespace controller of Kubernetes writes the conditions, see status_condition_utils.go of
k8s.io/kubernetes/pkg/controller/namespace/deletion. A condition is True while its cause remains.
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
"""Remedies by type of condition, causes first. Content remains because of another cause, so it has no remedy of its
own.
"""
_PATIENCE_SECONDS: Final = 60.0
"""Maximum time since the deletion in which the namespace controller has written its conditions."""
_LONGEST: Final = 500
"""Maximum length of a message in characters: lists of failing groups and of finalizers are unbounded."""


def describe_leaving(namespace: Object, *, now: datetime | None = None, cluster: str = "the management cluster") -> str:
    """Return a sentence with the time of a namespace's deletion, and the contents, finalizers or APIs that delay it.

    The sentence has no age, so it changes only if the state changes. `now` is the time, for tests. `cluster` names the
    cluster of the namespace.
    """
    name = namespace["metadata"]["name"]
    since = _time(namespace["metadata"].get("deletionTimestamp"))
    begun = f" since {since:%Y-%m-%d %H:%M:%S} UTC" if since is not None else ""
    text = f"namespace {name} is being deleted{begun}"
    conditions = {
        condition.get("type"): condition for condition in _conditions(namespace) if condition.get("status") == "True"
    }
    causes = [_cut(str(conditions[kind].get("message", ""))) for kind in _REMEDIES if kind in conditions]
    if causes:
        remedies = dict.fromkeys(_REMEDIES[kind] for kind in _REMEDIES if kind in conditions and _REMEDIES[kind])
        remedy_text = f"; {'; '.join(remedies)}" if remedies else ""
        return f"{text}: {'. '.join(causes)}{remedy_text}"
    if since is not None and ((now or datetime.now(UTC)) - since).total_seconds() > _PATIENCE_SECONDS:
        return (
            f"{text}, and its status does not say what it waits for; see whether kube-controller-manager of {cluster}"
            f" runs: kubectl describe namespace {name}"
        )
    return text


def _conditions(namespace: Object) -> list[dict[str, Any]]:
    conditions = (namespace.get("status") or {}).get("conditions") or []
    return [condition for condition in conditions if isinstance(condition, dict)]


def _cut(message: str) -> str:
    text = " ".join(message.split()).rstrip(".")
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _time(text: str | None) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if text is not None else None
    except ValueError:
        return None
