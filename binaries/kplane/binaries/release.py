"""Downloads programs of the official releases, and verifies the checksums that are recorded in this repository.

A compromised site could publish both a program and its checksum. So a download needs a recorded checksum, and a program
without a recorded checksum is built from source.
"""

from __future__ import annotations

import hashlib
import http.client
import queue
import re
import shutil
import socket
import tarfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kplane.binaries.errors import WayError
from kplane.binaries.progress import Heartbeat, Report
from kplane.binaries.upstreams import Platform, Upstream

__all__ = ["OFFICIAL", "ReleaseSites", "download", "published", "recorded"]

_STALL_SECONDS = 10.0
_DOWNLOAD_DEADLINE_SECONDS = 1800.0
_CHUNK_BYTES = 1 << 20
_CHECKSUMS_BYTES_AT_MOST = 1 << 20


@dataclass(frozen=True, slots=True)
class ReleaseSites:
    """Site of the downloads, and timeout of a connection to it."""

    mirror: str | None = None
    """Replaces the site of each project."""
    connect_seconds: float = 2.5
    checksums: Mapping[str, str] | None = None
    """Replaces the recorded checksums: SHA-256 by path at the site."""


OFFICIAL = ReleaseSites()


def download(
    upstream: Upstream,
    *,
    programs: Sequence[str],
    platform: Platform,
    staging: Path,
    sites: ReleaseSites,
    report: Report,
) -> Iterator[Path]:
    """Download programs of the pinned version into `staging`, and yield each program once its checksum is verified.

    Raises WayError if no checksum is recorded for the version, or if the checksum differs. Also raises WayError if the
    site does not answer within `sites.connect_seconds` or lacks the release, or if the download breaks off.
    """
    release = upstream.release
    site = sites.mirror or release.site
    checksums = recorded(upstream) if sites.checksums is None else sites.checksums
    paths = {program: upstream.fill(release.file, platform=platform, program=program) for program in programs}
    for path in paths.values():
        if path not in checksums:
            advice = f"run `make checksums` where {site} answers" if release.checksums else "the project publishes none"
            raise WayError(f"no SHA-256 of {path} is recorded in {upstream.recorded}; {advice}")
    _require_reachable(site, timeout_seconds=sites.connect_seconds)

    def fetch(path: str, *, into: Path) -> Path:
        return _fetch(f"{site}/{path}", into=into, sha256=checksums[path], report=report)

    if release.member is None:
        for program in programs:
            yield fetch(paths[program], into=staging / program)
    else:
        (path,) = set(paths.values())
        members = {program: upstream.fill(release.member, platform=platform, program=program) for program in programs}
        yield from _unpack(fetch(path, into=staging / f"{upstream.name}.tar.gz"), members=members)


def recorded(upstream: Upstream) -> dict[str, str]:
    """Read the recorded checksums: SHA-256 by path at the release site; empty if the file does not exist.

    Raises WayError if the file cannot be read.
    """
    try:
        lines = upstream.recorded.read_text().splitlines()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise WayError(f"failed to read the recorded checksums: {error}") from error
    checksums = {}
    for line in lines:
        if line and not line.startswith("#"):
            match = re.fullmatch(r"([0-9a-f]{64})  (\S+)", line)
            if match is None:
                raise WayError(f"failed to read {upstream.recorded}: {line!r} is not a SHA-256 and a path")
            checksums[match[2]] = match[1]
    return checksums


def published(upstream: Upstream, *, platforms: Sequence[Platform], sites: ReleaseSites = OFFICIAL) -> dict[str, str]:
    """Download the checksums that the project publishes for the pinned version: SHA-256 by path at the site.

    Raises WayError if the project publishes no checksums, or if the site does not answer or lacks a checksum.
    """
    release = upstream.release
    if release.checksums is None:
        raise WayError(f"failed to read checksums of {upstream.title}: the project publishes none")
    site = sites.mirror or release.site
    _require_reachable(site, timeout_seconds=sites.connect_seconds)
    checksums = {}
    for platform in platforms:
        for program in upstream.programs:
            path = upstream.fill(release.file, platform=platform, program=program)
            if path not in checksums:
                text = _read(f"{site}/{upstream.fill(release.checksums, platform=platform, program=program)}")
                checksums[path] = _find_checksum(text, name=path.rsplit("/", 1)[-1])
    return checksums


