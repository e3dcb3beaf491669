"""Status of a control plane: computed from the results of the phases of a pass."""

from __future__ import annotations

from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest

from kplane.api import Condition, ControlPlane, ControlPlaneClass, find_condition
from kplane.api.conditions import SYNCED
from kplane.api.names import DELETE_ADMISSION_ANNOTATION
from kplane.api.reasons import Reason
from kplane.controlplane_operator.backends.base import Provision
from kplane.controlplane_operator.class_policy import ClassInForce
from kplane.controlplane_operator.controlplanes.credentials import Credentials
from kplane.controlplane_operator.controlplanes.first_tries import FirstTries
from kplane.controlplane_operator.controlplanes.passes import Pass
from kplane.controlplane_operator.controlplanes.reconciler import ControlPlaneReconciler
from kplane.controlplane_operator.controlplanes.summary import Summary
from kplane.controlplane_operator.endpoints.addresses import Addresses
from kplane.controlplane_operator.gateway import Gateway
from kplane.controlplane_operator.metrics import Metrics
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.watch.stores import Stores
from kplane.provider import ClusterConfig, Result
from kplane.provider.client.admission import Guard

_URL = "https://acme"
_PUBLISHED = {"endpoint": _URL, "version": "v1.36.3"}


@pytest.fixture
def summary() -> Summary:
    context: Any = SimpleNamespace(gateway=None, stores=Stores())
    sleeper: Any = None  # the summary uses the sleeper only after a decision about sleep
    runtime: Any = SimpleNamespace(runs_pods=True)
    return Summary(context, sleeper=sleeper, runtime=runtime)


@pytest.fixture
def reconciler() -> ControlPlaneReconciler:
    parts: Any = SimpleNamespace(
        stores=Stores(), runs_pods=True, virtual=None, home=None, gateway=None, again=lambda _: None
    )
    return ControlPlaneReconciler(
        parts,
        probes=parts,
        provisioners=parts,
        namespaces=parts,
        claims=parts,
        clusters=parts,
        switch=parts,
        removal=parts,
        served=parts,
        runtime=parts,
        monitors=parts,
        room=parts,
        migrator=parts,
        use=parts,
    )


def look(*, status: dict[str, Any] | None = None, **found: Any) -> Pass:
    control_plane = ControlPlane.model_validate(
        {"metadata": {"name": "acme", "uid": "1", "generation": 3}, "spec": {}, "status": status or {}}
    )
    return Pass(control_plane, ClassInForce(None), AsyncExitStack(), home=control_plane.home, **found)


def published(**found: Any) -> dict[str, Any]:
    administrator = ClusterConfig(server=_URL, token="administrator")
    provision = Provision(Addresses(_URL, _URL, _URL), administrator=administrator, authorities=None)
    credentials = cast("Credentials", SimpleNamespace(incomplete=None, lease_guards=None, **found))
    return {"provision": provision, "credentials": credentials, "published": _PUBLISHED}


@pytest.mark.parametrize(
    ("reason", "first", "later"),
    [
        (Reason.PROVISIONING, "Provisioning", "Unavailable"),
        (Reason.API_SERVER_NOT_READY, "Provisioning", "Unavailable"),
        (Reason.CREDENTIALS_MISSING, "Pending", "Failed"),
    ],
)
def test_failure_of_published_control_plane_keeps_published_status(
    summary: Summary, reason: Reason, first: str, later: str
) -> None:
    failure = ConditionError(reason, "not now")
    assert summary.status(look(failure=failure)).phase == first
    status = summary.status(look(failure=failure, status=_PUBLISHED))
    assert (status.phase, status.endpoint, status.version) == (later, _URL, "v1.36.3")
    ready = find_condition(status.conditions, "Ready")
    assert ready is not None
    assert (ready.status, ready.reason, ready.message, ready.observed_generation) == ("False", reason, "not now", 3)


