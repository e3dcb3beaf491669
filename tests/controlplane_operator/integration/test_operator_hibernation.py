"""Control planes that sleep and wake, with a real etcd and real API servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

import pytest
import pytest_asyncio

from kplane.api.names import SLEEP_REQUESTED_ANNOTATION, WAKE_REQUESTED_ANNOTATION, management_namespace
from kplane.components.names import apiserver_name
from kplane.controlplane_operator.backends.template_making import TemplateMaker
from kplane.controlplane_operator.errors import TemplateFailed
from kplane.controlplane_operator.hibernation import sleeper as sleepers
from kplane.controlplane_operator.kinds import CONTROL_PLANE_REGISTRATIONS, CONTROL_PLANES
from kplane.controlplane_operator.shared_etcd.keyspace import key_prefix
from kplane.controlplane_operator.watch import secrets
from kplane.data import Owner, is_copy
from kplane.provider import Client, Resource
from kplane.provider.client.resources import NAMESPACES, SECRETS

from .sleeping import ON_DEMAND, annotate, announce, answers, condition, now, wake

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

_CRON_JOBS = Resource("batch/v1", "CronJob", "cronjobs", namespaced=True)
_AUTOSCALERS = Resource("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", namespaced=True)


@pytest.fixture(scope="module", autouse=True)
def impatience() -> Iterator[None]:
    """Do not wait for a gateway, which is absent here, before API servers stop.

    Read Secrets of sleeping control planes every two seconds.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sleepers, "_HEARD_SECONDS", 0.1)
        patch.setattr(secrets, "_COMPARE_SECONDS", 2.0)
        patch.setattr(secrets, "_READ_SECONDS", 0.0)
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sleeper(field: Any) -> str:
    """Control plane with a registration, hibernated from its creation on."""
    await field.create("ControlPlane", "sleeper", **ON_DEMAND)
    await field.create(
        "ControlPlaneRegistration", "sleeper", controlPlaneRef={"name": "sleeper"}, services=["Controllers"]
    )
    await field.becomes("ControlPlane", "sleeper", "Hibernated")
    return "sleeper"


async def test_hibernated_control_plane_is_published_without_api_server(field: Any, sleeper: str) -> None:
    control_plane = await field.get("ControlPlane", sleeper)
    status = control_plane["status"]
    assert (status["phase"], condition(control_plane, "Ready")["status"]) == ("Hibernated", "True")
    assert condition(control_plane, "Hibernated")["status"] == "True"
    assert status["hibernation"]["reason"] == "NotUsedYet"
    assert status["hibernation"]["observedGeneration"] == control_plane["metadata"]["generation"]
    assert status["version"].startswith("v1.")
    assert status["storage"]["keys"] > 100, "known by the copy, so that it needs no second status"
    assert not (field.state / apiserver_name(sleeper) / "log").exists()
    assert not await answers(field, sleeper)
    assert (await field.tenant(sleeper)).token
    assert (await field.tenant(sleeper, secret="controllersSecretRef")).server == status["endpoint"]
    async with field.handle.tenants_etcd.client() as etcd:
        assert await is_copy(etcd, key_prefix(sleeper), owner=Owner(control_plane["metadata"]["uid"], sleeper))


async def test_hibernated_control_plane_is_neither_probed_nor_followed(field: Any, sleeper: str) -> None:
    registration = await field.becomes("ControlPlaneRegistration", sleeper, "Hibernated")
    assert not registration["status"].get("ready")
    assert "resolvedEndpoint" not in registration["status"]

    async def reachable() -> str:
        return await field.reason("ControlPlaneEndpoint", sleeper, "Reachable")

    await field.eventually(reachable, lambda found: found == "Hibernated")

    def followed() -> set[str]:
        return {task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("follow Secrets")}

    namespace = management_namespace(sleeper)
    await field.eventually(followed, lambda found: not any(name.endswith(f" in {namespace}") for name in found))
    assert any(name.endswith(" in kplane-system") for name in followed())


async def test_deleted_secret_of_hibernated_control_plane_is_restored(field: Any, sleeper: str) -> None:
    secret = (await field.get("ControlPlane", sleeper))["status"]["kubeconfigSecretRef"]
    namespace = {"namespace": secret["namespace"]}
    before = await field.client.get(SECRETS, secret["name"], **namespace)
    await field.client.delete(SECRETS, secret["name"], **namespace)

    async def uid() -> str:
        return str((await field.client.get(SECRETS, secret["name"], **namespace))["metadata"]["uid"])

    await field.eventually(uid, lambda found: found not in {"", before["metadata"]["uid"]})
    assert await field.reason("ControlPlane", sleeper) == "Hibernated"


