"""Choice of a program among several versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kplane.api import KubernetesVersion
from kplane.mcm.describe.programs import Build, Programs
from kplane.mcm.errors import ConfigurationError
from kplane.mcm.fleet import Instances
from kplane.mcm.serving.overview import Overview
from kplane.mcm.settings import Settings
from kplane.mcm.status.observer import NullReporter
from kplane.provider import Cluster, ClusterConfig
from kplane.provider.fleet.clusters import Clusters
from kplane.workloads import ProcessRuntime, RuntimeFailure

PROGRAM = "kube-controller-manager"


def cluster(version: str, name: str = "a") -> Cluster:
    config = ClusterConfig(server="https://127.0.0.1:1", token="t")
    return Cluster(name, config=config, attributes={"version": version})


def directory(root: Path, name: str, *, version: str) -> Path:
    """Make a directory with a program of this version. With version `broken`, the program fails."""
    folder = root / name
    folder.mkdir()
    path = folder / PROGRAM
    # Without --version the program waits, and its process has the name of the file.
    runs = f'[ "$1" = --version ] && echo Kubernetes {version} || exec -a "$0" sleep 1000'
    path.write_text(f"#!/bin/bash\n{runs if version != 'broken' else 'exit 1'}\n")
    path.chmod(0o700)
    return folder


def programs(root: Path, versions: Mapping[str, str]) -> Programs:
    directories = [directory(root, name, version=version) for name, version in versions.items()]
    return Programs(directories, runtime=ProcessRuntime(root / "state", programs=directories))


SEVERAL = {"first": "v1.35.2", "old": "v1.34.9", "same": "v1.35.2", "patched": "v1.35.10", "new": "v1.37.0"}


@pytest.mark.parametrize(
    ("server", "chosen", "version"),
    [
        ("1.34", "old", "v1.34.9"),
        ("1.35", "patched", "v1.35.10"),
        ("1.36", "patched", "v1.35.10"),
        ("1.37", "new", "v1.37.0"),
        ("1.38", "new", "v1.37.0"),
    ],
)
async def test_newest_version_within_skew_is_chosen(tmp_path: Path, server: str, chosen: str, version: str) -> None:
    build = await programs(tmp_path, SEVERAL).choose(PROGRAM, cluster=cluster(server))
    assert build == Build(str(tmp_path / chosen / PROGRAM), KubernetesVersion.parse(version))


async def test_first_directory_is_chosen_for_equal_versions(tmp_path: Path) -> None:
    build = await programs(tmp_path, {"a": "v1.35.2", "b": "v1.35.2"}).choose(PROGRAM, cluster=cluster("1.35"))
    assert build.program == str(tmp_path / "a" / PROGRAM)


@pytest.mark.parametrize("server", ["1.33", "1.39"])
async def test_error_names_the_versions_that_would_fit(tmp_path: Path, server: str) -> None:
    major, minor = server.split(".")
    sentence = f"needs {PROGRAM} {server} or {major}.{int(minor) - 1}, and there is 1.34.9 and 1.35.2 and"
    with pytest.raises(
        ConfigurationError, match=f"registration a: its API server is Kubernetes {server}, .*{sentence}"
    ):
        await programs(tmp_path, SEVERAL).choose(PROGRAM, cluster=cluster(server))


async def test_unknown_version_of_the_api_server_gets_the_default_program(tmp_path: Path) -> None:
    assert await programs(tmp_path, SEVERAL).choose(PROGRAM, cluster=cluster("")) == Build(PROGRAM)
    first = KubernetesVersion.parse("v1.35.2")
    catalog = Programs(runtime=ProcessRuntime(tmp_path / "state", programs=()), first=first)
    assert await catalog.choose(PROGRAM, cluster=cluster("")) == Build(PROGRAM, first)


async def test_broken_program_is_skipped_if_another_program_fits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    catalog = programs(tmp_path, {"bad": "broken", "good": "v1.35.2"})
    for _ in range(2):
        assert (await catalog.choose(PROGRAM, cluster=cluster("1.35"))).program == str(tmp_path / "good" / PROGRAM)
    assert caplog.text.count(f"{tmp_path}/bad/{PROGRAM}") == 1


async def test_error_names_the_program_without_a_version(tmp_path: Path) -> None:
    with pytest.raises(RuntimeFailure, match=f"version of {tmp_path}/bad/{PROGRAM} cannot be found out"):
        await programs(tmp_path, {"bad": "broken"}).choose(PROGRAM, cluster=cluster("1.35"))


async def test_instances_of_several_versions_run_side_by_side(tmp_path: Path, eventually: Callable[..., Any]) -> None:
    directories = [directory(tmp_path, name, version=f"v{name}.4") for name in ("1.35", "1.36")]
    flags = [f"--programs-dir={path}" for path in directories]
    programs_dir = Settings.parse([f"--state-dir={tmp_path}/state", *flags]).programs_dir
    async with ProcessRuntime(tmp_path / "state", programs=programs_dir) as runtime:
        instances = Instances(
            runtime, observer=NullReporter(registration=None), programs=Programs(programs_dir, runtime=runtime)
        )
        clusters = Clusters(awares=[instances])
        overview = Overview(clusters, instances=instances)

        def running() -> dict[str, tuple[str | None, str]]:
            """Return, by cluster, the version in the summary and the program of the process."""
            return {
                summary.name: (summary.version, Path(f"/proc/{summary.pid}/cmdline").read_text().partition("\0")[0])
                for summary in overview.summaries()
            }

        try:
            for path in directories:
                await clusters.add_or_replace(cluster(path.name, name=f"on-{path.name}"))
            desired = {f"on-{path.name}": (f"v{path.name}.4", f"{path}/{PROGRAM}") for path in directories}
            await eventually(running, lambda found: found == desired)
        finally:
            await clusters.aclose()


@pytest.mark.integration
async def test_controllers_unknown_to_kube_controller_manager_are_refused(binaries: Any, tmp_path: Path) -> None:
    directories = binaries.directories
    catalog = Programs(directories, runtime=ProcessRuntime(tmp_path / "state", programs=directories))
    build = await catalog.choose(PROGRAM, cluster=cluster(""))
    await catalog.check_controllers(build, ("*", "-job-controller", "csrsigning"), cluster=cluster(""))
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r'registration b: .* rejects .*: "nope" is not in the list'):
            await catalog.check_controllers(build, ("*", "nope"), cluster=cluster("", name="b"))
