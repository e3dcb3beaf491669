"""An etcd with TLS and access control for the tests of this directory, and a separate prefix for each test."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kplane.data import Client, Credentials
from kplane.pki.primitives import KeyPair, create_authority, issue_client, issue_serving

if TYPE_CHECKING:
    from kplane.binaries.programs import Binaries

_NUMBERS = itertools.count()


@dataclass
class Etcd:
    """A process of etcd that a test may stop and start again."""

    program: Path
    directory: Path
    port: int
    authority: KeyPair = field(default_factory=lambda: create_authority("test-etcd"))
    process: subprocess.Popen[bytes] | None = None
    flags: tuple[str, ...] = ()
    peer: str = "http://127.0.0.1:0"
    """URL for other members."""

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def start(self) -> None:
        files = self.directory / "tls"
        files.mkdir(exist_ok=True)
        server = issue_serving(self.authority, common_name="etcd", hosts=["127.0.0.1"], client=True)
        (files / "ca.crt").write_bytes(self.authority.certificate)
        (files / "server.crt").write_bytes(server.certificate)
        (files / "server.key").write_bytes(server.key)
        arguments = [
            f"--data-dir={self.directory}/data",
            f"--listen-client-urls={self.url}",
            f"--advertise-client-urls={self.url}",
            f"--cert-file={files}/server.crt",
            f"--key-file={files}/server.key",
            f"--trusted-ca-file={files}/ca.crt",
            "--client-cert-auth",
            f"--listen-peer-urls={self.peer}",
            "--unsafe-no-fsync",
            "--log-level=error",
            *self.flags,
        ]
        self.process = subprocess.Popen([str(self.program), *arguments])

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def credentials(self, user: str, directory: Path) -> Credentials:
        """Write the files of a user into a directory."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.write(Credentials.in_directory(directory), ca=self.authority.certificate, pair=self.issue(user))
        return Credentials.in_directory(directory)

    def issue(self, user: str) -> KeyPair:
        return issue_client(self.authority, user=user)

    @staticmethod
    def write(files: Credentials, *, ca: bytes, pair: KeyPair) -> None:
        """Replace the files in sequence, as a renewal does."""
        for path, content in ((files.ca, ca), (files.certificate, pair.certificate), (files.key, pair.key)):
            partial = path.with_name(f".{path.name}")
            partial.touch(mode=0o600)
            partial.write_bytes(content)
            partial.replace(path)


@pytest.fixture(scope="session")
def etcd(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    directory = tmp_path_factory.mktemp("etcd")
    with contextlib.closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    etcd = Etcd(binaries.path("etcd"), directory, port)
    etcd.start()
    try:
        asyncio.run(_prepare(etcd))
        yield etcd
    finally:
        etcd.stop()


@pytest.fixture
async def other(binaries: Binaries, tmp_path: Path, hold_port: Callable[[], int]) -> AsyncIterator[Etcd]:
    """A second etcd for a single test, which may stop the etcd. Each user with a certificate is an administrator."""
    etcd = Etcd(binaries.path("etcd"), tmp_path, hold_port())
    etcd.start()
    try:
        async with Client(etcd.url, credentials=etcd.credentials("root", tmp_path / "root")) as client:
            await answering(client)
        yield etcd
    finally:
        etcd.stop()


async def answering(client: Client) -> None:
    deadline = time.monotonic() + 60
    while (problem := await client.problem()) is not None:
        assert time.monotonic() < deadline, problem
        await asyncio.sleep(0.05)


async def _prepare(etcd: Etcd) -> None:
    async with Client(etcd.url, credentials=etcd.credentials("root", etcd.directory / "root")) as client:
        await answering(client)
        await client.access.add_user("root")
        await client.access.add_role("root")
        await client.access.grant_role("root", "root")
        await client.access.enable()


@pytest.fixture
async def client(etcd: Etcd) -> AsyncIterator[Client]:
    """A client of the administrator."""
    async with Client(etcd.url, credentials=Credentials.in_directory(etcd.directory / "root")) as client:
        yield client


@pytest.fixture
def new_prefix() -> Callable[[], str]:
    return lambda: f"/tests/{next(_NUMBERS)}/"


@pytest.fixture
def prefix(new_prefix: Callable[[], str]) -> str:
    return new_prefix()
