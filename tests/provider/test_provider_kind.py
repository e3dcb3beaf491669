"""Clusters of a fake `kind` program that lists, fails, hangs, and returns changed kubeconfigs."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from kplane.provider import ClusterConfig, Manager, ProviderError
from kplane.provider.providers.kind import KindProvider

PROGRAM = """#!/bin/sh
# Stands in for kind: the directory of its state has a file for each cluster.
state={state}
case "$*" in
"get clusters")
    if [ -e $state.broken ]; then echo "ERROR: no daemon" >&2; exit 1; fi
    if [ -z "$(ls $state)" ]; then echo "No kind clusters found." >&2; else ls $state; fi ;;
"get kubeconfig --name "*)
    if [ "$(cat $state/$4)" = hang ]; then sleep 600 & echo $! > $state.hanging; wait; fi
    cat $state/$4 ;;
*)
    echo "unknown command" >&2; exit 2 ;;
esac
"""


class Machine:
    """The kind clusters of a machine."""

    def __init__(self, path):
        self.state, self.program = path / "state", path / "kind"
        self.broken = path / "state.broken"
        self.hanging = path / "state.hanging"
        self.state.mkdir()
        self.program.write_text(PROGRAM.format(state=self.state))
        self.program.chmod(0o755)

    def create(self, name, *, port=1):
        kubeconfig = ClusterConfig(f"https://127.0.0.1:{port}", token="t").to_kubeconfig()
        (self.state / name).write_text(yaml.safe_dump(kubeconfig))

    def delete(self, name):
        (self.state / name).unlink()

    def provider(self, **options):
        seconds = {"interval_seconds": 0.05, "refresh_seconds": 0.05, **options}
        return KindProvider(program=str(self.program), **seconds)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


async def test_provider_follows_clusters_of_kind(machine, eventually):
    machine.create("fleet-a", port=1)
    machine.create("other", port=2)
    provider = machine.provider(prefix="fleet-")
    async with Manager(None, provider, name="test") as manager:
        await eventually(manager.cluster_names, lambda names: names == ["fleet-a"])
        assert await manager.ready_checks.run() == {"provider": None}
        assert manager.get_cluster("fleet-a").config.server == "https://127.0.0.1:1"
        assert manager.get_cluster("fleet-a").came_from(provider)
        machine.create("fleet-b", port=3)
        await eventually(manager.cluster_names, lambda names: names == ["fleet-a", "fleet-b"])
        machine.delete("fleet-a")
        await eventually(manager.cluster_names, lambda names: names == ["fleet-b"])
        machine.delete("fleet-b")
        machine.delete("other")
        await eventually(manager.cluster_names, lambda names: names == [])


async def test_recreated_cluster_replaces_the_old_one(machine, eventually, telling):
    machine.create("a", port=1)
    async with telling(machine.provider()) as clusters:
        (first,) = await eventually(clusters.engagements)
        machine.create("a", port=2)
        await eventually(lambda: clusters.get("a").config.server, lambda server: server == "https://127.0.0.1:2")
        assert first.closed


async def test_hanging_or_broken_cluster_does_not_stop_others(machine, eventually, caplog, telling):
    (machine.state / "a").write_text("hang")
    (machine.state / "b").write_text("no: kubeconfig")
    machine.create("c")
    async with telling(machine.provider(timeout_seconds=1.0)) as clusters:
        await eventually(clusters.names, lambda names: names == ["c"])
        await eventually(lambda: caplog.text, lambda text: "took longer than 1 s" in text)
        await eventually(lambda: caplog.text, lambda text: "failed to get the kubeconfig of kind cluster b: " in text)
        machine.create("a")
        await eventually(clusters.names, lambda names: names == ["a", "c"])


async def test_many_hanging_clusters_do_not_delay_others(machine, eventually, telling):
    for number in range(8):
        (machine.state / f"a{number}").write_text("hang")
    machine.create("b")
    async with telling(machine.provider(timeout_seconds=60)) as clusters:
        await eventually(clusters.names, lambda names: names == ["b"])
        machine.create("c")
        await eventually(clusters.names, lambda names: names == ["b", "c"])


async def test_failure_of_kind_keeps_engaged_clusters(machine, eventually, caplog, telling):
    machine.create("a")
    async with telling(machine.provider()) as clusters:
        (engagement,) = await eventually(clusters.engagements)
        (machine.state / "a").write_text("")
        await eventually(lambda: caplog.text, lambda text: "failed to get the kubeconfig of kind cluster a: " in text)
        machine.broken.touch()
        await eventually(lambda: caplog.text, lambda text: "failed to list kind clusters: " in text)
        assert "ERROR: no daemon" in caplog.text
        assert clusters.engagements() == [engagement]
        machine.broken.unlink()
        machine.create("b")
        await eventually(clusters.names, lambda names: names == ["a", "b"])


async def test_provider_leaves_no_process_after_stop(machine, eventually, telling):
    (machine.state / "a").write_text("hang")
    async with telling(machine.provider()):
        await eventually(machine.hanging.read_text)
    await eventually(lambda: not runs(int(machine.hanging.read_text())))


def runs(pid):
    """Return whether a process runs. The command line of a zombie is empty."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except FileNotFoundError:
        return False


def test_missing_kind_program_error_names_the_remedy():
    with pytest.raises(ProviderError, match="'kind-of-nothing' is not on PATH: install kind"):
        KindProvider(program="kind-of-nothing")
