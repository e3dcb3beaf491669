"""Has an API server count apart the requests of its users, of kplane, and of strangers.

API Priority and Fairness counts requests by priority level. It counts no request with a bad credential: the API server
answers 401 before. An anonymous request gets into the priority level of users, unless a FlowSchema leads it elsewhere.
See https://kubernetes.io/docs/concepts/cluster-administration/flow-control/.

Only control planes with host names get these objects. At others, the gateway sees each request.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

from kplane.controlplane_operator.tenant.bootstrap import MANAGED_LABELS, TENANT_NAMESPACE, Subject
from kplane.provider import Client, NotFound, Resource

__all__ = ["PRIORITY_LEVELS", "apply_flow_schemas", "count_user_requests"]

PRIORITY_LEVELS: Final = "/debug/api_priority_and_fairness/dump_priority_levels"
"""Path of a table of all priority levels. It takes 3 ms of an API server, and `/metrics` takes 75 ms."""

_GROUP: Final = "flowcontrol.apiserver.k8s.io"
_FLOW_SCHEMAS: Final = Resource(f"{_GROUP}/v1", "FlowSchema", "flowschemas", namespaced=False)
_LEVELS: Final = Resource(f"{_GROUP}/v1", "PriorityLevelConfiguration", "prioritylevelconfigurations", namespaced=False)
_FIELD_MANAGER: Final = "kplane-bootstrap"
_PRECEDENCE: Final = 50
"""After `exempt` and `probes`, which are upstream's first ones, and before all its others."""
_KPLANE: Final = "kplane"
_ANONYMOUS: Final = "kplane-anonymous"
_CATCH_ALL: Final = "catch-all"
_NO_USERS: Final = frozenset({_KPLANE, _CATCH_ALL, "exempt"})
"""Priority levels without requests of users.

In `exempt` are health probes, the API server's own requests, and group system:masters. In `catch-all` are anonymous
requests. All requests are there until the API server has read its FlowSchemas.
"""
_LEVEL: Final = {
    "type": "Limited",
    # As upstream's workload-high, where controllers are. What they leave unused, others may borrow.
    "limited": {
        "nominalConcurrencyShares": 40,
        "lendablePercent": 50,
        "limitResponse": {"type": "Queue", "queuing": {"queues": 128, "handSize": 6, "queueLengthLimit": 50}},
    },
}
_ALL: Final = {
    "resourceRules": [
        {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": True}
    ],
    "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
}
_PROBES: Final = {
    "resourceRules": [
        {
            "verbs": ["get"],
            "apiGroups": ["rbac.authorization.k8s.io"],
            "resources": ["clusterrolebindings"],
            "clusterScope": True,
        },
        {
            "verbs": ["get"],
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "namespaces": ["kube-system"],
        },
    ],
    "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/version"]}],
}
"""What the operator asks as the administrator: it tries the published credentials (`controlplanes/credentials.py` and
`credential_probes.py`), and looks at Leases by the same connection (`registrations/heartbeats.py`)."""


async def apply_flow_schemas(client: Client, *, admin: Subject, controllers: Subject) -> None:
    """Have the objects in place; `client` is an administrator of the control plane. Raises what `client` raises.

    An API server without this API gets none of them.
    """
    rules = [{"subjects": [_subject(controllers)], **_ALL}, {"subjects": [_subject(admin)], **_PROBES}]
    strangers = {"subjects": [{"kind": "Group", "group": {"name": "system:unauthenticated"}}], **_ALL}
    # The level comes first. A FlowSchema without its level is in force too, and would refuse requests.
    objects = (
        (_LEVELS, _KPLANE, _LEVEL),
        (_FLOW_SCHEMAS, _KPLANE, _flow_schema(rules, level=_KPLANE)),
        (_FLOW_SCHEMAS, _ANONYMOUS, _flow_schema([strangers], level=_CATCH_ALL)),
    )
    with contextlib.suppress(NotFound):
        for resource, name, spec in objects:
            body = {"metadata": {"name": name, "labels": dict(MANAGED_LABELS)}, "spec": spec}
            await client.apply(resource, body, field_manager=_FIELD_MANAGER, force=True)


def count_user_requests(table: str) -> int:
    """Return how many requests of users an API server has executed, by its table of priority levels.

    Raises ValueError if the table cannot be understood.
    """
    header, *rows = ([cell.strip() for cell in line.split(",")] for line in table.splitlines() if line.strip())
    name, executed = header.index("PriorityLevelName"), header.index("DispatchedRequests")
    if any(len(row) != len(header) for row in rows):
        raise ValueError("a row of the table of priority levels has too few or too many values")
    return sum(int(row[executed]) for row in rows if row[name] not in _NO_USERS)


def _flow_schema(rules: list[dict[str, Any]], *, level: str) -> dict[str, Any]:
    return {
        "priorityLevelConfiguration": {"name": level},
        "matchingPrecedence": _PRECEDENCE,
        "distinguisherMethod": {"type": "ByUser"},
        "rules": rules,
    }


def _subject(subject: Subject) -> dict[str, Any]:
    if subject.kind == "ServiceAccount":
        return {"kind": subject.kind, "serviceAccount": {"name": subject.name, "namespace": TENANT_NAMESPACE}}
    return {"kind": subject.kind, "user": {"name": subject.name}}
