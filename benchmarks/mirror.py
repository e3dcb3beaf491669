"""Copies a control plane's data into a separate etcd, with the migration engine and with etcdctl."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from benchmarks.surroundings import run_component
from kplane.binaries.programs import Binaries
from kplane.components.etcd import ETCD_PORTS, client_url, etcd_component
from kplane.data import Client, Credentials, Follower, Place
from kplane.data.follow import LARGEST_ANSWER
from kplane.embedded.components import bound
from kplane.embedded.credentials import write_private
from kplane.pki.primitives import create_authority, issue_client, issue_serving
from kplane.provider import ClusterConfig
from kplane.workloads import ProcessRuntime, find_processes

__all__ = ["Home", "Scratch", "scratch_etcd"]

_SAMPLES: Final = 100
_SAMPLE_SECONDS: Final = 0.02
_FOLLOWED: Final = "/followed/"
_MIRRORED: Final = "/mirrored/"
_MIRROR_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 0.05
_ENOUGH: Final = 0.99
"""Share of the keys that ends a copy. Writers delete some keys meanwhile."""


@dataclass(frozen=True, slots=True)
class Home:
    """Location of a control plane's data in etcd, with the credentials of its API server."""

    endpoint: str
    prefix: str
    credentials: Credentials

    @classmethod
    def of(cls, config: ClusterConfig, *, directory: Path) -> Home:
        """Read the location from the flags of the API server at `config.server`. Its component is below `directory`."""
        port = f"--secure-port={urlsplit(config.server).port}".encode()
        for pid in find_processes(directory):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if port in arguments and any(argument.startswith(b"--etcd-prefix=") for argument in arguments):
                    flags = dict(
                        argument.decode().split("=", 1) for argument in arguments if argument.startswith(b"--etcd-")
                    )
                    return cls._of(flags)
        raise RuntimeError(f"no API server of a control plane runs at {config.server}")

    @classmethod
    def _of(cls, flags: dict[str, str]) -> Home:
        ca, certificate, key = (Path(flags[f"--etcd-{name}file"]) for name in ("ca", "cert", "key"))
        credentials = Credentials(ca=ca, certificate=certificate, key=key)
        return cls(flags["--etcd-servers"].split(",")[0], f"{flags['--etcd-prefix']}/", credentials)

    def client(self) -> Client:
        """Connect as the API server."""
        return Client(self.endpoint, credentials=self.credentials, timeout_seconds=60.0)


@dataclass(frozen=True, slots=True)
class Scratch:
    """An etcd that only this benchmark uses."""

    client: Client
    credentials: Credentials
    etcdctl: Path

    async def follow(self, home: Home) -> dict[str, Any]:
        """Copy the data of a home with the migration engine, and follow later writes."""
        async with home.client() as source:
            follower = Follower(Place(source, home.prefix), Place(self.client, _FOLLOWED))
            began = time.monotonic()
            await follower.copy()
            seconds = time.monotonic() - began
            lags: list[float] = []
            async with asyncio.TaskGroup() as tasks:
                running = tasks.create_task(follower.run())
                await follower.catch_up()
                for _ in range(_SAMPLES):
                    await asyncio.sleep(_SAMPLE_SECONDS)
                    lags.append(follower.lag_seconds)
                began = time.monotonic()
                await follower.catch_up()
                caught_up = time.monotonic() - began
                running.cancel()
            await follower.forget()
        await self.client.delete_prefix(_FOLLOWED)
        return {
            "keys": follower.copied,
            "keys_per_second": round(follower.copied / seconds),
            "lag_ms": {"p50": _milliseconds(sorted(lags)[len(lags) // 2]), "max": _milliseconds(max(lags))},
            "catch_up_ms": _milliseconds(caught_up),
        }

    async def mirror(self, home: Home) -> dict[str, Any]:
        """Copy the data of a home with `etcdctl make-mirror`, until 99 % of the keys are copied or the time is up."""
        async with home.client() as source:
            keys = await source.count(home.prefix)
        arguments = (
            *_flags(home.credentials, names=("cacert", "cert", "key")),
            f"--endpoints={home.endpoint}",
            "make-mirror",
            f"--prefix={home.prefix}",
            f"--dest-prefix={_MIRRORED}",
            *_flags(self.credentials, names=("dest-cacert", "dest-cert", "dest-key")),
            self.client.endpoint,
        )
        began, copied = time.monotonic(), 0
        process = await asyncio.create_subprocess_exec(
            self.etcdctl, *arguments, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
        try:
            while copied < _ENOUGH * keys and time.monotonic() < began + _MIRROR_SECONDS and process.returncode is None:
                await asyncio.sleep(_POLL_SECONDS)
                copied = await self.client.count(_MIRRORED)
            seconds = time.monotonic() - began
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        await self.client.delete_prefix(_MIRRORED)
        return {"keys": copied, "of": keys, "keys_per_second": round(copied / seconds)}


@contextlib.asynccontextmanager
async def scratch_etcd(directory: Path, *, binaries: Binaries) -> AsyncIterator[Scratch]:
    """Run an etcd within the context, configured like the etcd of a dedicated control plane."""
    async with ProcessRuntime(directory / "runtime", programs=binaries.directories) as runtime:
        authority, address = create_authority("scratch"), await runtime.reserve("scratch", ports=ETCD_PORTS)
        server = issue_serving(authority, common_name="etcd", hosts=[address.host], client=True)
        etcd = etcd_component("scratch", address=address, ca=authority.certificate, server=server)
        await run_component(runtime, bound(etcd))
        pair, files = issue_client(authority, user="root"), Credentials.in_directory(directory)
        for file, content in (
            (files.ca, authority.certificate),
            (files.certificate, pair.certificate),
            (files.key, pair.key),
        ):
            write_private(file, content=content)
        url = client_url(address)
        async with Client(url, credentials=files, timeout_seconds=60.0, receive_at_most=LARGEST_ANSWER) as client:
            try:
                yield Scratch(client, files, binaries.path("etcdctl"))
            finally:
                await runtime.delete("scratch")


def _flags(credentials: Credentials, *, names: tuple[str, str, str]) -> tuple[str, ...]:
    files = (credentials.ca, credentials.certificate, credentials.key)
    return tuple(f"--{name}={file}" for name, file in zip(names, files, strict=True))


def _milliseconds(seconds: float) -> float:
    return round(1000 * seconds, 1)
