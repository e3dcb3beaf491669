"""Programs from the official releases: downloaded, and compared with the checksums that the project publishes."""

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

__all__ = ["OFFICIAL", "ReleaseSites", "download"]

_STALL_SECONDS = 10.0
_DOWNLOAD_DEADLINE_SECONDS = 1800.0
_CHUNK_BYTES = 1 << 20
_CHECKSUMS_BYTES_AT_MOST = 1 << 20


@dataclass(frozen=True, slots=True)
class ReleaseSites:
    """Where to download from, and how long to wait for a connection before a site counts as out of reach."""

    mirror: str | None = None
    """Stands for the site of every project; None: each project's own."""
    connect_seconds: float = 2.5


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
    """Download programs of the pinned version into `staging`; yields each once its checksum was found right.

    Raises WayError when the site can't be reached (within `sites.connect_seconds`), has no such release, breaks off,
    or when a checksum differs.
    """
    release = upstream.release
    site = sites.mirror or release.site
    _require_reachable(site, timeout_seconds=sites.connect_seconds)

    def fill(template: str, *, program: str) -> str:
        return template.format(version=upstream.version, os=platform.os, arch=platform.arch, program=program)

    def fetch(*, program: str, into: Path) -> Path:
        url = f"{site}/{fill(release.file, program=program)}"
        checksums = _read(f"{site}/{fill(release.checksums, program=program)}")
        return _fetch(url, into=into, sha256=_find_checksum(checksums, name=url.rsplit("/", 1)[1]), report=report)

    if release.member is None:
        for program in programs:
            yield fetch(program=program, into=staging / program)
    else:
        archive = fetch(program="", into=staging / f"{upstream.name}.tar.gz")
        members = {program: fill(release.member, program=program) for program in programs}
        yield from _unpack(archive, members=members)


def _require_reachable(url: str, *, timeout_seconds: float) -> None:
    # Not left to the download itself: name resolution knows no time-out, and a redirect would start the clock again.
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
        raise WayError(f"{host}:{port} cannot be reached: {error.strerror or error}")


def _first_hop(url: str) -> tuple[str, int]:
    parts = urllib.parse.urlsplit(url)
    proxy = urllib.request.getproxies().get(parts.scheme)
    if proxy and not urllib.request.proxy_bypass(parts.hostname or ""):
        parts = urllib.parse.urlsplit(proxy if "//" in proxy else f"//{proxy}")
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _opener(url: str) -> urllib.request.OpenerDirector:
    # One that starts with https knows no http: a redirect that drops the encryption fails.
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
        raise WayError(f"{url} answers {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise WayError(f"{url} cannot be downloaded: {getattr(error, 'reason', error)}") from error
    return response


def _read(url: str) -> str:
    try:
        with _open(url) as response:
            return response.read(_CHECKSUMS_BYTES_AT_MOST).decode("ascii", errors="replace")
    except (OSError, http.client.HTTPException) as error:
        raise WayError(f"{url} broke off: {error}") from error


def _find_checksum(text: str, *, name: str) -> str:
    """The checksum of `name` in the text: lines "<checksum>  <name>", or one bare checksum."""
    for line in text.splitlines():
        fields = line.split()
        if (
            fields
            and re.fullmatch(r"[0-9a-fA-F]{64}", fields[0])
            and (len(fields) == 1 or fields[1].lstrip("*") == name)
        ):
            return fields[0].lower()
    raise WayError(f"the published checksums have none for {name}")


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
                    raise WayError(f"{url} was not complete within {_DOWNLOAD_DEADLINE_SECONDS:.0f} s")
    except (OSError, http.client.HTTPException) as error:
        raise WayError(f"{url} broke off after {received} bytes: {error}") from error
    if digest.hexdigest() != sha256:
        raise WayError(f"{url} has SHA-256 {digest.hexdigest()}, but {sha256} is published; it was thrown away")
    return into


def _unpack(archive: Path, *, members: Mapping[str, str]) -> Iterator[Path]:
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for program, name in members.items():
                member = tar.extractfile(name)
                if member is None:
                    raise WayError(f"{archive.name} holds no file {name}")
                target = archive.parent / program
                with member, target.open("wb") as file:
                    shutil.copyfileobj(member, file)
                yield target
    except (tarfile.TarError, KeyError, EOFError) as error:
        raise WayError(f"{archive.name} cannot be unpacked: {error}") from error
