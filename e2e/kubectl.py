"""Runs the real kubectl as one user of one API server."""

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
    """kubectl failed. The message has the command and kubectl's errors."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """Runs kubectl with one kubeconfig. Each method raises `KubectlFailed`."""

    program: str
    kubeconfig: Path
    context: str | None = None
    """Context of the kubeconfig; None for the current one."""

    def __call__(self, *args: str, stdin: str | None = None, timeout_seconds: float = 130.0) -> str:
        """Run kubectl with these arguments and return its output."""
        command = [self.program, f"--kubeconfig={self.kubeconfig}"]
        # Later API servers reuse addresses, so each kubeconfig has its own discovery cache.
        command += [f"--cache-dir={self.kubeconfig.parent / f'.{self.kubeconfig.name}.cache'}"]
        command += [f"--context={self.context}"] if self.context else []
        try:
            done = subprocess.run(
                [*command, *args], input=stdin, capture_output=True, text=True, check=False, timeout=timeout_seconds
            )
        except subprocess.TimeoutExpired:
            raise KubectlFailed(
                f"failed to run `kubectl {' '.join(args)}`: not done after {timeout_seconds:.0f} s"
            ) from None
        if done.returncode:
            raise KubectlFailed(
                f"failed to run `kubectl {' '.join(args)}`: {done.stderr.strip() or done.stdout.strip()}"
            )
        return done.stdout

    def get(self, *args: str) -> Object:
        """Run `kubectl get ARGS -o json`, and return the object or the list."""
        found: Object = json.loads(self("get", *args, "-o", "json"))
        return found

    def find(self, *args: str) -> Object | None:
        """Run `kubectl get ARGS` for one object; None if it does not exist."""
        printed = self("get", *args, "-o", "json", "--ignore-not-found")
        return json.loads(printed) if printed.strip() else None

    def items(self, *args: str) -> list[Object]:
        """Run `kubectl get ARGS`, and return the items of the list."""
        found: list[Object] = self.get(*args)["items"]
        return found

    def names(self, *args: str) -> set[str]:
        """Return the names of the objects that `kubectl get ARGS` lists."""
        return {item["metadata"]["name"] for item in self.items(*args)}

    def apply(self, *objects: Object) -> None:
        """Run `kubectl apply -f -` on objects."""
        self("apply", "-f", "-", stdin=manifest(*objects))

    def refuses(self, *args: str, stdin: str | None = None) -> str:
        """Run a command that must fail, and return kubectl's errors. Raises AssertionError if it succeeds."""
        try:
            printed = self(*args, stdin=stdin)
        except KubectlFailed as error:
            return str(error)
        raise AssertionError(f"`kubectl {' '.join(args)}` was accepted: {printed}")


def manifest(*objects: Object) -> str:
    """Write objects as one manifest."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
