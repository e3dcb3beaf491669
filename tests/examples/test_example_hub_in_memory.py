"""The reconcilers of the example of a hub, with clusters in memory."""

from __future__ import annotations

import pytest
import yaml

from examples.hub.rollouts import COPY, ROLLOUTS, Rollouts, Taken
from kplane.provider import Client, Request
from kplane.provider.client.resources import CONFIG_MAPS, SECRETS
from kplane.provider.objects import or_none
from kplane.provider.testing import FakeCluster

from .conftest import EXAMPLES

COPIED = Request("away", "default", "settings")
SUMMARY = Request("", "default", "settings")


@pytest.fixture
async def hub():
    hub = FakeCluster("hub", kinds=[ROLLOUTS])
    body = yaml.safe_load((EXAMPLES / "hub" / "rollout.yaml").read_text())
    await hub.client.create(ROLLOUTS, body, namespace="default")
    await hub.client.create(SECRETS, {"metadata": {"name": "away", "labels": {"stage": "prod"}}}, namespace="default")
    yield hub
    await hub.aclose()


@pytest.fixture
async def away():
    away = FakeCluster("away")
    yield away
    await away.aclose()


async def status(hub):
    return (await hub.client.get(ROLLOUTS, COPIED)).get("status", {})


async def test_a_copy_is_made_reported_and_then_left_alone(hub, away, monkeypatch):
    rollouts = Rollouts(hub, namespace="default")
    await rollouts.reconcile_copy(COPIED, away)
    await rollouts.reconcile_summary(SUMMARY)
    copied = await away.client.get(CONFIG_MAPS, COPIED)
    assert (copied["data"], copied["metadata"]["labels"]) == ({"greeting": "hello"}, COPY)
    found = await status(hub)
    assert (found["applied"], found["members"][0]["conditions"][0]["reason"]) == ("1/1", "Applied")

    async def refuse(self, method, path, **given):
        raise AssertionError(f"{method} {path}")

    monkeypatch.setattr(Client, "request", refuse)
    await rollouts.reconcile_copy(COPIED, away)
    await rollouts.reconcile_summary(SUMMARY)


async def test_a_configmap_of_others_is_reported_as_taken(hub, away):
    await away.client.create(CONFIG_MAPS, {"metadata": {"name": "settings"}, "data": {"a": "1"}}, namespace="default")
    rollouts = Rollouts(hub, namespace="default")
    with pytest.raises(Taken):
        await rollouts.reconcile_copy(COPIED, away)
    found = (await status(hub))["members"][0]["conditions"][0]
    assert (found["status"], found["reason"]) == ("False", "Taken")
    assert (await away.client.get(CONFIG_MAPS, COPIED))["data"] == {"a": "1"}


async def test_a_copy_goes_with_its_rollout(hub, away):
    rollouts = Rollouts(hub, namespace="default")
    await rollouts.reconcile_copy(COPIED, away)
    await hub.client.delete(ROLLOUTS, COPIED)
    await rollouts.reconcile_copy(COPIED, away)
    assert await or_none(away.client.get(CONFIG_MAPS, COPIED)) is None