def _require_reachable(url: str, *, timeout_seconds: float) -> None:
    # A separate check, because name resolution has no time-out and each redirect would restart the clock.
    host, port = _first_hop(url)
    outcome: queue.SimpleQueue[OSError | None] = queue.SimpleQueue()

    def connect() -> None:
        try:
            socket.create_connection((host, port), timeout=timeout_seconds).close()
        except OSError as error:
            outcome.put(error)
        else:
            outcome.put(None)

    threading.Thread(target=connect, name="reach-release-site", daemon=True).start()
    try:
        error = outcome.get(timeout=timeout_seconds)
    except queue.Empty:
        error = TimeoutError(f"no answer within {timeout_seconds:g} s")
    if error is not None:
        raise WayError(f"failed to reach {host}:{port}: {error.strerror or error}")


def _first_hop(url: str) -> tuple[str, int]:
    parts = urllib.parse.urlsplit(url)
    proxy = urllib.request.getproxies().get(parts.scheme)
    if proxy and not urllib.request.proxy_bypass(parts.hostname or ""):
        parts = urllib.parse.urlsplit(proxy if "//" in proxy else f"//{proxy}")
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _opener(url: str) -> urllib.request.OpenerDirector:
    # An opener for https has no handler for http, so a redirect to http fails.
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPSHandler() if url.startswith("https:") else urllib.request.HTTPHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener


def _open(url: str) -> http.client.HTTPResponse:
    try:
        response: http.client.HTTPResponse = _opener(url).open(url, timeout=_STALL_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()
        raise WayError(f"failed to download {url}: {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise WayError(f"failed to download {url}: {getattr(error, 'reason', error)}") from error
    return response


def _read(url: str) -> str:
    try:
        with _open(url) as response:
            return response.read(_CHECKSUMS_BYTES_AT_MOST).decode("ascii", errors="replace")
    except (OSError, http.client.HTTPException) as error:
        raise WayError(f"failed to download {url}: it broke off: {error}") from error


def _find_checksum(text: str, *, name: str) -> str:
    """Find the checksum of `name` in lines "<checksum>  <name>", or in a single bare checksum. Raises WayError."""
    for line in text.splitlines():
        fields = line.split()
        if (
            fields
            and re.fullmatch(r"[0-9a-fA-F]{64}", fields[0])
            and (len(fields) == 1 or fields[1].lstrip("*") == name)
        ):
            return fields[0].lower()
    raise WayError(f"failed to verify {name}: the published checksums do not list it")


def _fetch(url: str, *, into: Path, sha256: str, report: Report) -> Path:
    report(f"{into.name}: downloading {url}")
    heartbeat = Heartbeat(report, what=f"{into.name}: downloading", every_seconds=5.0)
    deadline = time.monotonic() + _DOWNLOAD_DEADLINE_SECONDS
    digest = hashlib.sha256()
    received = 0
    try:
        with _open(url) as response, into.open("wb") as file:
            while chunk := response.read(_CHUNK_BYTES):
                file.write(chunk)
                digest.update(chunk)
                received += len(chunk)
                heartbeat.beat(detail=f"{received / 1e6:.0f} MB")
                if time.monotonic() > deadline:
                    raise WayError(f"failed to download {url}: not done after {_DOWNLOAD_DEADLINE_SECONDS:.0f} s")
    except (OSError, http.client.HTTPException) as error:
        raise WayError(f"failed to download {url}: it broke off after {received} bytes: {error}") from error
    if digest.hexdigest() != sha256:
        raise WayError(f"failed to verify {url}: its SHA-256 is {digest.hexdigest()}, but {sha256} is recorded")
    return into


def _unpack(archive: Path, *, members: Mapping[str, str]) -> Iterator[Path]:
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for program, name in members.items():
                member = tar.extractfile(name)
                if member is None:
                    raise WayError(f"failed to unpack {archive.name}: it has no file {name}")
                target = archive.parent / program
                with member, target.open("wb") as file:
                    shutil.copyfileobj(member, file)
                yield target
    except (tarfile.TarError, KeyError, EOFError) as error:
        raise WayError(f"failed to unpack {archive.name}: {error}") from error
