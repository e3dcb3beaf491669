"""Common summary of the instances of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import pytest

from kplane.mcm.describe.kinds import InstanceKind, instance_kinds
from kplane.mcm.fleet import Instances
from kplane.mcm.instance.lifecycle import Instance
from kplane.mcm.reasons import Reason
from kplane.mcm.serving.overview import Overview, State
from kplane.mcm.status.report import summarize
from kplane.provider import Cluster, ClusterConfig
from kplane.provider.fleet.clusters import Clusters
from kplane.workloads import ComponentState, Phase

RUNNING = Reason.INSTANCE_RUNNING


class Shown:
    """A fake instance with the attributes that a summary reads."""

    def __init__(self, service: InstanceKind, reason: Reason | None, message: str = "") -> None:
        self.kind, self.reason, self.message = service, reason, message


def both(controllers: Reason | None, scheduler: Reason | None, message: str = "") -> Any:
    return [Shown(InstanceKind.CONTROLLERS, controllers), Shown(InstanceKind.SCHEDULER, scheduler, message)]


@pytest.mark.parametrize(
    ("instances", "reason", "message"),
    [
        (both(RUNNING, RUNNING), RUNNING, "kube-controller-manager and kube-scheduler run"),
        (both(RUNNING, Reason.STARTING), Reason.STARTING, "kube-scheduler is starting"),
        (both(Reason.STARTING, RUNNING), Reason.STARTING, "kube-controller-manager is starting"),
        (both(Reason.STARTING, Reason.BACKOFF, "it ended"), Reason.BACKOFF, "kube-scheduler: it ended"),
        (both(RUNNING, Reason.BACKOFF, "it ended"), Reason.BACKOFF, "kube-scheduler: it ended"),
        ([Shown(InstanceKind.SCHEDULER, RUNNING)], RUNNING, "kube-scheduler runs"),
        ([Shown(InstanceKind.CONTROLLERS, RUNNING)], RUNNING, ""),
        ([Shown(InstanceKind.CONTROLLERS, Reason.BACKOFF, "it ended")], Reason.BACKOFF, "it ended"),
    ],
)
def test_summary_is_of_the_instance_furthest_from_running(
    instances: Sequence[Any], reason: Reason, message: str
) -> None:
    assert summarize(instances) == (reason, message)


def test_summary_is_none_if_an_instance_has_no_reason() -> None:
    assert summarize(both(RUNNING, None)) is summarize(both(None, Reason.BACKOFF)) is None


@pytest.mark.parametrize(("message", "shown"), [("", ""), ("not healthy", "kube-scheduler: not healthy")])
def test_overview_shows_the_instance_furthest_from_running(message: str, shown: str) -> None:
    cluster = Cluster("a", config=ClusterConfig(server="https://127.0.0.1:1", token="t"))
    state = ComponentState(name="a", phase=Phase.STARTING)
    common: dict[str, Any] = {"cluster": cluster, "process": state, "version": None, "exits": {}, "last_error": ""}
    common |= {"generation": 1, "described": None}
    controllers = Mock(Instance, kind=InstanceKind.CONTROLLERS, reason=RUNNING, message="", **common)
    scheduler = Mock(Instance, kind=InstanceKind.SCHEDULER, reason=Reason.STARTING, message=message, **common)
    instances = Mock(Instances, groups={"a": (controllers, scheduler)})
    [summary] = Overview(Clusters(awares=[]), instances=instances).summaries()
    assert (summary.state, summary.message) == (State.STARTING, shown)


@pytest.mark.parametrize(
    ("services", "found"),
    [
        ("Controllers", [InstanceKind.CONTROLLERS]),
        ("Scheduler,Controllers,Workloads", [InstanceKind.CONTROLLERS, InstanceKind.SCHEDULER]),
        ("scheduler", [InstanceKind.SCHEDULER]),
        ("", [InstanceKind.CONTROLLERS]),
    ],
)
def test_services_of_the_registration_choose_the_instances(services: str, found: list[InstanceKind]) -> None:
    config = ClusterConfig(server="https://127.0.0.1:1", token="t")
    assert list(instance_kinds(Cluster("a", config=config, attributes={"services": services}))) == found


def test_components_of_a_registration_have_distinct_names() -> None:
    for name in ("a", "a.b", "x" * 253):
        names = {service.component(name) for service in InstanceKind}
        assert len(names) == len(InstanceKind)
        assert all(len(component) <= 63 for component in names)
