"""Versions of managed control planes on real API servers: a single version as of processes, and two as of pods."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from kplane.binaries.programs import Binaries
from kplane.binaries.upstreams import KUBERNETES
from kplane.controlplane_operator import reconcilers
from kplane.controlplane_operator.config import OperatorConfig
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.provider import Client
from kplane.provider.client.resources import EVENTS, NAMESPACES
from kplane.workloads import Component, ComponentState, ProcessRuntime, find_processes

pytestmark = pytest.mark.integration

OWN = KUBERNETES.version
MAJOR, MINOR, PATCH = OWN.split(".")
NEXT = f"{MAJOR}.{int(MINOR) + 1}.{'1' * len(PATCH)}"
"""A version of the same length as OWN, so that it can replace OWN in the binary."""


class TwoVersions(ProcessRuntime):
    """Process runtime that behaves like pods: several versions of a program, and replacements that take time."""

    def __init__(self, directory: Path, *, programs: tuple[Path, ...], versions: Mapping[str, Path]) -> None:
        super().__init__(directory, programs=programs)
        self._by_version = versions
        self._present: dict[str, str] = {}
        self.replacing: set[str] = set()

    def end_replacement(self, name: str) -> None:
        self.replacing.discard(name)
        self._subscribers.notify(name)

    @override
    async def version(self, program: str) -> str | None:
        return OWN

    @override
    async def lacks(self, program: str, *, version: str) -> str | None:
        return None if version in self._by_version else f"there is no {program} {version}"

    @override
    async def apply(self, component: Component) -> None:
        if component.program == "kube-apiserver":
            program = str(self._by_version[component.version or OWN])
            if self._present.setdefault(component.name, program) != program:
                self._present[component.name] = program
                self.replacing.add(component.name)
            component = dataclasses.replace(component, program=program, version=None)
        await super().apply(component)

    @override
    def settled(self, name: str) -> bool:
        return super().settled(name) and name not in self.replacing

    @override
    def state(self, name: str) -> ComponentState:
        by_program = {str(program): version for version, program in self._by_version.items()}
        state = dataclasses.replace(super().state(name), version=by_program.get(self._present.get(name, "")))
        return dataclasses.replace(state, rolling=True, message="one is left") if name in self.replacing else state


@pytest.fixture
def runtimes(binaries: Binaries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[TwoVersions]:
    """Runtimes of the operator that `own_field` starts after this fixture.

    They have the real kube-apiserver, and a copy that reports the next minor version.
    """
    real = binaries.path("kube-apiserver")
    next_program = tmp_path / "kube-apiserver"
    next_program.write_bytes(real.read_bytes().replace(f"v{OWN}".encode(), f"v{NEXT}".encode()))
    next_program.chmod(0o700)
    created: list[TwoVersions] = []

    def runtime(_: Client, settings: OperatorConfig) -> TwoVersions:
        versions = {OWN: real, NEXT: next_program}
        created.append(TwoVersions(settings.state_dir, programs=settings.programs_dir, versions=versions))
        return created[-1]

    monkeypatch.setattr(reconcilers, "_runtime", runtime)
    return created


async def ask_for(field: Any, name: str, version: str | None) -> None:
    await field.client.patch(CONTROL_PLANES, name, {"spec": {"version": version}})


async def up_to_date(field: Any, name: str, accept: Callable[[str], bool]) -> dict[str, Any]:
    """Wait for a reason of condition UpToDate. The reason is empty if the control plane is up to date."""

    async def answered() -> str:
        obj = await field.get("ControlPlane", name)
        present = obj["status"]["observedGeneration"] == obj["metadata"]["generation"]
        return await field.reason("ControlPlane", name, "UpToDate") if present else "not looked at yet"

    await field.eventually(answered, accept)
    control_plane: dict[str, Any] = await field.get("ControlPlane", name)
    return control_plane


def condition(obj: dict[str, Any], type_: str) -> dict[str, Any]:
    return next((item for item in obj["status"]["conditions"] if item["type"] == type_), {})


async def reported(field: Any, name: str) -> str:
    async with Client(await field.tenant(name), field_manager="kplane") as tenant:
        answer: dict[str, Any] = await tenant.request("GET", "/version")
        return str(answer["gitVersion"])


@pytest.mark.slow
async def test_upgrade_is_published_after_rollout_and_downgrade_is_refused(
    runtimes: list[TwoVersions], own_field: Any
) -> None:
    await own_field.create("ControlPlane", "up", deletionPolicy="Destroy")
    before = await own_field.becomes("ControlPlane", "up", "Reconciled")
    assert before["status"]["version"] == f"v{OWN}"
    [runtime] = runtimes

    await ask_for(own_field, "up", f"v{NEXT}")
    during = await up_to_date(own_field, "up", lambda reason: reason == "RollingOut")
    assert condition(during, "UpToDate")["message"].endswith("serves on; in its way: one is left")
    assert condition(during, "Ready")["status"] == "True"
    await own_field.eventually(lambda: reported(own_field, "up"), lambda version: version == f"v{NEXT}")
    assert (await own_field.get("ControlPlane", "up"))["status"]["version"] == f"v{OWN}"
    runtime.end_replacement("apiserver-up")
    after = await up_to_date(own_field, "up", lambda reason: reason == "")
    assert after["status"]["version"] == f"v{NEXT}"
    published = ("endpoint", "endpoints", "kubeconfigSecretRef", "controllersSecretRef", "phase")
    assert {name: after["status"][name] for name in published} == {name: before["status"][name] for name in published}

    async def told() -> list[str]:
        events = (await own_field.client.list(EVENTS, namespace="default")).items
        return [event["message"] for event in events if event["reason"] == "VersionChanged"]

    await own_field.eventually(told, lambda found: found == [f"the API server is v{NEXT}, and was v{OWN} before"])

    processes = find_processes(own_field.state)
    skipping = f"{MAJOR}.{int(MINOR) + 3}.0"
    for requested, why in (
        (OWN, "is older than"),
        (skipping, "skips a minor version"),
        (None, "the operator's default"),
    ):
        await ask_for(own_field, "up", requested)
        control_plane = await up_to_date(own_field, "up", lambda reason: reason == "VersionNotAllowed")
        await own_field.eventually(
            lambda: own_field.get("ControlPlane", "up"),
            lambda found, why=why: why in condition(found, "UpToDate")["message"],
        )
        assert condition(control_plane, "Ready")["status"] == "True"
        assert control_plane["status"]["version"] == f"v{NEXT}"
    assert find_processes(own_field.state) == processes
    assert await reported(own_field, "up") == f"v{NEXT}"

    await ask_for(own_field, "up", NEXT)
    await up_to_date(own_field, "up", lambda reason: reason == "")
    assert find_processes(own_field.state) == processes


async def test_process_runtime_refuses_other_versions_and_ignores_resources(own_field: Any) -> None:
    patch = f"{MAJOR}.{MINOR}.{int(PATCH) + 1}"
    await own_field.create("ControlPlane", "one", deletionPolicy="Destroy", version=patch)
    control_plane = await own_field.becomes("ControlPlane", "one", "VersionNotAvailable")
    assert control_plane["status"]["phase"] == "Failed"
    assert f"kube-apiserver is here in version {OWN} only" in condition(control_plane, "Ready")["message"]
    assert find_processes(own_field.state) == []

    await ask_for(own_field, "one", OWN)
    control_plane = await own_field.becomes("ControlPlane", "one", "Reconciled")
    assert control_plane["status"]["version"] == f"v{OWN}"
    assert condition(control_plane, "UpToDate") == condition(control_plane, "Supported") == {}
    processes = find_processes(own_field.state)

    await own_field.client.patch(
        CONTROL_PLANES, "one", {"spec": {"version": patch, "resources": {"requests": {"memory": "1Gi"}}}}
    )
    control_plane = await up_to_date(own_field, "one", lambda reason: reason == "VersionNotAvailable")
    assert condition(control_plane, "Ready")["status"] == "True"
    assert "resources are not acted on" in condition(control_plane, "Supported")["message"]
    assert find_processes(own_field.state) == processes
    async with Client(await own_field.tenant("one"), field_manager="kplane") as tenant:
        assert (await tenant.list(NAMESPACES)).items
