"""Files with the client certificate, for etcd's client, and for people who run etcdctl in the operator's pod."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

__all__ = ["write_credentials"]

_NAMES: Final = ("ca.crt", "client.crt", "client.key")
_KEPT: Final = 2


def write_credentials(directory: Path, credentials: Mapping[str, bytes]) -> Path:
    """Write the client's entries into a subdirectory of `directory`, and return that subdirectory.

    Other credentials go into another subdirectory, so a client never reads the certificate of one renewal and the key
    of another. The latest earlier subdirectory stays for its readers, and older ones are deleted. `directory` becomes
    private, and must not have other content. Raises OSError.
    """
    contents = {name: credentials[name] for name in _NAMES}
    place = directory / hashlib.sha256(b"\0".join(contents.values())).hexdigest()[:16]
    for path in (directory, place):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.chmod(0o700)
    for name, content in contents.items():
        _write(place / name, content)
    os.utime(place)
    for path in sorted(directory.iterdir(), key=lambda path: path.stat().st_mtime_ns, reverse=True)[_KEPT:]:
        shutil.rmtree(path, ignore_errors=True)
    return place


def _write(path: Path, content: bytes) -> None:
    """Write a private file. A file with equal content is not written, because a client may be reading it."""
    if path.is_file() and path.read_bytes() == content:
        return
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
        file.write(content)
