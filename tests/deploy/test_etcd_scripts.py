"""Restore script of the chart's Jobs, run on a real etcd."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration

BUMP = 1_000_000_000


@dataclass(frozen=True)
class Scripts:
    """Scripts of the chart, and the programs of the operator's image."""

    chart: Any
    programs: Path
    backups: Path

    def run(self, name: str, **environment: str) -> subprocess.CompletedProcess[str]:
        process = self.start(name, **environment)
        stdout, stderr = process.communicate(timeout=240)
        return subprocess.CompletedProcess(name, process.returncode, stdout, stderr)

    def start(self, name: str, **environment: str) -> subprocess.Popen[str]:
        path = f"{self.programs}:{os.environ['PATH']}"
        variables = {"PATH": path, "BACKUPS": str(self.backups), **environment}
        command = ["/bin/sh", str(self.chart.directory / "files" / "etcd" / name)]
        return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def back_up(self, etcd: Any) -> str:
        """Save etcd and return the snapshot's file name."""
        name = f"2026010{len(self.names()) + 1}T000000Z.db"
        etcd.ctl("snapshot", "save", str(self.backups / name))
        return name

    def restore(
        self, member: Any, *, snapshot: str, bump: int = BUMP, members: Sequence[Any] = ()
    ) -> subprocess.CompletedProcess[str]:
        return self.run("restore.sh", **self.restore_environment(member, snapshot, bump, members))

    def restore_environment(
        self, member: Any, snapshot: str, bump: int = BUMP, members: Sequence[Any] = ()
    ) -> dict[str, str]:
        """Return the environment of the chart's Job with paths and addresses of this machine."""
        rendered = self.chart.render(settings={"etcd.restore.snapshot": snapshot, "etcd.restore.bumpRevision": bump})
        (name,) = [name for name in rendered.names("Job") if "-etcd-restore-" in name]
        job = rendered.one("Job", name)
        (container,) = job["spec"]["template"]["spec"]["containers"]
        return {
            **{entry["name"]: entry["value"] for entry in container["env"]},
            "BACKUPS": str(self.backups),
            "VOLUME": str(member.volume),
            "MEMBER": member.name,
            "PEER_URL": member.peer_url,
            "CLUSTER": cluster(members or [member]),
        }

    def with_program(self, name: str, script: str) -> Scripts:
        """Return scripts that run `script` instead of a program. $PROGRAM is the path of the program."""
        programs = self.backups.with_name(f"with-{name}")
        shutil.copytree(self.programs, programs, copy_function=os.symlink)
        path = shutil.which(name, path=f"{self.programs}:{os.environ['PATH']}")
        (programs / name).unlink(missing_ok=True)
        (programs / name).write_text(f"#!/bin/sh\nPROGRAM={path}\n{script}")
        (programs / name).chmod(0o755)
        return replace(self, programs=programs)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.backups.iterdir())


def cluster(members: Sequence[Any]) -> str:
    return ",".join(f"{member.name}={member.peer_url}" for member in members)


def somebody_waits_for(file: Path) -> bool:
    """Tell whether a process waits for a lock on a file."""
    inode = f":{file.stat().st_ino} "
    return any(" -> FLOCK" in line and inode in line for line in Path("/proc/locks").read_text().splitlines())


def revision(etcd: Any) -> int:
    return int(json.loads(etcd.ctl("get", "key", "-w", "json"))["header"]["revision"])


@pytest.fixture
def scripts(chart: Any, binaries: Any, tmp_path: Path) -> Scripts:
    backups = tmp_path / "backups"
    backups.mkdir()
    return Scripts(chart, binaries.etcd, backups)


