"""A pod that serves a page, for tests of streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from e2e.installation import images
from e2e.kubectl import Object

__all__ = ["PAGE_PORT", "page_pod"]

PAGE_PORT: Final = 8080


def page_pod(name: str, program: str, *, labels: Mapping[str, str] | None = None, **container: Any) -> Object:
    """Return a pod that runs a shell program. The pod is ready when the program serves on `PAGE_PORT`.

    `container` has further fields of the container.
    """
    metadata = {"name": name, "namespace": "default"} | ({"labels": labels} if labels is not None else {})
    server = {
        "name": "main",
        "image": images()[1],
        "command": ["sh", "-c", program],
        "readinessProbe": {"tcpSocket": {"port": PAGE_PORT}, "periodSeconds": 1},
        "volumeMounts": [{"name": "pages", "mountPath": "/srv"}],
        "workingDir": "/srv",
        **container,
    }
    spec = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "containers": [server],
        "volumes": [{"name": "pages", "emptyDir": {}}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
