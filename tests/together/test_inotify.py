"""Inotify instances of API servers and of controllers are those that the page on sizes and `kplane doctor` name."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any, Final

import pytest

from kplane.components.names import apiserver_name
from kplane.embedded.components import AWAKE_INOTIFY_INSTANCES, ENVOY_INOTIFY_INSTANCES, START_INOTIFY_INSTANCES

from .conftest import pids_of

_ROOT: Final = Path(__file__).parents[2]
_PROFILES: Final = {"Nodeless": "controllers, profile Nodeless or Full", "Core": "controllers, profile Core"}


def _documented() -> dict[str, int]:
    """Return the table of docs/how-to/size.md: instances by program."""
    _, _, section = (_ROOT / "docs/how-to/size.md").read_text().partition("## Inotify instances")
    return {name: int(number) for name, number in re.findall(r"^\| (\S.*?) \| ([0-9]+) \|$", section, re.MULTILINE)}


def _instances(pid: int) -> int:
    """Return the number of inotify instances of a process."""
    links = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(descriptor))
    return links.count("anon_inode:inotify")


def test_documented_instances_are_those_of_doctor_and_chart() -> None:
    documented = _documented()
    server = documented["kube-apiserver"]
    assert documented["each replica of the gateway"] == ENVOY_INOTIFY_INSTANCES
    assert server + documented[_PROFILES["Nodeless"]] == AWAKE_INOTIFY_INSTANCES
    assert server + 1 + ENVOY_INOTIFY_INSTANCES == START_INOTIFY_INSTANCES
    check = (_ROOT / "deploy/chart/kplane/files/test/check.py").read_text()
    assert f"\nAPI_SERVER_INSTANCES = {server}\n" in check


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("profile", _PROFILES)
async def test_programs_take_as_many_instances_as_documented(platform: Any, profile: str) -> None:
    name = f"watchful-{profile.lower()}"
    await platform.create("ControlPlane", name, deletionPolicy="Destroy", virtual={"start": "Always"})
    reference, controllers = {"name": name}, {"profile": profile}
    await platform.create(
        "ControlPlaneRegistration", name, controlPlaneRef=reference, services=["Controllers"], controllers=controllers
    )
    await platform.ready("ControlPlane", name)
    instance = await platform.running(name)
    (server,) = pids_of(Path(platform.handle.operator_directory, apiserver_name(name)), "kube-apiserver")
    documented = _documented()
    expected = documented["kube-apiserver"], documented[_PROFILES[profile]]
    # Controllers watch their files one after the other.
    await platform.eventually(lambda: (_instances(server), _instances(instance)), lambda found: found == expected)
