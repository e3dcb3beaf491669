"""Guards: webhooks and policies that refuse or delay a write."""

from __future__ import annotations

from typing import Any

import pytest

from kplane.provider import ApiError, Forbidden, Invalid, ProviderError, Unreachable
from kplane.provider.client.admission import Guard, Write, blamed_guards, guards_of, name_guards, refusing_guard
from kplane.provider.client.resources import (
    CLUSTER_ROLE_BINDINGS,
    LEASES,
    MUTATING_WEBHOOK_CONFIGURATIONS,
    NAMESPACES,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)
from kplane.provider.errors import ServerError
from kplane.provider.testing import FakeCluster

LEASE_WRITE = Write(resource=LEASES, namespace="kube-system")
BINDING_WRITE = Write(resource=CLUSTER_ROLE_BINDINGS)
RULE = {
    "apiGroups": ["coordination.k8s.io"],
    "apiVersions": ["v1"],
    "resources": ["leases"],
    "operations": ["CREATE", "UPDATE"],
}
SLOW = Unreachable("PUT /leases: no answer in time", kind="timeout", write_sent=True)


@pytest.fixture
async def fake():
    cluster = FakeCluster("a")
    await cluster.client.apply(
        NAMESPACES, {"metadata": {"name": "kube-system", "labels": {"guarded": "no"}}}, force=True
    )
    yield cluster
    await cluster.aclose()


def configuration(name: str, *, rule: Any = None, **fields: Any) -> dict[str, Any]:
    webhook = {"name": f"{name}.example.com", "rules": [{**RULE, **(rule or {})}], **fields}
    return {"metadata": {"name": name}, "webhooks": [webhook]}


async def judged(fake: FakeCluster, *writes: Write, **fields: Any) -> bool:
    await fake.client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, configuration("guard", **fields))
    return bool(await guards_of(fake.client, *writes))


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (ServerError(500, "InternalError", 'Internal error occurred: failed calling webhook "a.b": no'), "a.b"),
        (Forbidden(403, "Forbidden", 'admission webhook "a.b" denied the request: no'), "a.b"),
        (Forbidden(403, "Forbidden", "leases is forbidden: User x cannot update"), None),
        (SLOW, None),
    ],
)
def test_refusing_guard_names_the_webhook_of_an_error(error: ProviderError, name: str | None) -> None:
    guard = refusing_guard(error)
    assert (guard.webhook if guard is not None else None) == name


def test_refusing_guard_names_the_policy_of_an_error() -> None:
    said = "leases \"x\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: failed expression"
    assert refusing_guard(Invalid(422, "Invalid", said)) == Guard(kind="ValidatingAdmissionPolicy", configuration="p")


@pytest.mark.parametrize("named", ["'p' with binding 'b'", '"p"'])
def test_refusing_guard_names_the_mutating_policy_of_an_error(named: str) -> None:
    said = f"PATCH /api/v1/serviceaccounts/a: policy {named} denied request: expression failed"
    assert refusing_guard(Invalid(422, "Invalid", said)) == Guard(kind="MutatingAdmissionPolicy", configuration="p")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"rule": {"apiGroups": ["*"], "resources": ["*/*"], "operations": ["*"], "scope": "*"}},
        {"rule": {"resources": ["leases/*"], "scope": "Namespaced"}},
        {"rule": {"apiVersions": ["v1beta1"]}},
        {"namespaceSelector": {"matchLabels": {"guarded": "no"}}},
        {"namespaceSelector": {"matchExpressions": [{"key": "other", "operator": "NotIn", "values": ["x"]}]}},
        {"objectSelector": {"matchExpressions": [{"key": "other", "operator": "DoesNotExist"}]}},
    ],
)
async def test_guards_of_returns_a_webhook_on_leases(fake: FakeCluster, fields: dict[str, Any]) -> None:
    assert await judged(fake, LEASE_WRITE, **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"rule": {"apiGroups": [""]}},
        {"rule": {"resources": ["pods", "leases/status"]}},
        {"rule": {"operations": ["DELETE"]}},
        {"rule": {"scope": "Cluster"}},
        {"namespaceSelector": {"matchExpressions": [{"key": "guarded", "operator": "NotIn", "values": ["no"]}]}},
        {"namespaceSelector": {"matchExpressions": [{"key": "guarded", "operator": "DoesNotExist"}]}},
        {"objectSelector": {"matchLabels": {"app": "web"}}},
        {"rules": "none"},
    ],
)
async def test_guards_of_leaves_out_a_webhook_on_other_writes(fake: FakeCluster, fields: dict[str, Any]) -> None:
    assert not await judged(fake, LEASE_WRITE, **fields)


