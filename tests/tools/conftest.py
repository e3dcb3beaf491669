"""An isolated machine for tests: a home, a PATH with a fake `go`, and release sites on the loopback."""

from __future__ import annotations

import hashlib
import io
import socket
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kplane.binaries.programs import RUNTIME_PROGRAMS, Binaries, resolve
from kplane.binaries.release import ReleaseSites
from kplane.binaries.upstreams import ETCD, HELM, KIND, KUBERNETES, Platform, Upstream, this_platform

ROOT = Path(__file__).resolve().parents[2]

# Replaces minutes of compilation: the script records its calls and writes the file of -o.
GO = """#!/bin/sh
case "$1" in
env) echo go1.99.0; exit ;;
build)
    while [ "$1" != -o ]; do shift; done
    echo "$3" >> "{calls}"
    {build}
    ;;
esac
"""
SUCCEED = "sleep 0.05; printf '#!/bin/sh\\necho built\\n' > \"$2\""

RESOLVE = """
import sys
from kplane.binaries.programs import resolve
from kplane.binaries.release import ReleaseSites
print(*resolve(sites=ReleaseSites(mirror=sys.argv[1], connect_seconds=1.0)).directories)
"""


@dataclass
class Machine:
    home: Path
    sites: ReleaseSites
    lines: list[str] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "HOME": str(self.home),
            "PATH": f"{self.home}/bin:/usr/bin:/bin",
            "PYTHONPATH": str(ROOT / "binaries"),
            "no_proxy": "*",
        }

    @property
    def cache(self) -> Path:
        return self.home / ".cache" / "kplane" / "binaries"

    @property
    def built(self) -> list[str]:
        calls = self.home / "calls"
        return calls.read_text().split() if calls.exists() else []

    def directory(self, upstream: Upstream, *, platform: Platform | None = None) -> Path:
        platform = platform or this_platform()
        return self.cache / f"{upstream.name}-v{upstream.version}-{platform.os}-{platform.arch}"

    def install_go(self, *, build: str = SUCCEED) -> None:
        command = self.home / "bin" / "go"
        command.parent.mkdir(exist_ok=True)
        command.write_text(GO.format(calls=self.home / "calls", build=build))
        command.chmod(0o755)

    def fill(self, directory: Path, *upstreams: Upstream) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        for upstream in upstreams:
            for program in upstream.programs:
                (directory / program).write_text("#!/bin/sh\necho cached\n")
                (directory / program).chmod(0o755)

    def resolve(
        self, *programs: str, platform: Platform | None = None, environment: Mapping[str, str] | None = None
    ) -> Binaries:
        return resolve(
            programs=programs or RUNTIME_PROGRAMS,
            platform=platform,
            report=self.lines.append,
            environment={**self.environment, **(environment or {})},
            sites=self.sites,
        )

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", RESOLVE, str(self.sites.mirror)],
            env=self.environment,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def refusing_url() -> Iterator[str]:
    """A site that refuses connections: its port is bound without a listener."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def machine(tmp_path: Path, refusing_url: str) -> Machine:
    """A machine without programs, without Go and without internet."""
    home = tmp_path / "home"
    home.mkdir()
    return Machine(home, ReleaseSites(mirror=refusing_url, connect_seconds=1.0))


@pytest.fixture
def release(tmp_path: Path) -> Iterator[tuple[Path, ReleaseSites]]:
    """Files of all official releases in their layout, and a site with their recorded checksums."""
    site = tmp_path / "site"
    platform = this_platform()
    for program in KUBERNETES.programs:
        file = site / f"v{KUBERNETES.version}" / "bin" / platform.os / platform.arch / program
        checksum = _write_program(file)
        file.with_name(f"{program}.sha256").write_text(checksum)

    folder = f"etcd-v{ETCD.version}-{platform.os}-{platform.arch}"
    archive = site / f"v{ETCD.version}" / f"{folder}.tar.gz"
    checksum = _write_archive(archive, *(f"{folder}/{program}" for program in (*ETCD.programs, "README.md")))
    (archive.parent / "SHA256SUMS").write_text(f"{'0' * 64}  etcd-other.zip\n{checksum}  {archive.name}\n")

    folder = f"{platform.os}-{platform.arch}"
    archive = site / f"helm-v{HELM.version}-{folder}.tar.gz"
    checksum = _write_archive(archive, f"{folder}/LICENSE", f"{folder}/helm")
    (site / f"{archive.name}.sha256sum").write_text(f"{checksum}  {archive.name}\n")

    file = site / f"v{KIND.version}" / f"kind-{platform.os}-{platform.arch}"
    checksum = _write_program(file, says="kind")
    file.with_name(f"{file.name}.sha256sum").write_text(f"{checksum}  {file.name}\n")

    checksums = {str(f.relative_to(site)): _sha256(f) for f in site.rglob("*") if f.is_file()}
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(site))) as server:
        thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.01))
        thread.start()
        yield site, ReleaseSites(mirror=f"http://127.0.0.1:{server.server_port}", checksums=checksums)
        server.shutdown()
        thread.join()


def _content(program: str) -> bytes:
    return f"#!/bin/sh\necho released {program}\n".encode()


def _write_program(file: Path, *, says: str = "") -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(_content(says or file.name))
    return _sha256(file)


def _write_archive(archive: Path, *members: str) -> str:
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:gz") as tar:
        for name in members:
            content = _content(name.rsplit("/", 1)[1])
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return _sha256(archive)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        pass


@pytest.fixture
def run_program() -> Callable[[Path], str]:
    return lambda program: subprocess.run(
        [program], check=True, capture_output=True, text=True, timeout=60
    ).stdout.strip()
