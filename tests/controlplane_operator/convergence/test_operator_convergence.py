"""After any history of user actions and faults, the state equals the state that a fresh operator produces.

The test compares the reached state with two fresh operators. A restarted operator finds the reached state, and has no
work left. An operator in a new world finds only the final specs of the users, and produces the same state from these
specs.

The operator runs on a real management cluster. Its control planes are that cluster itself, reached through an Envoy
that serves the cluster below every tenant's path, so that examples take seconds. The test counts the operator's writes.
Some writes are refused, lose their answer, or are the last write before a crash of the operator.
"""

from __future__ import annotations

import asyncio
import difflib
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from kplane.controlplane_operator.secret_access import DEFAULT_SECRETS_ROLE

from .conftest import Step, World, living

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]


def _reference(*names: str) -> st.SearchStrategy[dict[str, str]]:
    return st.sampled_from(names).map(lambda name: {"name": name})


CLASSES = st.fixed_dictionaries(
    {"deletionPolicy": st.sampled_from(["Retain", "Destroy"])},
    optional={
        "defaultServices": st.sampled_from([[], ["Controllers"]]),
        "auth": st.sampled_from([{"model": "token", "defaultRole": role} for role in ("cluster-admin", "no-such")]),
        "modesAllowed": st.just(["Dedicated"]),
    },
)
ENDPOINTS = st.sampled_from(["", "", "/clusters/@a/control-plane", "/clusters/nobody/control-plane"])
CONTROL_PLANE_SPECS = st.fixed_dictionaries(
    {"endpointRef": _reference("e", "f")},
    optional={"classRef": _reference("c", "d"), "deletionPolicy": st.sampled_from(["Retain", "Destroy"])},
)
REGISTRATION_SPECS = st.fixed_dictionaries(
    {"controlPlaneRef": _reference("a", "b"), "services": st.just(["Controllers"])},
    optional={"endpointRef": _reference("e", "f")},
)
STEPS: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.just("class"), st.sampled_from("cd"), st.none() | CLASSES),
    st.tuples(st.just("endpoint"), st.sampled_from("ef"), st.none() | ENDPOINTS),
    st.tuples(st.just("control plane"), st.sampled_from("ab"), st.none() | CONTROL_PLANE_SPECS),
    st.tuples(st.just("control plane"), st.sampled_from("ab"), CONTROL_PLANE_SPECS),
    st.tuples(st.just("registration"), st.sampled_from("abr"), st.none() | REGISTRATION_SPECS),
    st.tuples(st.sampled_from(["refused", "lost", "killed before", "killed after"]), st.integers(0, 12)),
    st.sampled_from([("restart",), ("kill",), ("rest",)]),
)

ALL = [
    ("endpoint", "e", ""),
    ("class", "c", {"deletionPolicy": "Destroy", "defaultServices": ["Controllers"]}),
    ("control plane", "a", {"endpointRef": {"name": "e"}, "classRef": {"name": "c"}}),
]


@example([*ALL, ("rest",), ("class", "c", None), ("kill",), ("control plane", "a", None)])
@example([("killed after", 3), *ALL, ("killed before", 2), ("rest",), ("endpoint", "e", None), ("lost", 0)])
@given(st.lists(STEPS, min_size=3, max_size=14))
@settings(
    max_examples=6,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_every_history_converges_to_state_of_fresh_operator(
    runner: asyncio.Runner, worlds: Iterator[World], steps: list[Step]
) -> None:
    async def play() -> None:
        async with living(next(worlds)) as world:
            for step in steps:
                await world.take(step)
            reached = await world.settled()
            await world.restart()
            fresh = await world.settled()
            difference = "\n".join(difflib.unified_diff(_lines(reached), _lines(fresh), "reached", "fresh", n=4))
            assert not difference, difference
            check(world, reached)
            await world.end()  # only one operator may run at a time
            async with living(next(worlds)) as another:
                desired = _renamed(reached, world.prefix, another.prefix)
                await another.make(desired)
                compare(desired, await another.settled())
            await world.start()

    runner.run(play())


def _renamed(found: dict[str, Any], former: str, prefix: str) -> dict[str, Any]:
    return dict(json.loads(json.dumps(found).replace(former, prefix)))


def _lines(found: dict[str, Any]) -> list[str]:
    return json.dumps(found, indent=1, sort_keys=True).splitlines()


def compare(reached: dict[str, Any], anew: dict[str, Any]) -> None:
    """Check that control planes and registrations have the same readiness with and without the history.

    Objects that are ready have the same status and Secrets as well. Objects that are not ready have the same reason
    only: a published control plane stays published even if its current spec would not lead there. Objects with
    condition ClassFound are skipped, because the operator remembers the settings of their former class. Of several
    registrations of a control plane the oldest is ready, and the new world may create another registration first.
    """
    served = Counter(
        obj["spec"]["controlPlaneRef"]["name"] for key, obj in reached.items() if key.startswith("registration ")
    )
    for key, obj in reached.items():
        if key.startswith("registration ") and served[obj["spec"]["controlPlaneRef"]["name"]] > 1:
            continue
        if not key.startswith(("control plane ", "registration ")) or obj["made by"] == "operator":
            continue
        status, fresh_status = obj["status"], anew[key]["status"]
        if "ClassFound" in {condition["type"] for condition in status["conditions"]}:
            continue
        assert _ready(status) == _ready(fresh_status), (key, status, fresh_status)
        if _ready(status)[0] == "True":
            assert _undated(status) == _undated(fresh_status), key
            for secret in (key for key in reached if key.startswith(f"Secret kplane-cp-{key.split()[-1]}/")):
                assert reached[secret] == anew[secret]


def _ready(status: dict[str, Any]) -> tuple[str, str]:
    ready = next(condition for condition in status["conditions"] if condition["type"] == "Ready")
    return ready["status"], ready["reason"]


def _undated(status: dict[str, Any]) -> dict[str, Any]:
    """Return a status without generations and without the uid of the control plane."""
    conditions = [{**condition, "observedGeneration": 0} for condition in status["conditions"]]
    return {**status, "conditions": conditions, "observedGeneration": 0, "controlPlaneUID": ""}


def check(world: World, reached: dict[str, Any]) -> None:
    """Check that deleted control planes leave no objects, and that published control planes lack no object."""
    control_planes = {
        key.removeprefix("control plane "): obj for key, obj in reached.items() if key.startswith("control plane ")
    }
    homes = {key.split("/")[1] for key in reached if key.startswith("Namespace ")}
    assert homes <= {f"kplane-cp-{name}" for name in control_planes}
    for name, obj in control_planes.items():
        if "endpoint" in obj["status"]:
            for suffix in ("kubeconfig", "controllers"):
                assert reached[f"Secret kplane-cp-{name}/controlplane-{name}-{suffix}"]["keys"]
    registrations = [obj for key, obj in reached.items() if key.startswith("registration ")]
    own = {f"RoleBinding {home}/{DEFAULT_SECRETS_ROLE}" for home in homes}
    assert own <= reached.keys()
    for kind in ("Role", "RoleBinding"):
        granted = [key for key in reached.keys() - own if key.startswith(f"{kind} ")]
        assert len(granted) == sum(obj["status"]["ready"] for obj in registrations)
    for obj in registrations:
        name = obj["spec"]["controlPlaneRef"]["name"]
        if obj["status"]["ready"]:
            assert obj["status"]["controlPlaneUID"], name
            assert "endpoint" in control_planes[name]["status"], name