def test_restore_returns_saved_data_and_keeps_replaced_data(scripts: Scripts, etcd: Any) -> None:
    etcd.ctl("put", "key", "saved")
    snapshot = scripts.back_up(etcd)
    etcd.ctl("put", "key", "later")
    before = revision(etcd)
    etcd.stop()

    process = scripts.restore(etcd, snapshot=snapshot)
    assert process.returncode == 0, process.stderr
    etcd.start()
    assert etcd.ctl("get", "key", "--print-value-only") == "saved\n"
    assert revision(etcd) > BUMP
    # The script keeps the replaced data.
    (aside,) = etcd.volume.glob("replaced-*")
    assert (aside / "member" / "snap" / "db").is_file()
    # A watch from before the restore fails. Otherwise it would silently wait for a much later revision.
    watch = subprocess.run(
        [str(scripts.programs / "etcdctl"), f"--endpoints={etcd.client_url}", "watch", "key", f"--rev={before}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert "required revision has been compacted" in watch.stdout + watch.stderr


def test_three_restored_members_form_an_etcd(scripts: Scripts, etcds: list[Any]) -> None:
    for member in etcds:
        member.start(cluster(etcds))
    etcds[0].ctl("put", "key", "saved")
    snapshot = scripts.back_up(etcds[1])
    etcds[2].ctl("put", "key", "later")
    for member in etcds:
        # A leader that terminates gracefully transfers its leadership, which takes seconds.
        member.kill()

    for member in etcds:
        process = scripts.restore(member, snapshot=snapshot, members=etcds)
        assert process.returncode == 0, process.stderr
    for member in etcds:
        member.start(cluster(etcds))
    assert [member.ctl("get", "key", "--print-value-only") for member in etcds] == ["saved\n"] * 3
    etcds[0].ctl("put", "other", "value")
    assert [member.ctl("get", "other", "--print-value-only") for member in etcds] == ["value\n"] * 3
    hashes = [json.loads(member.ctl("endpoint", "hashkv", "-w", "json"))[0]["HashKV"]["hash"] for member in etcds]
    assert len(set(hashes)) == 1


@pytest.mark.slow
def test_unrestored_member_cannot_join_restored_members(scripts: Scripts, etcds: list[Any]) -> None:
    """Otherwise members of the same etcd would silently return different data."""
    for member in etcds:
        member.start(cluster(etcds))
    etcds[0].ctl("put", "key", "saved")
    snapshot = scripts.back_up(etcds[1])
    etcds[0].ctl("put", "key", "later")
    assert etcds[2].ctl("get", "key", "--print-value-only") == "later\n"
    for member in etcds:
        # A leader that terminates gracefully transfers its leadership, which takes seconds.
        member.kill()

    *restored, stale = etcds
    for member in restored:
        assert scripts.restore(member, snapshot=snapshot, members=etcds).returncode == 0
    for member in etcds:
        member.start(cluster(etcds))
    restored[0].ctl("put", "other", "value")
    assert [member.ctl("get", "key", "--print-value-only") for member in restored] == ["saved\n"] * 2
    with pytest.raises(subprocess.CalledProcessError):
        stale.ctl("get", "key", "--command-timeout=4s", "--dial-timeout=4s")

    # The member joins after its own restore.
    stale.stop()
    assert scripts.restore(stale, snapshot=snapshot, members=etcds).returncode == 0
    stale.start(cluster(etcds))
    assert stale.ctl("get", "key", "--print-value-only") == "saved\n"
    assert stale.ctl("get", "other", "--print-value-only") == "value\n"


def test_restore_is_repeated_only_with_higher_bump_revision(scripts: Scripts, etcd: Any) -> None:
    """`helm rollback` to the revision with the restore creates its Jobs again."""
    etcd.ctl("put", "key", "saved")
    snapshot = scripts.back_up(etcd)
    etcd.stop()
    assert scripts.restore(etcd, snapshot=snapshot).returncode == 0
    etcd.start()
    etcd.ctl("put", "key", "later")
    etcd.stop()

    process = scripts.restore(etcd, snapshot=snapshot)
    assert process.returncode == 0, process.stderr
    assert process.stdout == "restored already; raise etcd.restore.bumpRevision to do it again\n"
    etcd.start()
    assert etcd.ctl("get", "key", "--print-value-only") == "later\n"
    etcd.stop()
    process = scripts.restore(etcd, snapshot=snapshot, bump=2 * BUMP)
    assert f"restored {snapshot}" in process.stdout, process.stderr
    etcd.start()
    assert etcd.ctl("get", "key", "--print-value-only") == "saved\n"


def test_restore_refuses_a_bump_revision_that_is_too_low(scripts: Scripts, etcd: Any) -> None:
    """An older snapshot needs a higher bump than the preceding restore, so that revisions only grow."""
    etcd.ctl("put", "key", "older")
    older = "20200101T000000Z.db"
    (scripts.backups / scripts.back_up(etcd)).rename(scripts.backups / older)
    etcd.ctl("put", "key", "newer")
    newer = scripts.back_up(etcd)
    etcd.stop()
    assert scripts.restore(etcd, snapshot=newer).returncode == 0

    process = scripts.restore(etcd, snapshot=older)
    assert process.returncode != 0
    assert f"this etcd has gone on by {BUMP + 1} revisions since {older} was saved" in process.stderr
    etcd.start()
    assert etcd.ctl("get", "key", "--print-value-only") == "newer\n"
    before = revision(etcd)
    etcd.stop()
    assert scripts.restore(etcd, snapshot=older, bump=BUMP + 1_000).returncode == 0
    etcd.start()
    assert revision(etcd) > before


HALTING = """
"$PROGRAM" "$@" || exit
case $2 in
  restore) touch "$VOLUME/halted"; while [ -e "$VOLUME/halted" ]; do sleep 0.05; done ;;
esac
"""
"""etcdutl that returns from a restore only when the file `halted` is removed."""


async def test_restore_fails_if_etcd_starts_and_keeps_its_data(scripts: Scripts, etcd: Any, eventually: Any) -> None:
    etcd.ctl("put", "key", "value")
    snapshot = scripts.back_up(etcd)
    etcd.stop()
    halting = scripts.with_program("etcdutl", HALTING)
    halted: Path = etcd.volume / "halted"
    process = halting.start("restore.sh", **halting.restore_environment(etcd, snapshot))
    await eventually(halted.exists, bool, timeout=120)
    etcd.start()
    etcd.ctl("put", "key", "later")
    halted.unlink()
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "etcd was started on this volume during the restore" in stderr
    assert etcd.ctl("get", "key", "--print-value-only") == "later\n"
    assert not list(etcd.volume.glob("replaced-*"))


async def test_terminated_restore_leaves_the_volume_to_the_next(scripts: Scripts, etcd: Any, eventually: Any) -> None:
    """An upgrade that replaces the Job terminates the restore."""
    etcd.ctl("put", "key", "value")
    snapshot = scripts.back_up(etcd)
    etcd.stop()
    halting = scripts.with_program("etcdutl", HALTING)
    halted: Path = etcd.volume / "halted"
    process = halting.start("restore.sh", **halting.restore_environment(etcd, snapshot))
    await eventually(halted.exists, bool, timeout=120)
    process.terminate()
    # The next restore waits for the first.
    results: list[subprocess.CompletedProcess[str]] = []
    following = threading.Thread(target=lambda: results.append(scripts.restore(etcd, snapshot=snapshot)))
    following.start()
    await eventually(lambda: somebody_waits_for(etcd.volume / ".restore.lock"))
    halted.unlink()
    process.communicate(timeout=120)
    assert process.returncode == 143
    following.join(timeout=240)
    assert results[0].returncode == 0, results[0].stderr
    assert len(list(etcd.volume.glob("replaced-*"))) == 1


async def test_restore_waits_until_etcd_has_stopped(scripts: Scripts, etcd: Any, eventually: Any) -> None:
    etcd.ctl("put", "key", "saved")
    snapshot = scripts.back_up(etcd)
    results: list[subprocess.CompletedProcess[str]] = []
    restore = threading.Thread(target=lambda: results.append(scripts.restore(etcd, snapshot=snapshot)))
    restore.start()
    await eventually(lambda: somebody_waits_for(etcd.volume / "data" / "member" / "snap" / "db"))
    assert etcd.ctl("get", "key", "--print-value-only") == "saved\n"
    etcd.stop()
    restore.join(timeout=240)
    assert results[0].returncode == 0, results[0].stderr
    assert list(etcd.volume.glob("replaced-*"))


def test_error_of_unknown_snapshot_lists_existing_snapshots(scripts: Scripts, etcd: Any) -> None:
    snapshot = scripts.back_up(etcd)
    etcd.stop()
    process = scripts.restore(etcd, snapshot="20200101T000000Z.db")
    assert process.returncode != 0
    assert "There is no snapshot 20200101T000000Z.db" in process.stderr
    assert snapshot in process.stderr
    assert (etcd.volume / "data" / "member" / "snap" / "db").is_file()


def test_damaged_snapshot_leaves_data_unchanged(scripts: Scripts, etcd: Any) -> None:
    etcd.ctl("put", "key", "value")
    snapshot = scripts.backups / scripts.back_up(etcd)
    etcd.stop()
    content = bytearray(snapshot.read_bytes())
    content[len(content) // 2] ^= 0xFF
    snapshot.write_bytes(content)
    assert scripts.restore(etcd, snapshot=snapshot.name).returncode != 0
    etcd.start()
    assert etcd.ctl("get", "key", "--print-value-only") == "value\n"