async def test_guards_of_asks_no_namespace_for_a_cluster_scoped_write(fake: FakeCluster) -> None:
    everything = {"apiGroups": ["*"], "resources": ["*"], "operations": ["*"]}
    assert await judged(fake, BINDING_WRITE, rule=everything, namespaceSelector={"matchLabels": {"never": "there"}})


async def test_blamed_guards_of_slow_write_are_all_its_webhooks(fake: FakeCluster) -> None:
    ignoring = configuration("slow", failurePolicy="Ignore", timeoutSeconds=30)
    await fake.client.create(MUTATING_WEBHOOK_CONFIGURATIONS, ignoring)
    await fake.client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, configuration("pods", rule={"apiGroups": [""]}))
    (guard,) = await blamed_guards(fake.client, SLOW, BINDING_WRITE, LEASE_WRITE)
    assert str(guard) == "webhook 'slow.example.com' of MutatingWebhookConfiguration slow (Ignore, 30 s)"
    assert guard.deletion == "kubectl delete mutatingwebhookconfiguration slow"
    late = ServerError(504, "Timeout", "Timeout: request did not complete within requested timeout")
    assert await blamed_guards(fake.client, late, LEASE_WRITE) == [guard]
    assert await blamed_guards(fake.client, ServerError(500, "InternalError", "etcd is away"), LEASE_WRITE) == []


async def test_blamed_guards_of_slow_read_or_connection_are_empty(fake: FakeCluster) -> None:
    await fake.client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, configuration("slow", failurePolicy="Ignore"))
    read = Unreachable("GET /version: no answer in time", kind="timeout")
    assert await blamed_guards(fake.client, read, LEASE_WRITE) == []
    assert await blamed_guards(fake.client, SLOW) == []


async def test_blamed_guards_of_refusal_name_the_webhook_configuration(fake: FakeCluster) -> None:
    # The rules may have changed since the refusal.
    await fake.client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, configuration("guard", rule={"apiGroups": [""]}))
    refused = ApiError(400, "BadRequest", 'admission webhook "guard.example.com" denied the request: no')
    (guard,) = await blamed_guards(fake.client, refused, LEASE_WRITE)
    assert (guard.kind, guard.configuration) == ("ValidatingWebhookConfiguration", "guard")
    gone = ApiError(400, "BadRequest", 'admission webhook "gone.example.com" denied the request: no')
    assert await blamed_guards(fake.client, gone, LEASE_WRITE) == [Guard(webhook="gone.example.com")]


async def test_blamed_guards_of_unreachable_cluster_come_from_the_error(fake: FakeCluster) -> None:
    kind = "admissionregistration.k8s.io/v1/ValidatingWebhookConfiguration"
    fake.fail(Forbidden(403, "Forbidden", "you may not"), verb="list", kind=kind, times=2)
    refused = ApiError(400, "BadRequest", 'admission webhook "a.b" denied the request: no')
    assert await blamed_guards(fake.client, refused, LEASE_WRITE) == [Guard(webhook="a.b")]
    assert await blamed_guards(fake.client, SLOW, LEASE_WRITE) == []


def test_name_guards_names_three_and_counts_the_others() -> None:
    guards = [Guard(kind="ValidatingAdmissionPolicy", configuration=f"p{number}") for number in range(5)]
    named = "ValidatingAdmissionPolicy p0, ValidatingAdmissionPolicy p1, ValidatingAdmissionPolicy p2"
    assert name_guards(guards) == f"{named} and 2 more"
    assert name_guards(guards[:1]) == "ValidatingAdmissionPolicy p0"
