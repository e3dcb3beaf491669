"""Runs the real kubectl with a given kubeconfig."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kplane.embedded.errors import KubectlFailed
from kplane.workloads import ProgramFailed, ProgramTimedOut, run_program

__all__ = ["Kubectl"]


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl with a fixed identity and cluster. Each method raises `KubectlFailed` with kubectl's output."""

    program: Path
    kubeconfig: Path
    timeout_seconds: float = 150.0

    async def run(self, *args: str, stdin: str | None = None) -> str:
        """Run kubectl with these arguments and return its output."""
        cache = self.kubeconfig.parent / f".{self.kubeconfig.name}.cache"
        command = [f"--kubeconfig={self.kubeconfig}", f"--cache-dir={cache}", *args]
        try:
            output = await run_program(
                self.program,
                command,
                timeout_seconds=self.timeout_seconds,
                stdin=None if stdin is None else stdin.encode(),
            )
        except (ProgramFailed, ProgramTimedOut) as error:
            raise KubectlFailed(f"failed to run `kubectl {' '.join(args)}` with {self.kubeconfig}: {error}") from error
        return output.decode()

    async def get(self, *args: str) -> dict[str, Any]:
        """Run `kubectl get ARGS -o json`, and return the object or the list."""
        result: dict[str, Any] = json.loads(await self.run("get", *args, "-o", "json"))
        return result

    async def items(self, *args: str) -> list[dict[str, Any]]:
        """Run `kubectl get ARGS -o json`, and return the items of the list."""
        items: list[dict[str, Any]] = (await self.get(*args))["items"]
        return items

    async def names(self, *args: str) -> list[str]:
        """Return the sorted names of the objects in the output of `kubectl get ARGS`."""
        return sorted(item["metadata"]["name"] for item in await self.items(*args))

    async def apply(self, manifest: str) -> str:
        """Run `kubectl apply -f -` on YAML or JSON text."""
        return await self.run("apply", "-f", "-", stdin=manifest)
