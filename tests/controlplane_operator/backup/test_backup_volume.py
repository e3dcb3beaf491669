"""Backups on a volume: whole or not at all, private, and with room for the next one."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from unittest.mock import patch

import pytest

from kplane.controlplane_operator.backup.storage import Volume, digest_of
from kplane.controlplane_operator.errors import BackupFailed

OLD = [f"2020010{day}T000000Z.db" for day in range(1, 5)]


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    return Volume(tmp_path)


def test_backups_are_told_from_other_files_and_are_in_order(volume: Volume, tmp_path: Path) -> None:
    for name in (
        "20200102T000000Z.tar.age",
        "20200101T000000Z.db",
        "mine.db",
        "objects.json",
        ".20200103T000000Z.db.partial",
    ):
        (tmp_path / name).touch()
    assert volume.names() == ["20200101T000000Z.db", "20200102T000000Z.tar.age"]


def test_a_backup_is_private_and_read_as_it_was_written(volume: Volume, tmp_path: Path) -> None:
    with volume.writer(OLD[0]) as file:
        file.write(b"content")
    assert (tmp_path / OLD[0]).stat().st_mode & 0o777 == 0o600
    assert digest_of(volume, OLD[0]).startswith("ed7002b439e9ac84")
    assert os.listdir(tmp_path) == [OLD[0]]


def test_what_fails_halfway_leaves_nothing(volume: Volume, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        fail(volume, RuntimeError())
    assert os.listdir(tmp_path) == []


def test_what_a_killed_backup_left_is_removed_and_what_another_one_writes_is_not(
    volume: Volume, tmp_path: Path
) -> None:
    left, written = tmp_path / f".{OLD[0]}.partial", tmp_path / f".{OLD[1]}.partial"
    for path in (left, written):
        path.touch()
    long_ago = time.time() - 10_000
    os.utime(left, (long_ago, long_ago))
    volume.prepare()
    assert os.listdir(tmp_path) == [written.name]


def fill(directory: Path) -> None:
    for name in OLD:
        (directory / name).write_bytes(bytes(1000))


def room(volume: Volume, directory: Path, *, size: int) -> object:
    """The volume has so many bytes for files."""
    return patch.object(volume, "free", lambda: size - sum(path.stat().st_size for path in directory.iterdir()))


def test_the_oldest_backups_make_room_for_the_next(volume: Volume, tmp_path: Path) -> None:
    """On a volume that is full: rotation after a backup that succeeds would never come."""
    fill(tmp_path)
    with room(volume, tmp_path, size=4500):  # type: ignore[attr-defined]
        assert volume.prepare() == OLD[:1]
    assert volume.names() == OLD[1:]


def test_the_newest_backup_stays_where_there_is_no_room(volume: Volume, tmp_path: Path) -> None:
    fill(tmp_path)
    with room(volume, tmp_path, size=1500):  # type: ignore[attr-defined]
        assert volume.prepare() == OLD[:-1]
    assert volume.names() == OLD[-1:]


def fail(volume: Volume, error: Exception) -> None:
    with volume.writer(OLD[0]) as file:
        file.write(b"content")
        raise error


def test_a_full_volume_is_told_with_what_to_do(volume: Volume, tmp_path: Path) -> None:
    with pytest.raises(BackupFailed, match=r"the volume is full; make it larger .etcd.backup.storageSize."):
        fail(volume, OSError(errno.ENOSPC, "No space left on device"))
    assert os.listdir(tmp_path) == []
