"""What a control plane's API server is to be: which versions are refused, who decides, and what resources it gets."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from kplane.api import ControlPlane, ControlPlaneClass, KubernetesVersion, quantity
from kplane.controlplane_operator.backends.base import VersionLag
from kplane.controlplane_operator.backends.versions import (
    OLDEST,
    ApiServerPlan,
    ApiServerPlanner,
    not_held_to,
    resources_of,
    why_not,
)
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.kinds import CONTROL_PLANE_CLASSES
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.watch.stores import Stores
from kplane.provider import Client, ClusterConfig
from kplane.workloads import ComponentState, Phase, Resources
from kplane.workloads.pods import Image, PodRuntime, PodSettings

_SOME = st.builds(KubernetesVersion, st.just(1), st.integers(30, 42), st.integers(0, 12))


def version(text: str) -> KubernetesVersion:
    found = KubernetesVersion.parse(text)
    assert found is not None
    return found


class Pods(PodRuntime):
    """The answers of a cluster; `present` is the image that the API server has, and None that there is none."""

    def __init__(self, image: str, *, present: str | None = None, phase: Phase = Phase.READY) -> None:
        settings = PodSettings(images={"kube-apiserver": Image(image)}, ports={})
        client = Client(ClusterConfig("https://127.0.0.1:1"), field_manager="kplane")
        super().__init__(client, place=None, settings=settings)  # type: ignore[arg-type]
        self._present = Image(present) if present is not None else None
        self._phase = phase

    @override
    def state(self, name: str) -> ComponentState:
        if self._present is None:
            return ComponentState(name=name, phase=Phase.ABSENT)
        return ComponentState(name=name, phase=self._phase, version=self._present.version)


REPOSITORY = "registry.example/kube-apiserver"


def pods(tag: str, *, present: str | None = None) -> Pods:
    return Pods(f"{REPOSITORY}:{tag}", present=f"{REPOSITORY}:{present}" if present is not None else None)


class Processes:
    """The answers of a machine with one version."""

    runs_pods = False

    async def version(self, program: str) -> str | None:
        return "1.36.3"

    async def lacks(self, program: str, *, version: str) -> str | None:
        return None if version == "1.36.3" else f"{program} is here in version 1.36.3 only"

    def state(self, name: str) -> ComponentState:
        return ComponentState(name=name, phase=Phase.READY)


def control_plane(*, running: str | None = None, **spec: Any) -> ControlPlane:
    status = {"version": running, "endpoint": "https://a:6443"} if running is not None else {}
    return ControlPlane.model_validate({"metadata": {"name": "a"}, "spec": spec, "status": status})


def class_of(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "c", "resourceVersion": "1"}, "spec": spec}


async def plan(runtime: Any, wanted: ControlPlane, *, chosen: dict[str, Any] | None = None) -> ApiServerPlan:
    stores = Stores()
    if chosen is not None:
        stores.classes.apply({**chosen, "kind": CONTROL_PLANE_CLASSES.kind})
    context = OperatorContext(**{**dict.fromkeys(OperatorContext.__dataclass_fields__), "stores": stores})
    return await ApiServerPlanner(context, runtime=runtime).plan(wanted)


@pytest.mark.parametrize(
    ("wanted", "running", "sentence"),
    [
        ("1.36.3", None, None),
        ("1.36.3", "1.36.3", None),
        ("1.36.4", "1.36.3", None),
        ("1.37.0", "1.36.3", None),
        ("1.38.0", "1.36.3", "skips a minor version: 1.36.3 runs, and after it comes 1.37"),
        ("2.0.0", "1.36.3", "skips a minor version"),
        ("1.35.9", "1.36.3", "is older than 1.36.3, which runs"),
        ("1.36.2", "1.36.3", "is older than 1.36.3, which runs"),
        ("1.33.9", None, f"is older than {OLDEST}, which kplane needs"),
    ],
)
def test_which_versions_are_refused(wanted: str, running: str | None, sentence: str | None) -> None:
    refused = why_not(version(wanted), running=version(running) if running else None)
    assert (refused is None) if sentence is None else (refused is not None and sentence in refused)


@given(_SOME, _SOME)
def test_what_is_let_pass_never_goes_back_and_never_skips(
    wanted: KubernetesVersion, running: KubernetesVersion
) -> None:
    if why_not(wanted, running=running) is None:
        assert wanted >= running
        assert wanted.minors_after(running) in {0, 1}
    if why_not(wanted, running=running, patches_back=True) is None:
        assert wanted.minors_after(running) in {0, 1}


async def test_the_control_plane_goes_before_its_class_and_that_before_the_operator() -> None:
    runtime = pods("v1.36.3")
    reference = {"classRef": {"name": "c"}}
    assert (await plan(runtime, control_plane())).version is None
    assert (await plan(runtime, control_plane(**reference), chosen=class_of(version="1.36.5"))).version == "1.36.5"
    both = control_plane(version="v1.37.1", **reference)
    assert (await plan(runtime, both, chosen=class_of(version="1.36.5"))).version == "1.37.1"
    # Not another image where only the tag's form differs.
    assert (await plan(pods("1.36.3"), control_plane(version="1.36.3"))).version is None


@pytest.mark.parametrize("wanted", ["1.35.0", "1.36.2", "1.38.0"])
async def test_a_refused_version_leaves_what_runs(wanted: str) -> None:
    runtime = pods("v1.36.1", present="v1.36.3")
    found = await plan(runtime, control_plane(running="v1.36.3", version=wanted))
    assert found.version == "1.36.3"
    assert found.asked is None
    assert found.refused is not None
    assert found.refused.reason == "VersionNotAllowed"
    assert found.lag(ComponentState(name="a", phase=Phase.READY, rolling=True)) == found.refused


async def test_a_refused_version_leaves_also_what_is_on_its_way_and_an_image_without_number() -> None:
    wanted = control_plane(running="v1.36.3", version="1.35.0")
    assert (await plan(pods("v1.36.3", present="v1.37.0"), wanted)).version == "1.37.0"
    assert (await plan(pods("stable", present="stable"), wanted)).version is None
    # Somebody has deleted it: what it was is what wrote the data.
    assert (await plan(pods("v1.37.0"), wanted)).version == "1.36.3"


async def test_a_default_that_skips_a_version_or_goes_back_one_leaves_what_runs() -> None:
    for default in ("v1.35.7", "v1.38.0"):
        found = await plan(pods(default, present="v1.36.3"), control_plane(running="v1.36.3"))
        assert found.version == "1.36.3"
        assert found.refused is not None
        assert "the operator's default is refused" in found.refused.message
    for default, present in (
        ("v1.36.2", "v1.36.3"),  # as `helm rollback` does: no minor version is lost by it
        ("stable", "v1.36.3"),
        ("v1.38.0", "stable"),
        ("2.0.1", "2.0.0"),  # a numbering of its own
        ("2.0.1", "2.0.1"),
    ):
        found = await plan(pods(default, present=present), control_plane(running="v1.36.3"))
        assert (found.version, found.refused) == (None, None), default


async def test_one_that_was_stopped_is_not_skipped_over_either() -> None:
    runtime = Pods(f"{REPOSITORY}:v1.38.0", present=f"{REPOSITORY}:v1.36.3", phase=Phase.ABSENT)
    assert (await plan(runtime, control_plane(running="v1.36.3"))).version == "1.36.3"


async def test_an_image_by_digest_has_no_other_version() -> None:
    runtime = Pods(f"{REPOSITORY}@sha256:{'a' * 64}", present=f"{REPOSITORY}@sha256:{'a' * 64}")
    with pytest.raises(ConditionError, match="named by its digest") as refused:
        await plan(runtime, control_plane(version="1.36.3"))
    assert refused.value.reason == "VersionNotAvailable"
    found = await plan(runtime, control_plane(running="v1.36.3", version="1.36.4"))
    assert found.version is None
    assert found.refused is not None
    assert "named by its digest" in found.refused.message


async def test_processes_have_the_version_of_the_program_only() -> None:
    assert (await plan(Processes(), control_plane(version="1.36.3"))).version is None
    with pytest.raises(
        ConditionError, match=r"1\.36\.4 cannot be had: kube-apiserver is here in version 1\.36\.3 only"
    ):
        await plan(Processes(), control_plane(version="1.36.4"))
    # The program was replaced by one that skips a version, and there is no other one to run.
    found = await plan(Processes(), control_plane(running="v1.34.0"))
    assert (found.version, found.refused) == (None, None)


def test_a_replacement_is_told_with_what_is_in_its_way() -> None:
    found = ApiServerPlan(None, resources_of(control_plane(), chosen=None))
    assert found.lag(ComponentState(name="a", phase=Phase.READY)) is None
    lag = found.lag(ComponentState(name="a", phase=Phase.READY, rolling=True, message="pod x: ErrImagePull"))
    assert lag == VersionLag(
        "RollingOut",
        "the next kube-apiserver is not ready yet, and the one before it serves on; in its way: pod x: ErrImagePull",
    )


def test_a_change_that_failed_is_told_with_the_words_of_the_program() -> None:
    found = ApiServerPlan(None, resources_of(control_plane(), chosen=None))
    state = ComponentState(name="a", phase=Phase.READY, rolling=True, failing=True, message="unknown flag: --x")
    lag = found.lag(state)
    assert lag is not None
    assert lag.reason == "ChangeFailed"
    assert lag.message.endswith("correct the change in the class or in spec: unknown flag: --x")


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        (None, ("100m", "256Mi", None, "2Gi")),
        ({}, ("100m", "256Mi", None, "2Gi")),
        ({"requests": {"cpu": "1"}}, ("1", "256Mi", None, "2Gi")),
        ({"requests": {"memory": "4Gi"}}, ("100m", "4Gi", None, "4Gi")),
        ({"limits": {"memory": "200Mi", "cpu": "50m"}}, ("50m", "200Mi", "50m", "200Mi")),
        ({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": 2, "memory": "3Gi"}}, ("1", "1Gi", "2", "3Gi")),
    ],
)
def test_defaults_give_way_to_what_is_set(resources: Any, expected: tuple[str | None, ...]) -> None:
    spec = {} if resources is None else {"resources": resources}
    found = resources_of(control_plane(**spec), chosen=None)
    assert (found.cpu_request, found.memory_request, found.cpu_limit, found.memory_limit) == expected


def test_resources_of_a_control_plane_stand_in_the_place_of_those_of_its_class() -> None:
    chosen = ControlPlaneClass.model_validate(class_of(resources={"requests": {"memory": "3Gi"}}))
    assert resources_of(control_plane(), chosen=chosen).memory_request == "3Gi"
    own = control_plane(resources={"limits": {"memory": "1Gi"}})
    assert resources_of(own, chosen=chosen) == Resources(cpu_request="100m", memory_request="256Mi", memory_limit="1Gi")


_AMOUNTS = st.none() | st.integers(1, 5000).map(lambda number: f"{number}Mi")


@given(_AMOUNTS, _AMOUNTS)
def test_no_request_exceeds_its_limit(request_: str | None, limit: str | None) -> None:
    if request_ and limit and quantity(request_) > quantity(limit):
        request_, limit = limit, request_
    given_ = {"requests": {"memory": request_} if request_ else {}, "limits": {"memory": limit} if limit else {}}
    found = resources_of(control_plane(resources=given_), chosen=None)
    assert quantity(found.memory_request) <= quantity(found.memory_limit)


def test_what_has_no_effect_is_told_only_where_somebody_set_it() -> None:
    destinations = [{"cidr": "10.0.0.0/8", "ports": [443]}]
    chosen = ControlPlaneClass.model_validate(
        class_of(version="1.36.3", resources={"requests": {"cpu": "1"}}, allowedDestinations=destinations)
    )
    processes: Any = Processes()
    in_pods = pods("v1.36.3")
    assert not_held_to(control_plane(), chosen=None, runtime=processes) == []
    assert not_held_to(control_plane(), chosen=chosen, runtime=in_pods) == []
    assert "runs API servers as processes" in not_held_to(control_plane(), chosen=chosen, runtime=processes)[0]
    theirs = control_plane(endpointRef={"name": "e"})
    [told] = not_held_to(theirs, chosen=chosen, runtime=in_pods)
    assert told.startswith("version and resources and allowedDestinations of ControlPlaneClass c are not acted on")


def test_limits_do_not_count_where_the_gateway_sees_no_requests() -> None:
    limits = {"requestsPerSecond": 50}
    chosen = ControlPlaneClass.model_validate({"metadata": {"name": "c"}, "spec": {"limits": limits}})
    runtime: Any = pods("v1.36.3")
    assert not_held_to(control_plane(), chosen=chosen, runtime=runtime) == []
    [told] = not_held_to(control_plane(endpointStyle="HostName"), chosen=chosen, runtime=runtime)
    assert told.startswith("limits of ControlPlaneClass c are not acted on")


def test_a_style_of_the_gateway_does_not_count_without_it() -> None:
    runtime: Any = pods("v1.36.3")
    own = ControlPlaneClass.model_validate({"metadata": {"name": "c"}, "spec": {"endpointPolicy": "Own"}})
    styled = control_plane(endpointStyle="HostName")
    [told] = not_held_to(styled, chosen=own, runtime=runtime)
    assert told.startswith("spec.endpointStyle has no effect")
    assert not_held_to(styled, chosen=None, runtime=runtime) == []
