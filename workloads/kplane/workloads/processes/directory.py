"""The private directory of a component: its files, data, log and address."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from kplane.workloads.component import FILES, File
from kplane.workloads.errors import RuntimeFailure

__all__ = ["REMOVED_PREFIX", "ComponentDirectory"]

REMOVED_PREFIX = ".removed-"
"""Prefix of directories of deleted components, whose content is still being removed."""


class ComponentDirectory:
    """The directory of a component. Only this user may enter it. Each change can be interrupted at any point."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = path / "files"
        self.data = path / "data"
        self.scratch = path / "scratch"
        self.log = path / "log"
        self._address = path / "address.json"
        self._mark = self.data / ".mark"

    @property
    def exists(self) -> bool:
        """Whether the component has a directory."""
        return self.path.is_dir()

    def create(self, *, data: bool = False, scratch: bool = False) -> None:
        """Create missing directories, and remove the access of other users. Raises OSError."""
        asked = [*([self.data] if data else []), *([self.scratch] if scratch else [])]
        for path in (self.path, self.files, *asked):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.chmod(0o700)

    def write_files(self, files: Mapping[str, File]) -> None:
        """Make the present files equal to `files`. Each changed file is replaced in a single step. Raises OSError."""
        self.switch(files, staged=self.stage(files))

    def stage(self, files: Mapping[str, File]) -> Sequence[str]:
        """Write changed files beside the present files, which stay as they are. Returns their names for `switch`.

        Raises OSError, for example if the disk is full, after removing the files that it has written.
        """
        staged: list[str] = []
        try:
            for name, file in files.items():
                content = self._content(file)
                if not _holds(self.files / name, content=content):
                    staged.append(name)
                    _write_new(self.files / name, content=content)
        except OSError:
            with contextlib.suppress(OSError):
                for name in staged:
                    _new(self.files / name).unlink(missing_ok=True)
            raise
        return staged

    def switch(self, files: Mapping[str, File], *, staged: Sequence[str]) -> None:
        """Put staged files in place, each in a single step, and remove files that `files` lacks. Raises OSError."""
        for name in staged:
            path = self.files / name
            _new(path).replace(path)
        for path in self.files.iterdir():
            if path.name not in files:
                path.unlink()

    def read_files(self) -> dict[str, bytes]:
        """Return the content of the present files by name. Raises OSError."""
        return {path.name: path.read_bytes() for path in self.files.iterdir() if not path.name.startswith(".")}

    def _content(self, file: File) -> bytes:
        return file.content.replace(FILES.encode(), bytes(self.files)) if file.names_files else file.content

    def read_ports(self) -> dict[str, int]:
        """Return the reserved ports by name. Raises RuntimeFailure if the record is damaged."""
        try:
            ports = json.loads(self._address.read_bytes())["ports"]
            return {str(name): int(number) for name, number in ports.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise RuntimeFailure(
                f"The reserved ports in {self._address} cannot be read ({error}). Repair it, or delete the component."
            ) from error

    def write_ports(self, ports: Mapping[str, int]) -> None:
        """Record the reserved ports, durably. Raises OSError."""
        self.create()
        _replace(self._address, content=json.dumps({"ports": dict(ports)}).encode(), durable=True)

    def read_mark(self) -> str | None:
        """Return the mark on the data; None if the data have no mark. Raises OSError."""
        try:
            return self._mark.read_text()
        except FileNotFoundError:
            return None

    def write_mark(self, mark: str) -> None:
        """Write a mark on the data, which is deleted with the data. Raises OSError if there are no data."""
        _replace(self._mark, content=mark.encode(), durable=True)

    def remove(self) -> None:
        """Delete the component in a single step: rename its directory to a name that `removed` returns."""
        self.path.rename(self.path.with_name(f"{REMOVED_PREFIX}{self.path.name}-{secrets.token_hex(4)}"))

    def removed(self) -> list[Path]:
        """Return the remaining directories of deleted components of this name, which still have to be removed."""
        return list(self.path.parent.glob(f"{REMOVED_PREFIX}{self.path.name}-{'?' * 8}"))


def _holds(path: Path, *, content: bytes) -> bool:
    try:
        return path.read_bytes() == content and path.stat().st_mode & 0o777 == 0o600
    except FileNotFoundError:
        return False


def _new(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")


def _replace(path: Path, *, content: bytes, durable: bool = False) -> None:
    _write_new(path, content=content, durable=durable)
    _new(path).replace(path)


def _write_new(path: Path, *, content: bytes, durable: bool = False) -> None:
    new = _new(path)
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)
        if durable:
            file.flush()
            os.fsync(descriptor)
