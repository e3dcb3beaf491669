"""Secrets that are made once and stay the same as long as their directory does."""

from __future__ import annotations

import os
from pathlib import Path

from controlplane_operator.credentials.pki import KeyPair, create_authority, create_signing_key

__all__ = ["keep_authority", "keep_signing_key", "write_private"]


def write_private(file: Path, *, content: bytes) -> None:
    """Write a file that only this user may read, in one step."""
    partial = file.with_name(f".{file.name}.partial")
    partial.unlink(missing_ok=True)
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    partial.replace(file)


def keep_authority(directory: Path, *, name: str) -> KeyPair:
    """Read the authority in `ca.crt` and `ca.key` of a directory; make one where there is none yet."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    certificate, key = directory / "ca.crt", directory / "ca.key"
    if not certificate.exists():
        # The certificate comes last: where it is, its key is. An interrupted attempt has issued nothing yet.
        authority = create_authority(name)
        write_private(key, content=authority.key)
        write_private(certificate, content=authority.certificate)
    return KeyPair(certificate=certificate.read_bytes(), key=key.read_bytes())


def keep_signing_key(file: Path) -> bytes:
    """Read the key that signs ServiceAccount tokens; make one where there is none yet."""
    if not file.exists():
        write_private(file, content=create_signing_key())
    return file.read_bytes()
