"""Names the alternative routes through the documents, each from an installation to an uninstallation."""

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
"""A context manager that also takes the reader's directory, and ends with the route."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Names a section of a document on a route."""

    document: str
    section: str
    where: Circumstance | None = None
    """Circumstances at its beginning."""

    def blocks(self, route: str) -> list[Block]:
        """Find the blocks that a reader on this route runs here."""
        found = blocks(document(self.document))
        return [block for block in found if block.section == self.section and block.route in (None, route)]


_IMAGES: Final = Stop("install", "Images")
_TENANT: Final = Stop("install", "The first tenant")
_FROM_OUTSIDE: Final = Stop("install", "Reach tenants from outside")
_UNINSTALL: Final = Stop("uninstall", "In the right order")

ROUTES: Final[Mapping[str, tuple[Stop, ...]]] = {
    "kind": (Stop("install", "On kind"), _TENANT, _UNINSTALL),
    "without-helm": (
        _IMAGES,
        Stop("install", "Without Helm"),
        _TENANT,
        Stop("upgrade", "Without Helm"),
        Stop("uninstall", "Without Helm"),
    ),
    "three-members": (
        _IMAGES,
        Stop("install", "Three members", where=shared_files),
        _TENANT,
        _FROM_OUTSIDE,
        Stop("how-to/restore-shared-etcd", "Restore"),
        _UNINSTALL,
    ),
    "growing": (
        _IMAGES,
        Stop("install", "With Helm"),
        _TENANT,
        Stop("upgrade", "The shared etcd: from one member to three"),
        _UNINSTALL,
    ),
    "moving": (
        _IMAGES,
        Stop("install", "With Helm"),
        _TENANT,
        Stop("gateway", "Install it"),
        Stop("move", "Plan first"),
        Stop("move", "Move"),
        Stop("move", "Look"),
        Stop("move", "Abort, and go back"),
        _UNINSTALL,
    ),
    "own-etcd": (_IMAGES, Stop("install", "An etcd of yours", where=etcd_of_their_own), _TENANT, _UNINSTALL),
    "mishaps": (
        _IMAGES,
        Stop("install", "With Helm"),
        _TENANT,
        Stop("troubleshoot/lost-credentials", "Lost while the operator was away", where=lost_credentials),
        _FROM_OUTSIDE,
        Stop("uninstall", "In the wrong order", where=lost_namespace),
    ),
}
