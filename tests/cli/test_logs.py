"""Logs of control planes: names, missing logs, merging and following."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from kplane.api import ControlPlane, ControlPlaneRegistration
from kplane.cli.choices import Part
from kplane.cli.errors import Refused
from kplane.cli.logs import find_logs, merged
from kplane.mcm.describe.kinds import InstanceKind


class Written:
    """A log with the given lines. Following this log ends only if `ends` is true."""

    note = silence = ""

    def __init__(self, name: str, *written: str, ends: bool = True) -> None:
        self.name = name
        self.written = written
        self.ends = ends

    async def lines(self, *, last: int | None, follow: bool) -> AsyncGenerator[str, None]:
        for line in self.written if last is None else self.written[-last:]:
            yield line
            await asyncio.sleep(0)
        if follow and not self.ends:
            await asyncio.Event().wait()


class Broken(Written):
    async def lines(self, *, last: int | None, follow: bool) -> AsyncGenerator[str, None]:
        yield "first"
        raise OSError("gone")


class Programs:
    """Programs with a log for each of the named components and instances."""

    def __init__(self, *names: str) -> None:
        self.names = names

    async def component_logs(self, component: str, *, namespace: str) -> Sequence[Written]:
        assert namespace == "kplane-cp-acme"
        return [Written(component)] if component in self.names else []

    async def instance_logs(self, registration: ControlPlaneRegistration, *, kind: InstanceKind) -> Sequence[Written]:
        name = kind.component(registration.name)
        return [Written(name)] if name in self.names else []


def control_planes(
    spec: dict[str, Any] | None = None, *, status: dict[str, Any] | None = None, registrations: Sequence[Any] = ()
) -> Any:
    control_plane = ControlPlane.model_validate(
        {"metadata": {"name": "acme"}, "spec": spec or {}, "status": status or {}}
    )

    async def get(_: str) -> ControlPlane:
        return control_plane

    async def registered(_: str) -> Sequence[Any]:
        return registrations

    client = SimpleNamespace(config=SimpleNamespace(server="https://10.0.0.1:6443"))
    return SimpleNamespace(get=get, registrations=registered, client=client)


def registration(name: str, *services: str, running: bool = False) -> ControlPlaneRegistration:
    status: dict[str, Any] = {"services": services}
    if running:
        status["instance"] = {"services": services}
    spec = {"controlPlaneRef": {"name": "acme"}, "services": services}
    return ControlPlaneRegistration.model_validate({"metadata": {"name": name}, "spec": spec, "status": status})


async def names(of: Part, programs: Programs, found: Any) -> list[str]:
    return [log.name for log in await find_logs(found, programs, "acme", of=of)]  # type: ignore[arg-type]


async def test_find_logs_names_component_or_instance_of_part() -> None:
    dedicated = {"mode": "Dedicated"}
    moved_status = {"home": {"mode": "Dedicated", "slot": 1}}
    programs = Programs("apiserver-acme", "apiserve2-acme", "etcd-acme", "etcd3-acme", "kcm-second", "ksc-first")
    assert await names(Part.API_SERVER, programs, control_planes()) == ["apiserver-acme"]
    assert await names(Part.ETCD, programs, control_planes(dedicated)) == ["etcd-acme"]
    assert await names(Part.API_SERVER, programs, control_planes(dedicated, status=moved_status)) == ["apiserve2-acme"]
    assert await names(Part.ETCD, programs, control_planes(dedicated, status=moved_status)) == ["etcd3-acme"]
    registrations = (
        registration("first", "Controllers", "Scheduler"),
        registration("second", "Controllers", running=True),
    )
    assert await names(Part.CONTROLLERS, programs, control_planes(registrations=registrations)) == ["kcm-second"]
    assert await names(Part.SCHEDULER, programs, control_planes(registrations=registrations)) == ["ksc-first"]


@pytest.mark.parametrize(
    ("of", "found", "told"),
    [
        (Part.ETCD, control_planes(), "kplane move acme --to Dedicated"),
        (Part.CONTROLLERS, control_planes(), "kplane register acme --service controllers"),
        (Part.SCHEDULER, control_planes(), "kplane register acme --service scheduler"),
        (
            Part.CONTROLLERS,
            control_planes(registrations=[registration("r", "Controllers")]),
            "no instance of r has run",
        ),
        (Part.API_SERVER, control_planes({"endpointRef": {"name": "theirs"}}), "ControlPlaneEndpoint theirs"),
        (Part.API_SERVER, control_planes(), "kplane describe acme"),
        (
            Part.API_SERVER,
            control_planes(status={"hibernation": {"since": "2026-11-26T10:00:00Z", "reason": "Idle"}}),
            "kplane wake acme",
        ),
    ],
)
async def test_missing_part_is_refused_with_advice(of: Part, found: Any, told: str) -> None:
    with pytest.raises(Refused, match=told):
        await names(of, Programs(), found)


async def test_logs_without_local_programs_are_refused() -> None:
    with pytest.raises(Refused, match="run this on the machine"):
        await find_logs(control_planes(), None, "acme", of=Part.API_SERVER)


async def test_merged_lines_are_prefixed_with_log_names() -> None:
    tail = [line async for line in merged([Written("a", "1", "2")], last=1, follow=False)]
    prefixed = [line async for line in merged([Written("a", "1"), Written("b", "2")], last=None, follow=False)]
    assert (tail, prefixed) == (["2"], ["[a] 1", "[b] 2"])
    both = [line async for line in merged([Written("a", "1"), Written("b", "2")], last=None, follow=True)]
    assert sorted(both) == ["[a] 1", "[b] 2"]


async def test_following_yields_lines_of_ended_and_open_logs() -> None:
    logs = [Written("a", "1"), Written("b", "2", ends=False)]
    async with asyncio.timeout(10), contextlib.aclosing(merged(logs, last=None, follow=True)) as following:
        assert {await anext(following), await anext(following)} == {"[a] 1", "[b] 2"}


async def test_error_of_a_log_ends_following() -> None:
    with pytest.raises(OSError, match="gone"):
        _ = [line async for line in merged([Broken("a"), Written("b", ends=False)], last=None, follow=True)]
