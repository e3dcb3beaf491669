"""Runs the real kubectl as a user of an API server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Kubectl", "KubectlFailed", "Object"]

Object = Mapping[str, Any]
"""A Kubernetes object, as JSON."""


class KubectlFailed(AssertionError):
    """Error of a kubectl command that failed or timed out. The message has the command and kubectl's errors."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """The real kubectl with a kubeconfig. Each method but `refuses` raises `KubectlFailed` if kubectl fails."""

    program: str
    kubeconfig: Path
    context: str | None = None
    """Context of the kubeconfig; None for the current context."""

    def __call__(self, *args: str, stdin: str | None = None, timeout_seconds: float = 130.0) -> str:
        """Run kubectl with these arguments and return its output."""
        command = [self.program, f"--kubeconfig={self.kubeconfig}"]
        # New API servers reuse addresses of former API servers, so each kubeconfig has its own discovery cache.
        command += [f"--cache-dir={self.kubeconfig.parent / f'.{self.kubeconfig.name}.cache'}"]
        command += [f"--context={self.context}"] if self.context else []
        try:
            result = subprocess.run(
                [*command, *args], input=stdin, capture_output=True, text=True, check=False, timeout=timeout_seconds
            )
        except subprocess.TimeoutExpired:
            raise KubectlFailed(
                f"failed to run `kubectl {' '.join(args)}`: not done after {timeout_seconds:.0f} s"
            ) from None
        if result.returncode:
            raise KubectlFailed(
                f"failed to run `kubectl {' '.join(args)}`: {result.stderr.strip() or result.stdout.strip()}"
            )
        return result.stdout

    def get(self, *args: str) -> Object:
        """Return the object or the list of `kubectl get ARGS`."""
        result: Object = json.loads(self("get", *args, "-o", "json"))
        return result

    def find(self, *args: str) -> Object | None:
        """Return the object of `kubectl get ARGS`; None if it does not exist."""
        printed = self("get", *args, "-o", "json", "--ignore-not-found")
        return json.loads(printed) if printed.strip() else None

    def items(self, *args: str) -> list[Object]:
        """Return the items of the list of `kubectl get ARGS`."""
        objects: list[Object] = self.get(*args)["items"]
        return objects

    def names(self, *args: str) -> set[str]:
        """Return the names of the objects that `kubectl get ARGS` lists."""
        return {item["metadata"]["name"] for item in self.items(*args)}

    def apply(self, *objects: Object) -> None:
        """Create or update objects with `kubectl apply`."""
        self("apply", "-f", "-", stdin=manifest(*objects))

    def refuses(self, *args: str, stdin: str | None = None) -> str:
        """Run a command that must fail, and return kubectl's errors. Raises AssertionError if the command succeeds."""
        try:
            printed = self(*args, stdin=stdin)
        except KubectlFailed as error:
            return str(error)
        raise AssertionError(f"`kubectl {' '.join(args)}` was accepted: {printed}")


def manifest(*objects: Object) -> str:
    """Return a manifest with these objects: a List in JSON."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
