"""Backup and restore of the shared etcd, by the scripts that the chart's Jobs run, with a real etcd."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration

BUMP = 1_000_000_000


@dataclass(frozen=True)
class Scripts:
    """The scripts, with the programs of the operator's image."""

    directory: Path
    programs: Path
    backups: Path

    def run(self, name: str, **environment: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.programs}:{os.environ['PATH']}"
        given = {"PATH": path, "BACKUPS": str(self.backups), **environment}
        script = str(self.directory / name)
        return subprocess.run(["/bin/sh", script], env=given, capture_output=True, text=True, check=False, timeout=100)

    def back_up(self, etcd: Any, *, keep: int = 3) -> str:
        """Save etcd and return the snapshot's file name."""
        done = self.run("backup.sh", KEEP=str(keep), ETCDCTL_ENDPOINTS=etcd.client_url)
        assert done.returncode == 0, done.stderr
        (name,) = [line.removeprefix("saved ") for line in done.stdout.splitlines() if line.startswith("saved ")]
        return name

    def restore(self, member: Any, *, snapshot: str, members: Sequence[Any] = ()) -> subprocess.CompletedProcess[str]:
        return self.run(
            "restore.sh",
            SNAPSHOT=snapshot,
            VOLUME=str(member.volume),
            MEMBER=member.name,
            PEER_URL=member.peer_url,
            CLUSTER=cluster(members or [member]),
            CLUSTER_TOKEN=member.token,
            BUMP_REVISION=str(BUMP),
        )

    def names(self) -> list[str]:
        return sorted(path.name for path in self.backups.iterdir())


def cluster(members: Sequence[Any]) -> str:
    return ",".join(f"{member.name}={member.peer_url}" for member in members)


def revision(etcd: Any) -> int:
    return int(json.loads(etcd.ctl("get", "key", "-w", "json"))["header"]["revision"])


@pytest.fixture
def scripts(chart: Any, binaries: Any, tmp_path: Path) -> Scripts:
    backups = tmp_path / "backups"
    backups.mkdir()
    return Scripts(chart.directory / "files" / "etcd", binaries.etcd, backups)


def test_the_newest_backups_are_kept(scripts: Scripts, etcd: Any) -> None:
    old = [f"2020010{day}T000000Z.db" for day in range(1, 5)]
    for name in (*old, "mine.db"):
        (scripts.backups / name).touch()
    etcd.ctl("put", "key", "value")
    newest = scripts.back_up(etcd, keep=3)
    assert scripts.names() == [*old[2:], newest, "mine.db"]
    assert (scripts.backups / newest).stat().st_mode & 0o777 == 0o600


def test_a_backup_that_fails_leaves_nothing_and_removes_nothing(scripts: Scripts, etcds: list[Any]) -> None:
    (scripts.backups / "20200101T000000Z.db").touch()
    # Nothing listens there; etcdctl tries as long as it is told.
    environment = {"KEEP": "1", "ETCDCTL_ENDPOINTS": etcds[0].client_url}
    script = scripts.directory / "backup.sh"
    hasty = scripts.backups.with_name("backup.sh")
    hasty.write_text(script.read_text().replace("--command-timeout=30m", "--command-timeout=1s"))
    done = Scripts(hasty.parent, scripts.programs, scripts.backups).run(hasty.name, **environment)
    assert done.returncode != 0
    assert scripts.names() == ["20200101T000000Z.db"]


def test_a_restore_brings_back_what_was_saved(scripts: Scripts, etcd: Any) -> None:
    etcd.ctl("put", "key", "saved")
    snapshot = scripts.back_up(etcd)
    etcd.ctl("put", "key", "later")
    before = revision(etcd)
    etcd.stop()

    done = scripts.restore(etcd, snapshot=snapshot)
    assert done.returncode == 0, done.stderr
    etcd.start()
    assert etcd.ctl("get", "key", "--print-value-only") == "saved\n"
    assert revision(etcd) > BUMP
    # What was there is kept.
    (aside,) = etcd.volume.glob("replaced-*")
    assert (aside / "member" / "snap" / "db").is_file()
    # A client that watched before is told so, where it would otherwise wait for a revision that comes much later.
    watch = subprocess.run(
        [str(scripts.programs / "etcdctl"), f"--endpoints={etcd.client_url}", "watch", "key", f"--rev={before}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    assert "required revision has been compacted" in watch.stdout + watch.stderr


def test_three_members_are_restored_to_one_etcd(scripts: Scripts, etcds: list[Any]) -> None:
    for member in etcds:
        member.start(cluster(etcds))
    etcds[0].ctl("put", "key", "saved")
    snapshot = scripts.back_up(etcds[1])
    etcds[2].ctl("put", "key", "later")
    for member in etcds:
        member.stop()

    for member in etcds:
        done = scripts.restore(member, snapshot=snapshot, members=etcds)
        assert done.returncode == 0, done.stderr
    for member in etcds:
        member.start(cluster(etcds))
    assert [member.ctl("get", "key", "--print-value-only") for member in etcds] == ["saved\n"] * 3
    etcds[0].ctl("put", "other", "value")
    assert [member.ctl("get", "other", "--print-value-only") for member in etcds] == ["value\n"] * 3
    hashes = [json.loads(member.ctl("endpoint", "hashkv", "-w", "json"))[0]["HashKV"]["hash"] for member in etcds]
    assert len(set(hashes)) == 1


def test_a_restore_waits_until_etcd_has_ended(scripts: Scripts, etcd: Any) -> None:
    etcd.ctl("put", "key", "saved")
    snapshot = scripts.back_up(etcd)
    results: list[subprocess.CompletedProcess[str]] = []
    restore = threading.Thread(target=lambda: results.append(scripts.restore(etcd, snapshot=snapshot)))
    restore.start()
    restore.join(timeout=1.5)
    assert restore.is_alive()
    assert etcd.ctl("get", "key", "--print-value-only") == "saved\n"
    etcd.stop()
    restore.join(timeout=60)
    assert results[0].returncode == 0, results[0].stderr
    assert list(etcd.volume.glob("replaced-*"))


def test_a_name_that_does_not_exist_tells_those_that_do(scripts: Scripts, etcd: Any) -> None:
    snapshot = scripts.back_up(etcd)
    etcd.stop()
    done = scripts.restore(etcd, snapshot="20200101T000000Z.db")
    assert done.returncode != 0
    assert "There is no snapshot 20200101T000000Z.db" in done.stderr
    assert snapshot in done.stderr
    assert (etcd.volume / "data" / "member" / "snap" / "db").is_file()


def test_a_snapshot_that_is_damaged_changes_nothing(scripts: Scripts, etcd: Any) -> None:
    etcd.ctl("put", "key", "value")
    snapshot = scripts.backups / scripts.back_up(etcd)
    etcd.stop()
    content = bytearray(snapshot.read_bytes())
    content[len(content) // 2] ^= 0xFF
    snapshot.write_bytes(content)
    assert scripts.restore(etcd, snapshot=snapshot.name).returncode != 0
    etcd.start()
    assert etcd.ctl("get", "key", "--print-value-only") == "value\n"
