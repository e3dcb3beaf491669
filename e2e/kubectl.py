"""The real kubectl, as one user of one API server."""

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
    """kubectl ended with an error; the text has the command and kubectl's own words."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl with one kubeconfig. Every method raises `KubectlFailed`."""

    program: str
    kubeconfig: Path
    context: str | None = None
    """Of the kubeconfig; None for its current one."""

    def __call__(self, *args: str, stdin: str | None = None, timeout_seconds: float = 130.0) -> str:
        """Run kubectl with these arguments and return what it printed."""
        command = [self.program, f"--kubeconfig={self.kubeconfig}"]
        # Addresses are used again by later API servers: what one serves must not be taken for what another does.
        command += [f"--cache-dir={self.kubeconfig.parent / f'.{self.kubeconfig.name}.cache'}"]
        command += [f"--context={self.context}"] if self.context else []
        try:
            done = subprocess.run(
                [*command, *args], input=stdin, capture_output=True, text=True, check=False, timeout=timeout_seconds
            )
        except subprocess.TimeoutExpired:
            raise KubectlFailed(f"`kubectl {' '.join(args)}` took more than {timeout_seconds:.0f} s") from None
        if done.returncode:
            raise KubectlFailed(f"`kubectl {' '.join(args)}`: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def get(self, *args: str) -> Object:
        """Run `kubectl get ARGS -o json`: the object, or the list of objects."""
        found: Object = json.loads(self("get", *args, "-o", "json"))
        return found

    def find(self, *args: str) -> Object | None:
        """Run `kubectl get ARGS` for one object; None where it is not there."""
        printed = self("get", *args, "-o", "json", "--ignore-not-found")
        return json.loads(printed) if printed.strip() else None

    def items(self, *args: str) -> list[Object]:
        """Run `kubectl get ARGS` for several objects: what is in the list."""
        found: list[Object] = self.get(*args)["items"]
        return found

    def names(self, *args: str) -> set[str]:
        """Names of the objects that `kubectl get ARGS` lists."""
        return {item["metadata"]["name"] for item in self.items(*args)}

    def apply(self, *objects: Object) -> None:
        """Run `kubectl apply -f -` on objects."""
        self("apply", "-f", "-", stdin=manifest(*objects))

    def refuses(self, *args: str, stdin: str | None = None) -> str:
        """Run what has to fail, and return kubectl's words. Raises AssertionError where it does not fail."""
        try:
            printed = self(*args, stdin=stdin)
        except KubectlFailed as error:
            return str(error)
        raise AssertionError(f"`kubectl {' '.join(args)}` was accepted: {printed}")


def manifest(*objects: Object) -> str:
    """Write objects as one manifest."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
