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
from kplane.controlplane_operator.kinds import CONTROL_PLANES
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
    """Nothing here passes requests on, so that API servers need not wait until it has heard of a sleep.

    Secrets of those that sleep are read every two seconds.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sleepers, "_HEARD_SECONDS", 0.1)
        patch.setattr(secrets, "_COMPARE_SECONDS", 2.0)
        patch.setattr(secrets, "_READ_SECONDS", 0.0)
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sleeper(field: Any) -> str:
    """A control plane that was born asleep, with a registration."""
    await field.create("ControlPlane", "sleeper", **ON_DEMAND)
    await field.create(
        "ControlPlaneRegistration", "sleeper", controlPlaneRef={"name": "sleeper"}, services=["Controllers"]
    )
    await field.becomes("ControlPlane", "sleeper", "Hibernated")
    return "sleeper"


async def test_it_is_published_without_an_api_server(field: Any, sleeper: str) -> None:
    found = await field.get("ControlPlane", sleeper)
    status = found["status"]
    assert (status["phase"], condition(found, "Ready")["status"]) == ("Hibernated", "True")
    assert condition(found, "Hibernated")["status"] == "True"
    assert status["hibernation"]["reason"] == "NotUsedYet"
    assert status["hibernation"]["observedGeneration"] == found["metadata"]["generation"]
    assert status["version"].startswith("v1.")
    assert status["storage"]["keys"] > 100, "known by the copy, so that it needs no second status"
    assert not (field.state / apiserver_name(sleeper) / "log").exists()
    assert not await answers(field, sleeper)
    assert (await field.tenant(sleeper)).token
    assert (await field.tenant(sleeper, secret="controllersSecretRef")).server == status["endpoint"]
    async with field.handle.tenants_etcd.client() as etcd:
        assert await is_copy(etcd, key_prefix(sleeper), owner=Owner(found["metadata"]["uid"], sleeper))


async def test_nothing_runs_for_it_and_nothing_looks_for_it(field: Any, sleeper: str) -> None:
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


async def test_a_secret_of_it_that_a_user_deletes_comes_back(field: Any, sleeper: str) -> None:
    secret = (await field.get("ControlPlane", sleeper))["status"]["kubeconfigSecretRef"]
    where = {"namespace": secret["namespace"]}
    before = await field.client.get(SECRETS, secret["name"], **where)
    await field.client.delete(SECRETS, secret["name"], **where)

    async def uid() -> str:
        return str((await field.client.get(SECRETS, secret["name"], **where))["metadata"]["uid"])

    await field.eventually(uid, lambda found: found not in {"", before["metadata"]["uid"]})
    assert await field.reason("ControlPlane", sleeper) == "Hibernated"


async def test_it_wakes_by_request_with_the_credentials_that_it_had(field: Any, sleeper: str) -> None:
    before = await field.get("ControlPlane", sleeper)
    config = await field.tenant(sleeper)
    stale = datetime.fromisoformat(before["status"]["hibernation"]["since"]) - timedelta(seconds=1)
    await annotate(field, sleeper, **{WAKE_REQUESTED_ANNOTATION: stale.isoformat()})
    assert await field.settles(lambda: field.reason("ControlPlane", sleeper), seconds=0.5) == "Hibernated"
    found = await wake(field, sleeper)
    assert found["status"]["phase"] == "Ready"
    assert "hibernation" not in found["status"]
    assert found["status"]["endpoint"] == before["status"]["endpoint"]
    assert (condition(found, "Hibernated")["status"], condition(found, "Hibernated")["reason"]) == ("False", "Awake")
    async with Client(config, field_manager="kplane") as client:
        assert (await client.list(NAMESPACES)).items
    assert (await field.tenant(sleeper)).token == config.token
    registration = await field.becomes("ControlPlaneRegistration", sleeper, "Resolved")
    assert registration["status"]["resolvedEndpoint"] == found["status"]["endpoint"]


async def test_its_api_server_ends_after_its_instance(field: Any, sleeper: str) -> None:
    """It was woken by the test before."""
    uid = (await field.get("ControlPlane", sleeper))["metadata"]["uid"]
    config = await field.tenant(sleeper)
    await announce(field, sleeper, {"controlPlaneUID": uid, "services": ["Controllers"]})
    await annotate(field, sleeper, **{SLEEP_REQUESTED_ANNOTATION: now()})
    found = await field.becomes("ControlPlane", sleeper, "FallingAsleep")
    assert (found["status"]["phase"], found["status"]["hibernation"]["reason"]) == ("Ready", "Requested")
    await field.becomes("ControlPlaneRegistration", sleeper, "Hibernated")
    assert await field.settles(lambda: field.reason("ControlPlane", sleeper), seconds=0.5) == "FallingAsleep"
    assert await answers(field, sleeper)
    await announce(field, sleeper, None)
    found = await field.becomes("ControlPlane", sleeper, "Hibernated")
    assert condition(found, "Ready")["status"] == condition(found, "Hibernated")["status"] == "True"
    assert not await answers(field, sleeper)
    assert (await field.tenant(sleeper)).token == config.token


async def test_it_wakes_by_itself_when_something_inside_is_due(field: Any, sleeper: str) -> None:
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
    found = await field.becomes("ControlPlane", sleeper, "Hibernated")
    year = datetime.now(UTC).year + 1
    assert found["status"]["hibernation"]["nextWake"] == f"{year - 1}-12-31T23:59:50Z"
    due = found["status"]["hibernation"] | {"nextWake": now()}
    await field.client.patch(CONTROL_PLANES, sleeper, {"status": {"hibernation": due}}, subresource="status")
    found = await field.becomes("ControlPlane", sleeper, "Reconciled")
    assert "due" in condition(found, "Hibernated")["message"]


async def test_one_that_falls_asleep_is_woken_before_its_api_server_ended(field: Any, sleeper: str) -> None:
    uid = (await wake(field, sleeper))["metadata"]["uid"]
    await announce(field, sleeper, {"controlPlaneUID": uid, "services": ["Controllers"]})
    await annotate(field, sleeper, **{SLEEP_REQUESTED_ANNOTATION: now()})
    await field.becomes("ControlPlane", sleeper, "FallingAsleep")
    found = await wake(field, sleeper)
    assert "hibernation" not in found["status"]
    assert await answers(field, sleeper)
    await field.becomes("ControlPlaneRegistration", sleeper, "Resolved")
    await announce(field, sleeper, None)


async def test_a_change_of_its_spec_wakes_it(field: Any, sleeper: str) -> None:
    name = "edited"
    await field.create("ControlPlane", name, **ON_DEMAND)
    await field.becomes("ControlPlane", name, "Hibernated")
    await field.client.patch(CONTROL_PLANES, name, {"spec": {"virtual": {"start": "Always"}}})
    found = await field.becomes("ControlPlane", name, "Reconciled")
    assert "Always" in condition(found, "Hibernated")["message"]
    await field.client.delete(CONTROL_PLANES, name)
    await field.gone(CONTROL_PLANES, name)


async def test_one_that_sleeps_is_deleted_with_its_data(field: Any, sleeper: str) -> None:
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
async def test_one_without_a_template_is_bootstrapped_and_then_sleeps(field: Any, sleeper: str) -> None:
    name = "bootstrapped"
    settings = {"serviceCIDR": "10.96.0.0/18"}
    await field.create("ControlPlaneClass", name, apiServer=settings, virtual={"start": "OnDemand"})
    await field.create("ControlPlane", name, classRef={"name": name}, deletionPolicy="Destroy")
    found = await field.becomes("ControlPlane", name, "Hibernated")
    assert found["status"]["hibernation"]["reason"] == "NotUsedYet"
    assert (field.state / apiserver_name(name) / "log").exists()
    assert not await answers(field, name)
    assert (await field.tenant(name)).token


@pytest.mark.slow
@pytest.mark.usefixtures("without_templates")
async def test_one_whose_tokens_only_its_api_server_can_issue_stays_awake(field: Any, sleeper: str) -> None:
    name = "own-audience"
    settings = {"extraArgs": ["--api-audiences=acme"]}
    await field.create("ControlPlaneClass", name, apiServer=settings, virtual={"start": "OnDemand"})
    await field.create("ControlPlane", name, classRef={"name": name}, deletionPolicy="Destroy")

    async def told() -> str:
        return await field.reason("ControlPlane", name, "Hibernated")

    await field.eventually(told, lambda reason: reason == "KeptAwake", timeout=60.0)
    found = await field.becomes("ControlPlane", name, "Reconciled")
    assert "hibernation" not in found["status"]
    assert await answers(field, name)
    assert "only its API server can issue" in condition(found, "Hibernated")["message"]
