"""Downloads and builds by concurrent and killed processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from kplane.binaries.upstreams import ETCD, KUBERNETES, RUNTIME


def test_concurrent_runs_build_once(machine: Any) -> None:
    machine.install_go()

    runs = [machine.start() for _ in range(3)]
    outcomes = [(run.communicate(timeout=60), run.returncode) for run in runs]

    expected = f"{machine.directory(KUBERNETES)} {machine.directory(ETCD)}\n"
    assert [(out, status) for (out, _), status in outcomes] == [(expected, 0)] * 3, outcomes
    assert sorted(machine.built) == sorted([*KUBERNETES.packages.values(), *ETCD.packages.values()])
    waited = [err for (_, err), _ in outcomes if "waiting for process" in err]
    assert waited, "nobody said that it waits"


async def test_killed_build_leaves_nothing_broken(machine: Any, eventually: Any) -> None:
    halfway = machine.home / "halfway"
    machine.install_go(
        build=f'printf half > "$2"; echo $$ > "{halfway}.new"; mv "{halfway}.new" "{halfway}"; exec sleep 60'
    )
    run = machine.start()
    try:
        await eventually(halfway.exists)
    finally:
        run.kill()
        run.communicate(timeout=60)
    builder = Path(f"/proc/{halfway.read_text().strip()}")

    await eventually(lambda: not builder.exists() or _is_zombie(builder))
    assert not any((machine.directory(upstream) / p).exists() for upstream in RUNTIME for p in upstream.programs)

    machine.install_go()
    binaries = machine.resolve()

    assert all(os.access(binaries.path(p), os.X_OK) for upstream in RUNTIME for p in upstream.programs)
    assert list(machine.cache.glob(".*staging*")) == []


def test_interrupted_build_keeps_finished_programs(machine: Any) -> None:
    machine.install_go(build='case "$3" in *kube-scheduler) exit 1 ;; esac; ' + "printf '#!/bin/sh\\n' > \"$2\"")
    process = machine.start()
    process.communicate(timeout=60)
    assert process.returncode != 0
    machine.install_go()

    machine.resolve()

    assert machine.built.count(KUBERNETES.packages["kube-apiserver"]) == 1
    assert machine.built.count(KUBERNETES.packages["kube-scheduler"]) == 2


def _is_zombie(process: Path) -> bool:
    try:
        return (process / "stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True
