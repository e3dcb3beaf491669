"""Credentials from files whose modes keep the key from other users."""

from __future__ import annotations

from pathlib import Path

import pytest

from kplane.data import Credentials, CredentialsUnusable


@pytest.fixture
def files(tmp_path: Path) -> Credentials:
    files = Credentials.in_directory(tmp_path)
    for path in (files.ca, files.certificate, files.key):
        path.write_text(path.name)
        path.chmod(0o600)
    return files


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o440, 0o640])
def test_credentials_read_all_files(files: Credentials, mode: int) -> None:
    files.key.chmod(mode)
    pem = files.read()
    assert (pem.ca, pem.certificate, pem.key) == (b"ca.crt", b"client.crt", b"client.key")
    assert pem.stamp == files.stamp()


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o660, 0o610, 0o601])
def test_credentials_refuse_key_that_other_users_may_access(files: Credentials, mode: int) -> None:
    files.key.chmod(mode)
    with pytest.raises(CredentialsUnusable, match=f"client.key has mode {mode:04o}.*chmod 0600"):
        files.read()


@pytest.mark.parametrize("name", ["ca.crt", "client.crt", "client.key"])
def test_credentials_name_missing_or_empty_file(files: Credentials, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(CredentialsUnusable, match=name):
        files.read()
    (tmp_path / name).unlink()
    with pytest.raises(CredentialsUnusable, match=name):
        files.read()
    with pytest.raises(CredentialsUnusable, match=name):
        files.stamp()


@pytest.mark.parametrize("name", ["ca.crt", "client.crt", "client.key"])
def test_replaced_file_changes_stamp(files: Credentials, tmp_path: Path, name: str) -> None:
    before = files.stamp()
    (tmp_path / "new").write_text(name)
    (tmp_path / "new").replace(tmp_path / name)
    assert files.stamp() != before


def test_credentials_read_files_again_after_concurrent_change(
    files: Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Path.read_bytes

    def renewing(path: Path) -> bytes:
        content = read(path)
        if path == files.certificate and content == b"client.crt":
            files.certificate.write_text("renewed certificate")
            files.key.write_text("renewed key")
        return content

    monkeypatch.setattr(Path, "read_bytes", renewing)
    pem = files.read()
    assert (pem.certificate, pem.key) == (b"renewed certificate", b"renewed key")
