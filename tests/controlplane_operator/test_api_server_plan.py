"""Plan of a control plane's API server: its version, refused versions, resources, and settings without effect."""

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
    parsed = KubernetesVersion.parse(text)
    assert parsed is not None
    return parsed


class Pods(PodRuntime):
    """Runtime of a cluster. `present` is the image of the API server; None: no API server exists."""

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
    """Runtime of a machine with kube-apiserver 1.36.3 only."""

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
def test_why_not_refuses_skipped_minors_downgrades_and_old_versions(
    wanted: str, running: str | None, sentence: str | None
) -> None:
    refused = why_not(version(wanted), running=version(running) if running else None)
    assert (refused is None) if sentence is None else (refused is not None and sentence in refused)


@given(_SOME, _SOME)
def test_why_not_allows_no_downgrade_and_no_skipped_minor(
    wanted: KubernetesVersion, running: KubernetesVersion
) -> None:
    if why_not(wanted, running=running) is None:
        assert wanted >= running
        assert wanted.minors_after(running) in {0, 1}
    if why_not(wanted, running=running, patches_back=True) is None:
        assert wanted.minors_after(running) in {0, 1}


async def test_plan_prefers_version_of_spec_over_class_over_operator() -> None:
    runtime = pods("v1.36.3")
    reference = {"classRef": {"name": "c"}}
    assert (await plan(runtime, control_plane())).version is None
    assert (await plan(runtime, control_plane(**reference), chosen=class_of(version="1.36.5"))).version == "1.36.5"
    both = control_plane(version="v1.37.1", **reference)
    assert (await plan(runtime, both, chosen=class_of(version="1.36.5"))).version == "1.37.1"
    # The images are equal: only the form of the tag differs.
    assert (await plan(pods("1.36.3"), control_plane(version="1.36.3"))).version is None


@pytest.mark.parametrize("wanted", ["1.35.0", "1.36.2", "1.38.0"])
async def test_plan_keeps_running_version_when_version_of_spec_is_refused(wanted: str) -> None:
    runtime = pods("v1.36.1", present="v1.36.3")
    api_server_plan = await plan(runtime, control_plane(running="v1.36.3", version=wanted))
    assert api_server_plan.version == "1.36.3"
    assert api_server_plan.asked is None
    assert api_server_plan.refused is not None
    assert api_server_plan.refused.reason == "VersionNotAllowed"
    assert api_server_plan.lag(ComponentState(name="a", phase=Phase.READY, rolling=True)) == api_server_plan.refused


async def test_plan_with_refused_version_keeps_image_or_recorded_version() -> None:
    refused_control_plane = control_plane(running="v1.36.3", version="1.35.0")
    assert (await plan(pods("v1.36.3", present="v1.37.0"), refused_control_plane)).version == "1.37.0"
    assert (await plan(pods("stable", present="stable"), refused_control_plane)).version is None
    # The API server was deleted. Its recorded version wrote the data.
    assert (await plan(pods("v1.37.0"), refused_control_plane)).version == "1.36.3"


async def test_plan_refuses_default_that_skips_or_lowers_the_minor() -> None:
    for default in ("v1.35.7", "v1.38.0"):
        api_server_plan = await plan(pods(default, present="v1.36.3"), control_plane(running="v1.36.3"))
        assert api_server_plan.version == "1.36.3"
        assert api_server_plan.refused is not None
        assert "the operator's default is refused" in api_server_plan.refused.message
    for default, present in (
        ("v1.36.2", "v1.36.3"),  # as after `helm rollback`: the minor version stays
        ("stable", "v1.36.3"),
        ("v1.38.0", "stable"),
        ("2.0.1", "2.0.0"),  # image tags with another numbering
        ("2.0.1", "2.0.1"),
    ):
        api_server_plan = await plan(pods(default, present=present), control_plane(running="v1.36.3"))
        assert (api_server_plan.version, api_server_plan.refused) == (None, None), default


async def test_plan_keeps_version_of_stopped_api_server() -> None:
    runtime = Pods(f"{REPOSITORY}:v1.38.0", present=f"{REPOSITORY}:v1.36.3", phase=Phase.ABSENT)
    assert (await plan(runtime, control_plane(running="v1.36.3"))).version == "1.36.3"


async def test_plan_refuses_version_when_image_is_named_by_digest() -> None:
    runtime = Pods(f"{REPOSITORY}@sha256:{'a' * 64}", present=f"{REPOSITORY}@sha256:{'a' * 64}")
    with pytest.raises(ConditionError, match="named by its digest") as refused:
        await plan(runtime, control_plane(version="1.36.3"))
    assert refused.value.reason == "VersionNotAvailable"
    api_server_plan = await plan(runtime, control_plane(running="v1.36.3", version="1.36.4"))
    assert api_server_plan.version is None
    assert api_server_plan.refused is not None
    assert "named by its digest" in api_server_plan.refused.message


