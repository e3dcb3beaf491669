"""Encrypted backups: content, recipients, and errors for damaged archives."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyrage
import pytest

from kplane.controlplane_operator.backup.archive import decrypt, encrypt, identities, pack, recipients
from kplane.controlplane_operator.errors import BackupFailed
from kplane.data import SnapshotDamaged
from kplane.data._proto import etcd_pb2 as pb
from kplane.data.snapshot import Snapshot

DATABASE = bytes(range(256)) * 1000
OBJECTS = [{"kind": "Secret", "metadata": {"name": "a"}}, {"kind": "ControlPlane", "metadata": {"name": "ä"}}]
KEY = pyrage.x25519.Identity.generate()


def snapshot(database: bytes = DATABASE, *, sent: bytes | None = None, cut: int = 0) -> Snapshot:
    """Return a snapshot as etcd sends it: pieces, then their SHA-256."""
    pieces = [database[start : start + 32_768] for start in range(0, len(database), 32_768)]
    left, messages = len(database), []
    for piece in [*pieces, hashlib.sha256(database).digest() if sent is None else sent]:
        left -= len(piece)
        messages.append(pb.SnapshotResponse(blob=piece, remaining_bytes=max(0, left)))
    del messages[len(messages) - cut :]

    async def rest() -> AsyncIterator[pb.SnapshotResponse]:
        for message in messages[1:]:
            yield message

    return Snapshot(messages[0], rest())


async def some() -> AsyncIterator[dict[str, Any]]:
    for obj in OBJECTS:
        yield obj


async def packed(found: Snapshot) -> bytes:
    return b"".join([chunk async for chunk in pack(found, some())])


async def encrypted(*keys: Any) -> bytes:
    target = io.BytesIO()
    encrypt(io.BytesIO(await packed(snapshot())), target, to=[key.to_public() for key in keys or (KEY,)])
    return target.getvalue()


async def test_decrypted_backup_equals_saved_data(tmp_path: Path) -> None:
    objects = json.loads(decrypt(io.BytesIO(await encrypted()), keys=[KEY], into=tmp_path / "x"))
    assert objects == {"apiVersion": "v1", "kind": "List", "items": OBJECTS}
    assert (tmp_path / "x").read_bytes() == DATABASE + hashlib.sha256(DATABASE).digest()


async def test_backup_is_a_tar_archive_in_an_age_file() -> None:
    """Standard tools open a backup without kplane."""
    content = await encrypted()
    assert content.startswith(b"age-encryption.org/v1\n")
    with tarfile.open(fileobj=io.BytesIO(pyrage.decrypt(content, [KEY]))) as archive:
        assert archive.getnames() == ["etcd.db", "objects.json"]


async def test_encrypted_backup_contains_no_plaintext_of_database() -> None:
    assert DATABASE[:64] not in await encrypted()


async def test_only_keys_of_recipients_open_a_backup(tmp_path: Path) -> None:
    other = pyrage.x25519.Identity.generate()
    content = await encrypted(KEY, other)
    for key in (KEY, other):
        assert decrypt(io.BytesIO(content), keys=[key], into=tmp_path / "x")
    with pytest.raises(BackupFailed, match="failed to open the backup: No matching keys found"):
        decrypt(io.BytesIO(content), keys=[pyrage.x25519.Identity.generate()], into=tmp_path / "x")


@pytest.mark.parametrize("place", [0, 0.1, 0.5, 0.999], ids=str)
async def test_modified_backup_is_rejected(place: float, tmp_path: Path) -> None:
    content = bytearray(await encrypted())
    content[int(place * len(content))] ^= 1
    with pytest.raises(BackupFailed, match="failed to open the backup: "):
        decrypt(io.BytesIO(bytes(content)), keys=[KEY], into=tmp_path / "x")


@pytest.mark.parametrize("missing", [1, 100, 100_000, 250_000])
async def test_truncated_backup_is_rejected(missing: int, tmp_path: Path) -> None:
    content = await encrypted()
    with pytest.raises(BackupFailed, match="failed to open the backup: "):
        decrypt(io.BytesIO(content[:-missing]), keys=[KEY], into=tmp_path / "x")


@pytest.mark.parametrize("cut", [1, 2])
async def test_incomplete_snapshot_raises_snapshot_damaged(cut: int) -> None:
    with pytest.raises(SnapshotDamaged, match="is not complete"):
        await packed(snapshot(cut=cut))


async def test_snapshot_with_wrong_hash_raises_snapshot_damaged() -> None:
    with pytest.raises(SnapshotDamaged, match="is damaged"):
        await packed(snapshot(sent=bytes(32)))


def test_keys_are_read_from_output_of_age_keygen() -> None:
    file = f"# created: 2026-11-22\n# public key: {KEY.to_public()}\n{KEY}\n"
    assert [str(key) for key in identities(file)] == [str(KEY)]
    assert [str(key) for key in recipients([str(KEY.to_public())])] == [str(KEY.to_public())]


@pytest.mark.parametrize("text", ["", "# nothing\n", "AGE-SECRET-KEY-1SURPRISE\n"])
def test_invalid_private_key_is_rejected_and_not_shown(text: str) -> None:
    with pytest.raises(BackupFailed, match="failed to read the private key") as caught:
        identities(text)
    assert "SURPRISE" not in str(caught.value)


def test_invalid_recipient_is_named_in_the_error() -> None:
    with pytest.raises(BackupFailed, match=r"failed to read recipient age1x: .*; use a public key of age-keygen"):
        recipients(["age1x"])