async def test_wake_request_starts_control_plane_with_its_credentials(field: Any, sleeper: str) -> None:
    before = await field.get("ControlPlane", sleeper)
    config = await field.tenant(sleeper)
    stale = datetime.fromisoformat(before["status"]["hibernation"]["since"]) - timedelta(seconds=1)
    await annotate(field, sleeper, **{WAKE_REQUESTED_ANNOTATION: stale.isoformat()})
    assert await field.settles(lambda: field.reason("ControlPlane", sleeper), seconds=0.5) == "Hibernated"
    awake = await wake(field, sleeper)
    assert awake["status"]["phase"] == "Ready"
    assert "hibernation" not in awake["status"]
    assert awake["status"]["endpoint"] == before["status"]["endpoint"]
    assert (condition(awake, "Hibernated")["status"], condition(awake, "Hibernated")["reason"]) == ("False", "Awake")
    async with Client(config, field_manager="kplane") as client:
        assert (await client.list(NAMESPACES)).items
    assert (await field.tenant(sleeper)).token == config.token
    registration = await field.becomes("ControlPlaneRegistration", sleeper, "Resolved")
    assert registration["status"]["resolvedEndpoint"] == awake["status"]["endpoint"]


async def test_api_server_stops_only_after_the_instance_of_mcm(field: Any, sleeper: str) -> None:
    """The previous test woke the control plane."""
    uid = (await field.get("ControlPlane", sleeper))["metadata"]["uid"]
    config = await field.tenant(sleeper)
    await announce(field, sleeper, {"controlPlaneUID": uid, "services": ["Controllers"]})
    await annotate(field, sleeper, **{SLEEP_REQUESTED_ANNOTATION: now()})
    control_plane = await field.becomes("ControlPlane", sleeper, "FallingAsleep")
    assert (control_plane["status"]["phase"], control_plane["status"]["hibernation"]["reason"]) == (
        "Ready",
        "Requested",
    )
    await field.becomes("ControlPlaneRegistration", sleeper, "Hibernated")
    assert await field.settles(lambda: field.reason("ControlPlane", sleeper), seconds=0.5) == "FallingAsleep"
    assert await answers(field, sleeper)
    await announce(field, sleeper, None)
    control_plane = await field.becomes("ControlPlane", sleeper, "Hibernated")
    assert condition(control_plane, "Ready")["status"] == condition(control_plane, "Hibernated")["status"] == "True"
    assert not await answers(field, sleeper)
    assert (await field.tenant(sleeper)).token == config.token


async def test_control_plane_wakes_when_a_cron_job_is_due(field: Any, sleeper: str) -> None:
    config = await field.tenant(sleeper)
    job = {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}
    spec = {"schedule": "0 0 1 1 *", "timeZone": "UTC", "jobTemplate": {"spec": job}}
    await wake(field, sleeper)
    async with Client(config, field_manager="kplane") as client:
        await client.create(_CRON_JOBS, {"metadata": {"name": "yearly", "namespace": "default"}, "spec": spec})
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
        scales = {
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"maxReplicas": 2, "scaleTargetRef": target},
        }
        await client.create(_AUTOSCALERS, scales)
        await annotate(field, sleeper, **{SLEEP_REQUESTED_ANNOTATION: now()})

        async def told() -> str:
            return str(condition(await field.get("ControlPlane", sleeper), "Hibernated")["message"])

        await field.eventually(told, lambda said: "HorizontalPodAutoscaler default/web" in said)
        assert await field.reason("ControlPlane", sleeper) == "Reconciled"
        await client.delete(_AUTOSCALERS, "web", namespace="default")
    await annotate(field, sleeper, **{SLEEP_REQUESTED_ANNOTATION: now()})
    control_plane = await field.becomes("ControlPlane", sleeper, "Hibernated")
    year = datetime.now(UTC).year + 1
    assert control_plane["status"]["hibernation"]["nextWake"] == f"{year - 1}-12-31T23:59:50Z"
    due = control_plane["status"]["hibernation"] | {"nextWake": now()}
    await field.client.patch(CONTROL_PLANES, sleeper, {"status": {"hibernation": due}}, subresource="status")
    control_plane = await field.becomes("ControlPlane", sleeper, "Reconciled")
    assert "due" in condition(control_plane, "Hibernated")["message"]


async def test_wake_request_cancels_a_sleep_in_progress(field: Any, sleeper: str) -> None:
    uid = (await wake(field, sleeper))["metadata"]["uid"]
    await announce(field, sleeper, {"controlPlaneUID": uid, "services": ["Controllers"]})
    await annotate(field, sleeper, **{SLEEP_REQUESTED_ANNOTATION: now()})
    await field.becomes("ControlPlane", sleeper, "FallingAsleep")
    control_plane = await wake(field, sleeper)
    assert "hibernation" not in control_plane["status"]
    assert await answers(field, sleeper)
    await field.becomes("ControlPlaneRegistration", sleeper, "Resolved")
    await announce(field, sleeper, None)


