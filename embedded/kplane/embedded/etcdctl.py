"""Runs the real etcdctl with one client certificate."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kplane.workloads import run_program

__all__ = ["Etcdctl"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Etcdctl:
    """Runs etcdctl as one user of one etcd. Raises `workloads.ProgramFailed` and `workloads.ProgramTimedOut`."""

    program: Path
    endpoint: str
    ca: Path
    certificate: Path
    key: Path
    timeout_seconds: float = 20.0

    async def run(self, *args: str) -> bytes:
        """Run etcdctl with these arguments and return its output."""
        connection = [
            f"--endpoints={self.endpoint}",
            f"--cacert={self.ca}",
            f"--cert={self.certificate}",
            f"--key={self.key}",
        ]
        return await run_program(self.program, [*connection, *args], timeout_seconds=self.timeout_seconds)

    async def json(self, *args: str) -> dict[str, Any]:
        """Run etcdctl with `-w json`."""
        answer: dict[str, Any] = json.loads(await self.run(*args, "-w", "json"))
        return answer

    async def count(self, prefix: str) -> int:
        """Count the keys below a prefix."""
        answer = await self.json("get", prefix, "--prefix", "--keys-only", "--limit=1")
        return int(answer.get("count", 0))

    async def digests(self, prefix: str, *, of_interest: Callable[[str], bool]) -> Mapping[str, str]:
        """Hash value and modification revision of each key below a prefix that `of_interest` accepts."""
        answer = await self.json("get", prefix, "--prefix")
        found: dict[str, str] = {}
        for pair in answer.get("kvs", ()):
            key = base64.b64decode(pair["key"]).decode()
            if of_interest(key):
                content = base64.b64decode(pair.get("value", "")) + str(pair["mod_revision"]).encode()
                found[key] = hashlib.sha256(content).hexdigest()
        return found
