"""The client certificate in files, for etcd's client, and for people who run etcdctl in the operator's pod."""

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
    """Write the entries that a client needs into a directory of their own below `directory`, and return that one.

    Other credentials go to another directory, so that certificate and key always belong together, however a renewal
    and the start of a client fall together. The latest of the earlier directories stays for those who still use it.
    `directory` is made private and belongs to nobody else. Raises OSError.
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
    """Write a private file; one that has the content already is left alone, since somebody may be reading it."""
    if path.is_file() and path.read_bytes() == content:
        return
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
        file.write(content)
