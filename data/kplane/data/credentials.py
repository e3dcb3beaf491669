"""Client certificates: in files that another program renews, or in memory."""

from __future__ import annotations

import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from kplane.data.errors import CredentialsUnusable

__all__ = ["Credentials", "HeldCredentials", "Pem"]

_ATTEMPTS = 5

Stamp = tuple[tuple[int, int, int], ...]
"""Inode, size and modification time of each file. A different stamp means that a file was written or replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pem:
    """Content of the certificate files, of the same renewal."""

    ca: bytes
    certificate: bytes
    key: bytes
    stamp: Stamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Paths of a CA, a client certificate and its key, in PEM. `key` must have mode 0640 or less.

    Mode 0600 suits files of a single user. kubelet adds read permission for the group of a mounted Secret (`fsGroup`).
    """

    ca: Path
    certificate: Path
    key: Path

    @classmethod
    def in_directory(cls, directory: Path) -> Self:
        """Return the paths of `ca.crt`, `client.crt` and `client.key` in a directory."""
        return cls(ca=directory / "ca.crt", certificate=directory / "client.crt", key=directory / "client.key")

    def stamp(self) -> Stamp:
        """Return a stamp that differs once a file changes. Raises CredentialsUnusable if a file is missing."""
        try:
            statuses = [path.stat() for path in (self.ca, self.certificate, self.key)]
        except OSError as error:
            raise CredentialsUnusable(f"failed to read the client certificate: {error}") from error
        return tuple((status.st_ino, status.st_size, status.st_mtime_ns) for status in statuses)

    def read(self) -> Pem:
        """Read all files, of the same renewal.

        Raises CredentialsUnusable if a file is missing or empty, if other users may use the key, or if the files change
        during each of 5 attempts.
        """
        for _ in range(_ATTEMPTS):
            before = self.stamp()
            try:
                mode = stat.S_IMODE(self.key.stat().st_mode)
                ca, certificate, key = (path.read_bytes() for path in (self.ca, self.certificate, self.key))
            except OSError as error:
                raise CredentialsUnusable(f"failed to read the client certificate: {error}") from error
            if mode & 0o037:
                raise CredentialsUnusable(f"{self.key} has mode {mode:04o}, so others may use it; run chmod 0600")
            if self.stamp() == before and ca and certificate and key:
                return Pem(ca=ca, certificate=certificate, key=key, stamp=before)
        raise CredentialsUnusable(f"{self.ca}, {self.certificate} or {self.key} is empty, or changes all the time")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldCredentials:
    """A CA, a client certificate and its key, in PEM and in the caller's memory."""

    ca: bytes
    certificate: bytes
    key: bytes = field(repr=False)

    def stamp(self) -> Stamp:
        """Return a constant: credentials in memory never change."""
        return ()

    def read(self) -> Pem:
        """Return the credentials unchanged."""
        return Pem(ca=self.ca, certificate=self.certificate, key=self.key, stamp=())
