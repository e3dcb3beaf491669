"""Alternative routes through the documents, each from an installation to an uninstallation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.circumstances import etcd_of_their_own, lost_credentials, lost_namespace, shared_files
from e2e.documents import Block, blocks, document
from e2e.kubectl import Kubectl

__all__ = ["ROUTES", "Stop"]

Circumstance = Callable[[Kubectl, Path], AbstractContextManager[None]]
"""A context manager for kubectl and the reader's directory. The context ends with the route."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A section of a document on a route."""

    document: str
    section: str
    where: Circumstance | None = None
    """Circumstance that is prepared before the section."""

    def blocks(self, route: str) -> list[Block]:
        """Return the blocks of the section that a reader on this route runs."""
        candidates = blocks(document(self.document))
        return [block for block in candidates if block.section == self.section and block.route in (None, route)]


_IMAGES: Final = Stop("how-to/install", "Images")
_WITH_HELM: Final = Stop("how-to/install", "With Helm")
_TENANT: Final = (Stop("how-to/first-tenant", "Create a control plane"), Stop("how-to/first-tenant", "Connect to it"))
_FROM_OUTSIDE: Final = Stop("how-to/expose", "Change it")
_UNINSTALL: Final = Stop("how-to/uninstall", "In the right order")

ROUTES: Final[Mapping[str, tuple[Stop, ...]]] = {
    "kind": (Stop("get-started/on-kind", "Install it"), *_TENANT, _UNINSTALL),
    "without-helm": (
        _IMAGES,
        Stop("how-to/install-without-helm", "Without Helm"),
        *_TENANT,
        Stop("how-to/upgrade", "Without Helm"),
        Stop("how-to/uninstall", "Without Helm"),
    ),
    "three-members": (
        _IMAGES,
        Stop("how-to/three-members", "Three members", where=shared_files),
        *_TENANT,
        _FROM_OUTSIDE,
        Stop("how-to/restore-shared-etcd", "Restore"),
        _UNINSTALL,
    ),
    "growing": (
        _IMAGES,
        _WITH_HELM,
        *_TENANT,
        Stop("how-to/grow-shared-etcd", "From one member to three"),
        _UNINSTALL,
    ),
    "moving": (
        _IMAGES,
        _WITH_HELM,
        *_TENANT,
        Stop("how-to/gateway", "Install it"),
        Stop("how-to/move", "Plan first"),
        Stop("how-to/move", "Move"),
        Stop("how-to/move", "Look"),
        Stop("how-to/move", "Abort, and go back"),
        _UNINSTALL,
    ),
    "own-etcd": (
        _IMAGES,
        Stop("how-to/external-etcd", "An etcd of yours", where=etcd_of_their_own),
        *_TENANT,
        _UNINSTALL,
    ),
    "mishaps": (
        _IMAGES,
        _WITH_HELM,
        *_TENANT,
        Stop("troubleshoot/lost-credentials", "Lost while the operator was away", where=lost_credentials),
        _FROM_OUTSIDE,
        Stop("troubleshoot/uninstalled-in-the-wrong-order", "Take the finalizers off", where=lost_namespace),
        Stop("troubleshoot/uninstalled-in-the-wrong-order", "What is not in a namespace"),
    ),
}