def test_status_is_ready_without_synced_after_complete_pass(summary: Summary) -> None:
    synced_condition = {
        "type": SYNCED,
        "status": "False",
        "reason": "TimedOut",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    status = summary.status(look(status={"conditions": [synced_condition]}, **published()))
    assert (status.phase, status.endpoint, status.observed_generation) == ("Ready", _URL, 3)
    assert [(condition.type, condition.status, condition.reason) for condition in status.conditions] == [
        ("Ready", "True", "Reconciled")
    ]


def test_summary_names_webhooks_on_leases_until_a_pass_finds_none(summary: Summary) -> None:
    guard = Guard(kind="ValidatingWebhookConfiguration", configuration="guard", webhook="guard.example.com")

    def passed(guards: tuple[Guard, ...] | None, *conditions: Condition) -> list[Condition]:
        results = published() | {"credentials": SimpleNamespace(incomplete=None, lease_guards=guards)}
        stored_conditions = [condition.model_dump(mode="json", by_alias=True) for condition in conditions]
        return summary.status(look(status={**_PUBLISHED, "conditions": stored_conditions}, **results)).conditions

    conditions = passed((guard,))
    unguarded = find_condition(conditions, "LeasesUnguarded")
    assert unguarded is not None
    assert (unguarded.status, unguarded.reason) == ("False", "WebhooksOnLeases")
    assert "webhook 'guard.example.com' of ValidatingWebhookConfiguration guard" in unguarded.message
    # A pass without a check keeps the condition.
    assert find_condition(passed(None, *conditions), "LeasesUnguarded") == unguarded
    assert find_condition(passed((), *conditions), "LeasesUnguarded") is None


def test_status_keeps_publishing_while_user_action_is_needed(summary: Summary) -> None:
    role = ConditionError(Reason.ROLE_NOT_FOUND, "no such role")
    results = published() | {"credentials": SimpleNamespace(incomplete=role, lease_guards=None)}
    status = summary.status(look(status=_PUBLISHED, **results))
    assert (status.phase, status.conditions[0].reason) == ("Failed", "RoleNotFound")
    refusal = ConditionError(Reason.ENDPOINT_INVALID, "another one's")
    status = summary.status(look(status={"endpoint": "https://old"}, failure=refusal, **published()))
    assert (status.phase, status.endpoint, status.conditions[0].reason) == ("Failed", _URL, "EndpointInvalid")


@pytest.mark.parametrize("again", [Result(60.0), None])
def test_next_keeps_requeue_while_user_action_is_needed(
    reconciler: ControlPlaneReconciler, monkeypatch: pytest.MonkeyPatch, again: Result | None
) -> None:
    metrics = SimpleNamespace(condition_failed=lambda *_, **__: None)
    monkeypatch.setattr(reconciler._context, "metrics", metrics, raising=False)
    failure = ConditionError(Reason.NO_GATEWAY_DOMAIN, "no domain")
    assert reconciler._next(("", "acme"), look(failure=failure, again=again)) == again


def test_incomplete_setup_of_a_published_control_plane_is_counted(
    reconciler: ControlPlaneReconciler, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = Metrics()
    monkeypatch.setattr(reconciler._context, "metrics", metrics, raising=False)
    role = ConditionError(Reason.ROLE_NOT_FOUND, "no such role")
    results = published() | {"credentials": SimpleNamespace(incomplete=role, lease_guards=None)}
    assert reconciler._next(("", "acme"), look(status=_PUBLISHED, again=Result(60.0), **results)) == Result(60.0)
    counted = metrics.registry.get_sample_value(
        "kplane_reconcile_failures_total", {"controller": "controlplane", "reason": "RoleNotFound"}
    )
    assert counted == 1.0


def test_failure_before_first_publication_is_counted_once_it_lasts(
    reconciler: ControlPlaneReconciler, summary: Summary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The phase stays Provisioning. The reason names the failure, because each change of the reason posts an Event."""
    metrics, clock, key = Metrics(), iter((0.0, 1.0, 5.0, 20.0)), ("", "acme")
    monkeypatch.setattr(reconciler._context, "metrics", metrics, raising=False)
    monkeypatch.setattr(reconciler, "_first_tries", FirstTries(clock=lambda: next(clock)))
    seen = []
    for _ in range(4):
        current_pass = look(failure=ConditionError(Reason.ETCD_UNAVAILABLE, "etcd: no space left on device"))
        reconciler._judge(key, current_pass)
        status = summary.status(current_pass)
        reconciler._next(key, current_pass)
        counted = metrics.registry.get_sample_value(
            "kplane_reconcile_failures_total", {"controller": "controlplane", "reason": "EtcdUnavailable"}
        )
        seen.append((status.phase, status.conditions[0].reason, status.conditions[0].message, counted))
    message = "etcd: no space left on device"
    waits = ("Provisioning", "Provisioning", message, None)
    assert seen == [waits] * 3 + [("Provisioning", "EtcdUnavailable", message, 1.0)]


def test_lasting_bootstrap_failure_is_reported_after_three_tries(
    reconciler: ControlPlaneReconciler, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter((0.0, 1.0, 5.0, 20.0))
    monkeypatch.setattr(reconciler, "_first_tries", FirstTries(clock=lambda: next(clock)))
    provision, identity = published()["provision"], cast("Any", None)
    seen = []
    for _ in range(4):
        refusal = ConditionError(Reason.BOOTSTRAP_FAILED, "answered 500")
        credentials = Credentials(identity, identity, "v1.36.3", incomplete=refusal)
        current_pass = look(status=_PUBLISHED, provision=provision, credentials=credentials, published=_PUBLISHED)
        reconciler._judge(("", "acme"), current_pass)
        seen.append(current_pass.ready[0])
    assert seen == [Reason.BOOTSTRAPPING] * 3 + [Reason.BOOTSTRAP_FAILED]


async def test_deletion_of_admission_makes_same_pass_check_leases_again(
    reconciler: ControlPlaneReconciler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deletion removes the annotation, so a later pass cannot know that the verified state is out of date."""
    current_pass = look()
    value = "ValidatingWebhookConfiguration/leases"
    current_pass.control_plane.metadata.annotations[DELETE_ADMISSION_ANNOTATION] = value
    monkeypatch.setattr(reconciler._context, "connections", None, raising=False)
    monkeypatch.setattr("kplane.controlplane_operator.controlplanes.reconciler.delete_named", _without_annotation)
    reconciler._issuer._verified["1"] = cast("Any", "verified")
    await reconciler._delete_admission(current_pass, published()["provision"])
    assert reconciler._issuer._verified == {}


async def _without_annotation(_: Any, control_plane: ControlPlane, __: Any) -> ControlPlane:
    metadata = control_plane.metadata.model_copy(update={"annotations": {}})
    return control_plane.model_copy(update={"metadata": metadata})


async def test_host_name_class_without_domain_keeps_published_address(
    reconciler: ControlPlaneReconciler, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = Gateway(url="https://api.example.org", ca=b"", namespace="kplane-gateway")
    by_path = gateway.address("acme")
    current_pass = look(status={"endpoint": _URL, "endpoints": [{"type": "External", "url": by_path}]})
    control_plane_class = ControlPlaneClass.model_validate(
        {"metadata": {"name": "gold"}, "spec": {"endpointStyle": "HostName"}}
    )
    current_pass.followed = ClassInForce(control_plane_class)
    provision = Provision(Addresses(_URL, _URL, _URL), ClusterConfig(server=_URL), authorities=cast("Any", "some"))
    monkeypatch.setattr(reconciler._sleeper, "hibernate", AsyncMock(return_value=provision))
    monkeypatch.setattr(reconciler._claims, "confirm", Mock(), raising=False)
    monkeypatch.setattr(reconciler._context, "gateway", gateway, raising=False)
    published_provision = await reconciler._backend(current_pass, cast("Any", None), decision=cast("Any", None))
    assert published_provision.addresses == Addresses(_URL, by_path, _URL)
    assert current_pass.failure is not None
    assert current_pass.failure.reason is Reason.NO_GATEWAY_DOMAIN
