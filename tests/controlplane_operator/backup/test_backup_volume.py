"""Backups on a volume: atomic writes, private files, and space for the next backup."""

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


def test_names_are_sorted_and_of_backups_only(volume: Volume, tmp_path: Path) -> None:
    for name in (
        "20200102T000000Z.tar.age",
        "20200101T000000Z.db",
        "mine.db",
        "objects.json",
        ".20200103T000000Z.db.partial",
    ):
        (tmp_path / name).touch()
    assert volume.names() == ["20200101T000000Z.db", "20200102T000000Z.tar.age"]


def test_backup_file_is_private_and_reads_as_written(volume: Volume, tmp_path: Path) -> None:
    with volume.writer(OLD[0]) as file:
        file.write(b"content")
    assert (tmp_path / OLD[0]).stat().st_mode & 0o777 == 0o600
    assert digest_of(volume, OLD[0]).startswith("ed7002b439e9ac84")
    assert os.listdir(tmp_path) == [OLD[0]]


def test_interrupted_write_leaves_no_file(volume: Volume, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        fail(volume, RuntimeError())
    assert os.listdir(tmp_path) == []


def test_prepare_removes_only_stale_partial_files(volume: Volume, tmp_path: Path) -> None:
    stale_file, active_file = tmp_path / f".{OLD[0]}.partial", tmp_path / f".{OLD[1]}.partial"
    for path in (stale_file, active_file):
        path.touch()
    long_ago = time.time() - 10_000
    os.utime(stale_file, (long_ago, long_ago))
    volume.prepare()
    assert os.listdir(tmp_path) == [active_file.name]


def fill(directory: Path) -> None:
    for name in OLD:
        (directory / name).write_bytes(bytes(1000))


def room(volume: Volume, directory: Path, *, size: int) -> object:
    """Patch the volume to have `size` bytes for files."""
    return patch.object(volume, "free", lambda: size - sum(path.stat().st_size for path in directory.iterdir()))


def test_prepare_removes_oldest_backups_to_make_room(volume: Volume, tmp_path: Path) -> None:
    """Retention runs after a successful backup only, which a full volume would never allow."""
    fill(tmp_path)
    with room(volume, tmp_path, size=4500):  # type: ignore[attr-defined]
        assert volume.prepare() == OLD[:1]
    assert volume.names() == OLD[1:]


def test_prepare_keeps_newest_backup_despite_missing_space(volume: Volume, tmp_path: Path) -> None:
    fill(tmp_path)
    with room(volume, tmp_path, size=1500):  # type: ignore[attr-defined]
        assert volume.prepare() == OLD[:-1]
    assert volume.names() == OLD[-1:]


def fail(volume: Volume, error: Exception) -> None:
    with volume.writer(OLD[0]) as file:
        file.write(b"content")
        raise error


def test_full_volume_raises_error_with_remedy(volume: Volume, tmp_path: Path) -> None:
    with pytest.raises(BackupFailed, match=r"the volume is full; make it larger .etcd.backup.storageSize."):
        fail(volume, OSError(errno.ENOSPC, "No space left on device"))
    assert os.listdir(tmp_path) == []
