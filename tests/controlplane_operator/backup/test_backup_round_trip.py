"""Backups of a real etcd to a volume and to a real S3 server, and their restore."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pyrage
import pytest

from kplane.controlplane_operator.backup.__main__ import main
from kplane.controlplane_operator.backup.saving import save
from kplane.controlplane_operator.backup.storage import Bucket, Volume
from kplane.controlplane_operator.errors import BackupFailed
from kplane.controlplane_operator.snapshots.opening import OpenedSnapshot
from kplane.controlplane_operator.snapshots.saving import save_snapshot
from kplane.controlplane_operator.snapshots.source import Source
from kplane.controlplane_operator.snapshots.storage import SnapshotStorage
from kplane.data import SnapshotDamaged
from kplane.data.snapshot import Snapshot
from kplane.pki.primitives import create_authority
from tests.controlplane_operator.tenants import SharedEtcd

pytestmark = pytest.mark.integration

KEY = pyrage.x25519.Identity.generate()
SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "control-plane-authorities"}}
OLD = "20200101T000000Z.tar.age"
MARK = b"what a tenant wrote"


async def some() -> AsyncIterator[dict[str, Any]]:
    yield SECRET


async def saved(shared: SharedEtcd, storage: Any, *, keep: int = 3, to: Any = (KEY,), **objects: Any) -> list[str]:
    lines: list[str] = []
    async with shared.client("root") as etcd:
        await etcd.put(b"/backup/key", MARK * 1000)
        options = {"objects": some() if to else None, **objects}
        recipients = [key.to_public() for key in to]
        await save(etcd, storage=storage, to=recipients, keep=keep, say=lines.append, **options)
    return lines


def restore(etcdutl: Path, snapshot: Path) -> None:
    command = [str(etcdutl), "snapshot", "restore", str(snapshot), f"--data-dir={snapshot.parent}/restored"]
    subprocess.run(command, capture_output=True, check=True)


def opened(monkeypatch: pytest.MonkeyPatch, *flags: str) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"# created\n{KEY}\n"))
    return main(["open", *flags])


async def test_backup_on_volume_is_opened_and_restored(
    shared_etcd: SharedEtcd, tmp_path: Path, monkeypatch: Any, capsys: Any, binaries: Any
) -> None:
    (tmp_path / OLD).touch()
    (line, removed) = await saved(shared_etcd, Volume(tmp_path), keep=1)
    name = line.removeprefix("saved ")
    assert removed == f"removed {OLD}"
    assert MARK not in (tmp_path / name).read_bytes()

    assert opened(monkeypatch, f"--volume={tmp_path}", name) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["items"] == [SECRET]
    snapshot = tmp_path / name.replace(".tar.age", ".db")
    assert f"its snapshot is {snapshot.name} on the volume" in output.err
    assert MARK in snapshot.read_bytes()
    assert snapshot.stat().st_mode & 0o777 == 0o600
    restore(binaries.path("etcd").with_name("etcdutl"), snapshot)


async def test_backup_without_recipients_is_the_plain_snapshot(shared_etcd: SharedEtcd, tmp_path: Path) -> None:
    (line,) = await saved(shared_etcd, Volume(tmp_path), to=())
    (path,) = tmp_path.iterdir()
    assert line == f"saved {path.name}"
    assert path.suffix == ".db"
    assert MARK in path.read_bytes()


async def test_failed_backup_leaves_no_file_and_removes_none(
    shared_etcd: SharedEtcd, tmp_path: Path, monkeypatch: Any
) -> None:
    """The error is the original error, and not an error of the encryption library."""
    (tmp_path / OLD).touch()

    async def cut(self: Snapshot) -> AsyncIterator[bytes]:
        yield b"a part"
        raise SnapshotDamaged("cut off")

    monkeypatch.setattr(Snapshot, "chunks", cut)
    with pytest.raises(SnapshotDamaged, match="cut off"):
        await saved(shared_etcd, Volume(tmp_path), keep=1)
    assert os.listdir(tmp_path) == [OLD]


async def test_backup_fails_if_storage_returns_other_content(shared_etcd: SharedEtcd, tmp_path: Path) -> None:
    class Forgetful(Volume):
        @contextlib.contextmanager
        def reader(self, name: str) -> Iterator[Any]:
            yield io.BytesIO(b"something else")

    (tmp_path / OLD).touch()
    with pytest.raises(BackupFailed, match="what the storage returns is not what was written"):
        await saved(shared_etcd, Forgetful(tmp_path), keep=1)
    assert os.listdir(tmp_path) == [OLD]


def test_failed_save_prints_cause_and_advice(tmp_path: Path, capsys: Any) -> None:
    flags = ["save", f"--volume={tmp_path}", "--etcd=https://127.0.0.1:1", f"--credentials={tmp_path}", "--keep=1"]
    assert main([*flags, "--namespace=a", "--etcd-secret=b", "--advice=The upgrade was not begun."]) == 1
    output = capsys.readouterr().err
    assert output.startswith("failed to save a backup: failed to read the client certificate: ")
    assert output.endswith("\nThe upgrade was not begun.\n")


def test_open_of_missing_backup_lists_existing_backups(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    assert opened(monkeypatch, f"--volume={tmp_path}") == 1
    assert "there is no encrypted backup" in capsys.readouterr().err
    (tmp_path / OLD).touch()
    assert opened(monkeypatch, f"--volume={tmp_path}", "20210101T000000Z.tar.age") == 1
    assert f"there is no encrypted backup 20210101T000000Z.tar.age; there are: {OLD}" in capsys.readouterr().err


async def test_backup_in_bucket_is_opened_and_older_one_is_removed(
    shared_etcd: SharedEtcd, bucket: tuple[str, Path], tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    url, files = bucket
    storage = Bucket("s3://backups/kplane", endpoint=url, region="a", credentials=files)
    with storage.writer(OLD) as file:
        file.write(b"old")
    assert storage.names() == [OLD]
    (line, removed) = await saved(shared_etcd, storage, keep=1)
    name = line.removeprefix("saved ")
    assert removed == f"removed {OLD}"
    assert storage.names() == [name]

    volume = tmp_path / "volume"
    volume.mkdir()
    flags = ("--bucket=s3://backups/kplane", f"--bucket-endpoint={url}", "--bucket-region=a")
    assert opened(monkeypatch, f"--volume={volume}", f"--bucket-credentials={files}", *flags) == 0
    assert json.loads(capsys.readouterr().out)["items"] == [SECRET]
    assert MARK in (volume / name.replace(".tar.age", ".db")).read_bytes()

    # An interrupted upload leaves no backup, even with several parts.
    async def endless() -> AsyncIterator[dict[str, Any]]:
        raise BackupFailed("no objects")
        yield {}

    with pytest.raises(BackupFailed, match="no objects"):
        await saved(shared_etcd, storage, keep=1, objects=endless())
    assert storage.names() == [name]

    # The storage refuses wrong credentials. Credentials are not sent to a server whose certificate has another CA.
    other = tmp_path / "other"
    shutil.copytree(files, other)
    (other / "secret-access-key").write_text("wrong")
    with pytest.raises(BackupFailed, match="failed to list s3://backups/kplane: "):
        Bucket("s3://backups/kplane", endpoint=url, region="a", credentials=other).names()
    (other / "secret-access-key").write_text("secret")
    (other / "ca.crt").write_bytes(create_authority("stranger").certificate)
    with pytest.raises(BackupFailed, match="failed to list s3://backups/kplane: ") as caught:
        Bucket("s3://backups/kplane", endpoint=url, region="a", credentials=other).names()
    assert "Debug source" not in str(caught.value)


async def test_snapshot_of_control_plane_in_bucket_is_no_backup(
    shared_etcd: SharedEtcd, bucket: tuple[str, Path], tmp_path: Path
) -> None:
    """The snapshot is not listed as a backup, and only the client of the bucket trusts the bucket's CA."""
    url, files = bucket
    storage = Bucket("s3://backups/kplane", endpoint=url, region="a", credentials=files)
    assert "SSL_CERT_FILE" not in os.environ
    to, name = SnapshotStorage(storage, [KEY.to_public()]), "controlplane-acme-uid.age"
    async with shared_etcd.client("root") as etcd:
        await etcd.put(b"/clusters/acme/key", MARK)
        saved = await save_snapshot(Source(etcd, "/clusters/acme/", {"controlPlane": "acme"}), to=to, name=name)
    assert storage.names() == []
    snapshot = OpenedSnapshot(to, name, keys=[KEY], sha256=saved.sha256)
    assert [pair async for pairs in snapshot.pairs() for pair in pairs] == [(b"key", MARK)]
    assert snapshot.end() == saved.archived
    storage.remove(name)
    storage.remove(name)
    missing = OpenedSnapshot(to, name, keys=[KEY], sha256=saved.sha256)
    with pytest.raises(BackupFailed):
        [_ async for _ in missing.pairs()]


@pytest.mark.parametrize(
    ("url", "endpoint", "says"),
    [
        ("https://backups", None, "https://backups is not the URL of a bucket; it must be s3://<bucket>/<prefix>"),
        ("s3://", None, "s3:// is not the URL of a bucket"),
        ("s3://backups", "http://s3", "http://s3 is not the URL of S3-compatible storage; it must be https://<host>"),
    ],
)
def test_invalid_bucket_url_is_rejected(url: str, endpoint: str | None, says: str, tmp_path: Path) -> None:
    with pytest.raises(BackupFailed, match=says):
        Bucket(url, endpoint=endpoint, credentials=tmp_path)
