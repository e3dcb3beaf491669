"""FlowSchemas that make an API server count the requests of its users, of kplane, and of anonymous clients separately.

API Priority and Fairness counts requests by priority level. It counts no request with an invalid credential: the API
server answers 401 before. An anonymous request gets into the priority level of users, unless a FlowSchema assigns
another level. See https://kubernetes.io/docs/concepts/cluster-administration/flow-control/.

Only control planes with host names get these objects. At other control planes, the gateway sees each request.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

from kplane.controlplane_operator.tenant.bootstrap import MANAGED_LABELS, TENANT_NAMESPACE, Subject
from kplane.provider import Client, NotFound, Resource

__all__ = ["PRIORITY_LEVELS", "apply_flow_schemas", "count_user_requests"]

PRIORITY_LEVELS: Final = "/debug/api_priority_and_fairness/dump_priority_levels"
"""Path of a table of all priority levels. The table takes 3 ms of an API server's time, and `/metrics` takes 75 ms."""

_GROUP: Final = "flowcontrol.apiserver.k8s.io"
_FLOW_SCHEMAS: Final = Resource(f"{_GROUP}/v1", "FlowSchema", "flowschemas", namespaced=False)
_LEVELS: Final = Resource(f"{_GROUP}/v1", "PriorityLevelConfiguration", "prioritylevelconfigurations", namespaced=False)
_FIELD_MANAGER: Final = "kplane-bootstrap"
_PRECEDENCE: Final = 50
"""After upstream's first FlowSchemas `exempt` and `probes`, and before all others of upstream."""
_KPLANE: Final = "kplane"
_ANONYMOUS: Final = "kplane-anonymous"
_CATCH_ALL: Final = "catch-all"
_NO_USERS: Final = frozenset({_KPLANE, _CATCH_ALL, "exempt"})
"""Priority levels without requests of users.

Level `exempt` has health probes, the API server's own requests, and group system:masters. Level `catch-all` has
anonymous requests, and all requests until the API server has read its FlowSchemas.
"""
_LEVEL: Final = {
    "type": "Limited",
    # As upstream's workload-high, the level of controllers. Other levels may borrow unused shares.
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
"""Requests of the operator as the administrator: it tries the published credentials (`controlplanes/credentials.py` and
`credential_probes.py`), and reads Leases over the same connection (`registrations/heartbeats.py`).
"""


async def apply_flow_schemas(client: Client, *, admin: Subject, controllers: Subject) -> None:
    """Create or update the objects. `client` is an administrator of the control plane. Raises the errors of `client`.

    An API server without this API gets no objects.
    """
    rules = [{"subjects": [_subject(controllers)], **_ALL}, {"subjects": [_subject(admin)], **_PROBES}]
    strangers = {"subjects": [{"kind": "Group", "group": {"name": "system:unauthenticated"}}], **_ALL}
    # The level comes first. A FlowSchema without its level is active too, and would refuse requests.
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
    """Return the number of executed requests of users, from the table of priority levels of an API server.

    Raises ValueError if the table cannot be parsed.
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