async def test_plan_of_processes_allows_only_the_version_of_the_program() -> None:
    assert (await plan(Processes(), control_plane(version="1.36.3"))).version is None
    with pytest.raises(
        ConditionError, match=r"1\.36\.4 cannot be had: kube-apiserver is here in version 1\.36\.3 only"
    ):
        await plan(Processes(), control_plane(version="1.36.4"))
    # The installed program skips a minor version, and no other program exists to run.
    api_server_plan = await plan(Processes(), control_plane(running="v1.34.0"))
    assert (api_server_plan.version, api_server_plan.refused) == (None, None)


def test_lag_reports_rollout_with_message_of_pod() -> None:
    api_server_plan = ApiServerPlan(None, resources_of(control_plane(), chosen=None))
    assert api_server_plan.lag(ComponentState(name="a", phase=Phase.READY)) is None
    lag = api_server_plan.lag(ComponentState(name="a", phase=Phase.READY, rolling=True, message="pod x: ErrImagePull"))
    assert lag == VersionLag(
        "RollingOut",
        "the next kube-apiserver is not ready yet, and the one before it serves on; in its way: pod x: ErrImagePull",
    )


def test_lag_reports_failed_change_with_message_of_program() -> None:
    api_server_plan = ApiServerPlan(None, resources_of(control_plane(), chosen=None))
    state = ComponentState(name="a", phase=Phase.READY, rolling=True, failing=True, message="unknown flag: --x")
    lag = api_server_plan.lag(state)
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
def test_resources_of_replaces_defaults_with_values_of_spec(resources: Any, expected: tuple[str | None, ...]) -> None:
    spec = {} if resources is None else {"resources": resources}
    result = resources_of(control_plane(**spec), chosen=None)
    assert (result.cpu_request, result.memory_request, result.cpu_limit, result.memory_limit) == expected


def test_resources_of_spec_replace_resources_of_class() -> None:
    control_plane_class = ControlPlaneClass.model_validate(class_of(resources={"requests": {"memory": "3Gi"}}))
    assert resources_of(control_plane(), chosen=control_plane_class).memory_request == "3Gi"
    override = control_plane(resources={"limits": {"memory": "1Gi"}})
    assert resources_of(override, chosen=control_plane_class) == Resources(
        cpu_request="100m", memory_request="256Mi", memory_limit="1Gi"
    )


_AMOUNTS = st.none() | st.integers(1, 5000).map(lambda number: f"{number}Mi")


@given(_AMOUNTS, _AMOUNTS)
def test_resources_of_keeps_memory_request_within_limit(request_: str | None, limit: str | None) -> None:
    if request_ and limit and quantity(request_) > quantity(limit):
        request_, limit = limit, request_
    resources = {"requests": {"memory": request_} if request_ else {}, "limits": {"memory": limit} if limit else {}}
    result = resources_of(control_plane(resources=resources), chosen=None)
    assert quantity(result.memory_request) <= quantity(result.memory_limit)


def test_not_held_to_names_fields_that_are_set_without_effect() -> None:
    destinations = [{"cidr": "10.0.0.0/8", "ports": [443]}]
    control_plane_class = ControlPlaneClass.model_validate(
        class_of(version="1.36.3", resources={"requests": {"cpu": "1"}}, allowedDestinations=destinations)
    )
    processes: Any = Processes()
    in_pods = pods("v1.36.3")
    assert not_held_to(control_plane(), chosen=None, runtime=processes) == []
    assert not_held_to(control_plane(), chosen=control_plane_class, runtime=in_pods) == []
    assert (
        "runs API servers as processes"
        in not_held_to(control_plane(), chosen=control_plane_class, runtime=processes)[0]
    )
    adopted_control_plane = control_plane(endpointRef={"name": "e"})
    [warning] = not_held_to(adopted_control_plane, chosen=control_plane_class, runtime=in_pods)
    assert warning.startswith("version and resources and allowedDestinations of ControlPlaneClass c are not acted on")


def test_not_held_to_names_limits_with_host_name_endpoint() -> None:
    limits = {"requestsPerSecond": 50}
    control_plane_class = ControlPlaneClass.model_validate({"metadata": {"name": "c"}, "spec": {"limits": limits}})
    runtime: Any = pods("v1.36.3")
    assert not_held_to(control_plane(), chosen=control_plane_class, runtime=runtime) == []
    [warning] = not_held_to(control_plane(endpointStyle="HostName"), chosen=control_plane_class, runtime=runtime)
    assert warning.startswith("limits of ControlPlaneClass c are not acted on")


def test_not_held_to_names_endpoint_style_with_policy_own() -> None:
    runtime: Any = pods("v1.36.3")
    control_plane_class = ControlPlaneClass.model_validate(
        {"metadata": {"name": "c"}, "spec": {"endpointPolicy": "Own"}}
    )
    host_name_control_plane = control_plane(endpointStyle="HostName")
    [warning] = not_held_to(host_name_control_plane, chosen=control_plane_class, runtime=runtime)
    assert warning.startswith("spec.endpointStyle has no effect")
    assert not_held_to(host_name_control_plane, chosen=None, runtime=runtime) == []
