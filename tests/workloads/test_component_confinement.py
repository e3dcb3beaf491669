"""Confined components: access to their own files, a neighbour, the supervisor, and files of the machine."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kplane.workloads import FILES, Component, File, Lifetime, landlock_version

pytestmark = pytest.mark.skipif(landlock_version() == 0, reason="this kernel offers no Landlock")

FOREVER = "exec sleep 1000"


async def tried(sandbox: Any, runtime: Any, attempts: dict[str, str], **fields: Any) -> dict[str, str]:
    """Run each attempt in a component. Returns the output of each attempt by name."""
    script = "; ".join(f"{{ {attempt}; }} > data/{name} 2>&1" for name, attempt in attempts.items())
    component = sandbox.shell("thief", f"{script}; touch data/done; {FOREVER}", data=True, **fields)
    await runtime.apply(component)
    data = sandbox.directory / "thief/data"
    await sandbox._eventually((data / "done").exists)
    return {name: (data / name).read_text() for name in attempts}


@pytest.mark.parametrize("confined", [True, False])
async def test_confined_component_cannot_read_neighbour_or_supervisor(
    sandbox: Any, runtime: Any, confined: bool, tmp_path: Path, is_running: Callable[[int], bool]
) -> None:
    secret = secrets.token_hex()
    (tmp_path / "identity").write_text(secret)
    await runtime.apply(sandbox.shell("neighbour", FOREVER, files={"kubeconfig": File(secret.encode())}))
    neighbour, pid = sandbox.directory / "neighbour", runtime.state("neighbour").pid
    outputs = await tried(
        sandbox,
        runtime,
        {
            "file": f"cat {neighbour}/files/kubeconfig",
            "directory": f"ls {neighbour}",
            "log": f"cat {neighbour}/log",
            "process": f"cat /proc/{pid}/root{neighbour}/files/kubeconfig",
            "supervisor": f"cat /proc/{os.getpid()}/root{tmp_path}/identity",
            "identity": f"cat {tmp_path}/identity",
            "overwritten": f"echo theft >> {neighbour}/files/kubeconfig",
        },
        lifetime=Lifetime.BOUND,
        reads=() if confined else None,
    )
    refusals = {name: "Permission denied" in text for name, text in outputs.items()}
    assert refusals == dict.fromkeys(outputs, confined)
    assert (secret in "".join(outputs.values())) is not confined
    kubeconfig = (neighbour / "files/kubeconfig").read_text()
    assert kubeconfig == (secret if confined else f"{secret}theft\n")
    assert is_running(pid)


async def test_confined_component_may_use_own_files_data_and_listed_files(
    sandbox: Any, runtime: Any, tmp_path: Path
) -> None:
    (tmp_path / "flag-file").write_text("named in a flag")
    outputs = await tried(
        sandbox,
        runtime,
        {
            "own": f"cat {FILES}/kubeconfig",
            "flag": f"cat {tmp_path}/flag-file",
            "written": "echo kept > data/new && mv data/new data/moved && : > data/moved && echo anew > data/moved"
            " && mkdir data/sub && cat data/moved && rm data/moved",
            "machine": "cat /etc/hostname /proc/self/limits /proc/meminfo > /dev/null && echo read",
            "files": f"echo theft > {FILES}/kubeconfig",
            "log": "ln -sf /etc/passwd log",
        },
        files={"kubeconfig": File(b"mine")},
        lifetime=Lifetime.BOUND,
        reads=(str(tmp_path / "flag-file"),),
    )
    assert outputs.pop("own") == "mine"
    assert outputs.pop("flag") == "named in a flag"
    assert outputs.pop("written") == "anew\n"
    assert outputs.pop("machine") == "read\n"
    assert all("Permission denied" in text for text in outputs.values()), outputs


@pytest.mark.skipif(landlock_version() < 6, reason="Landlock keeps signals back since Linux 6.12")
async def test_confined_component_cannot_kill_other_components(
    sandbox: Any, runtime: Any, is_running: Callable[[int], bool]
) -> None:
    await runtime.apply(sandbox.shell("neighbour", FOREVER))
    pid = runtime.state("neighbour").pid
    outputs = await tried(sandbox, runtime, {"kill": f"kill -9 {pid}"}, lifetime=Lifetime.BOUND, reads=())
    assert "not permitted" in outputs["kill"]
    assert is_running(pid)


async def test_confined_component_reads_a_renewed_file(sandbox: Any, runtime: Any) -> None:
    def component(content: bytes) -> Component:
        script = f"while :; do cat {FILES}/token > data/seen; sleep 0.05; done"
        files = {"token": File(content, reloaded=True)}
        return sandbox.shell("reader", script, files=files, data=True, lifetime=Lifetime.BOUND, reads=())

    await runtime.apply(component(b"first"))
    pid = runtime.state("reader").pid
    seen = sandbox.directory / "reader/data/seen"
    await sandbox._eventually(lambda: seen.exists() and seen.read_text() == "first")
    await runtime.apply(component(b"second"))
    await sandbox._eventually(lambda: seen.read_text() == "second")
    assert runtime.state("reader").pid == pid


async def test_program_outside_system_directories_runs_confined(sandbox: Any, runtime: Any, tmp_path: Path) -> None:
    program = tmp_path / "programs" / "shell"
    program.parent.mkdir()
    program.write_bytes(Path("/bin/sh").resolve().read_bytes())
    program.chmod(0o700)
    script = f"cat {sys.executable} > /dev/null; echo ran > data/ran; {FOREVER}"
    await runtime.apply(
        Component(name="own", program=str(program), args=("-c", script), data=True, lifetime=Lifetime.BOUND, reads=())
    )
    await sandbox._eventually((sandbox.directory / "own/data/ran").exists)