async def test_start_always_in_spec_wakes_hibernated_control_plane(field: Any, sleeper: str) -> None:
    name = "edited"
    await field.create("ControlPlane", name, **ON_DEMAND)
    await field.becomes("ControlPlane", name, "Hibernated")
    await field.client.patch(CONTROL_PLANES, name, {"spec": {"virtual": {"start": "Always"}}})
    control_plane = await field.becomes("ControlPlane", name, "Reconciled")
    assert "Always" in condition(control_plane, "Hibernated")["message"]
    await field.client.delete(CONTROL_PLANES, name)
    await field.gone(CONTROL_PLANES, name)


async def test_deletion_of_hibernated_control_plane_deletes_its_data(field: Any, sleeper: str) -> None:
    name = "never-woken"
    await field.create("ControlPlane", name, **ON_DEMAND)
    await field.becomes("ControlPlane", name, "Hibernated")
    await field.client.delete(CONTROL_PLANES, name)
    await field.gone(CONTROL_PLANES, name)
    async with field.handle.tenants_etcd.client() as etcd:
        assert await etcd.count(key_prefix(name)) == 0


@pytest.fixture
def without_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any, **__: Any) -> NoReturn:
        raise TemplateFailed("the test says so")

    monkeypatch.setattr(TemplateMaker, "make", fail)


@pytest.mark.slow
@pytest.mark.usefixtures("without_templates")
async def test_control_plane_without_template_is_bootstrapped_then_sleeps(field: Any, sleeper: str) -> None:
    name = "bootstrapped"
    settings = {"serviceCIDR": "10.96.0.0/18"}
    await field.create("ControlPlaneClass", name, apiServer=settings, virtual={"start": "OnDemand"})
    await field.create("ControlPlane", name, classRef={"name": name}, deletionPolicy="Destroy")
    control_plane = await field.becomes("ControlPlane", name, "Hibernated")
    assert control_plane["status"]["hibernation"]["reason"] == "NotUsedYet"
    assert (field.state / apiserver_name(name) / "log").exists()
    assert not await answers(field, name)
    assert (await field.tenant(name)).token


@pytest.mark.slow
@pytest.mark.usefixtures("without_templates")
async def test_control_plane_with_own_token_audience_stays_awake(field: Any, sleeper: str) -> None:
    name = "own-audience"
    settings = {"extraArgs": ["--api-audiences=acme"]}
    await field.create("ControlPlaneClass", name, apiServer=settings, virtual={"start": "OnDemand"})
    await field.create("ControlPlane", name, classRef={"name": name}, deletionPolicy="Destroy")

    async def told() -> str:
        return await field.reason("ControlPlane", name, "Hibernated")

    await field.eventually(told, lambda reason: reason == "KeptAwake", timeout=60.0)
    control_plane = await field.becomes("ControlPlane", name, "Reconciled")
    assert "hibernation" not in control_plane["status"]
    assert await answers(field, name)
    assert "only its API server can issue" in condition(control_plane, "Hibernated")["message"]


async def _twins(field: Any, control_plane: str) -> tuple[str, str]:
    """Register a control plane twice in the same second. Returns the served registration, then the refused one.

    The refused one has the lower uid, which decides unless the other one keeps the service.
    """
    spec = {"controlPlaneRef": {"name": control_plane}, "services": ["Controllers"]}
    for attempt in range(60):
        served, refused = f"{control_plane}-served-{attempt}", f"{control_plane}-refused-{attempt}"
        first = (await field.create("ControlPlaneRegistration", served, **spec))["metadata"]
        await field.becomes("ControlPlaneRegistration", served, "Resolved")
        second = (await field.create("ControlPlaneRegistration", refused, **spec))["metadata"]
        if first["creationTimestamp"] == second["creationTimestamp"] and second["uid"] < first["uid"]:
            await field.becomes("ControlPlaneRegistration", refused, "ServiceTaken")
            return served, refused
        for name in (refused, served):
            await field.client.delete(CONTROL_PLANE_REGISTRATIONS, name)
            await field.gone(CONTROL_PLANE_REGISTRATIONS, name)
    raise AssertionError("no two registrations were created in the same second in 60 attempts")


async def test_served_registration_of_same_second_keeps_service_over_sleep(field: Any) -> None:
    name = "twins"
    await field.create("ControlPlane", name, **ON_DEMAND)
    await field.becomes("ControlPlane", name, "Hibernated")
    await wake(field, name)
    served, refused = await _twins(field, name)
    for _ in range(2):
        await annotate(field, name, **{SLEEP_REQUESTED_ANNOTATION: now()})
        await field.becomes("ControlPlane", name, "Hibernated")
        await field.becomes("ControlPlaneRegistration", served, "Hibernated")
        assert await field.reason("ControlPlaneRegistration", refused) == "ServiceTaken"
        await wake(field, name)
        await field.becomes("ControlPlaneRegistration", served, "Resolved")
        assert await field.reason("ControlPlaneRegistration", refused) == "ServiceTaken"
    for registration in (refused, served):
        await field.client.delete(CONTROL_PLANE_REGISTRATIONS, registration)
    await field.client.delete(CONTROL_PLANES, name)
