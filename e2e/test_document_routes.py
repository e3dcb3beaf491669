"""Runs the alternative routes through the documents, each from an installation to an uninstallation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from e2e.circumstances import etcd_of_their_own, lost_credentials, lost_namespace, shared_files
from e2e.documents import Block, blocks
from e2e.installation import ROOT, Helm, require_nothing_left, require_unused
from e2e.kubectl import Kubectl
from e2e.reader import Reader

_SECONDS: Final = 1800

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
        found = blocks(ROOT / "docs" / f"{self.document}.md")
        return [block for block in found if block.section == self.section and block.route in (None, route)]


_IMAGES: Final = Stop("install", "Images")
_TENANT: Final = Stop("install", "The first tenant")
_FROM_OUTSIDE: Final = Stop("install", "Reach tenants from outside")
_UNINSTALL: Final = Stop("uninstall", "In the right order")

_ROUTES: Final[Mapping[str, tuple[Stop, ...]]] = {
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
        Stop("operate", "Restore of the shared etcd"),
        _UNINSTALL,
    ),
    "growing": (
        _IMAGES,
        Stop("install", "With Helm"),
        _TENANT,
        Stop("upgrade", "The shared etcd: from one member to three"),
        _UNINSTALL,
    ),
    "own-etcd": (_IMAGES, Stop("install", "An etcd of yours", where=etcd_of_their_own), _TENANT, _UNINSTALL),
    "mishaps": (
        _IMAGES,
        Stop("install", "With Helm"),
        _TENANT,
        Stop("operate", "Lost while the operator was away", where=lost_credentials),
        _FROM_OUTSIDE,
        Stop("uninstall", "In the wrong order", where=lost_namespace),
    ),
}


def test_each_block_of_a_route_is_on_it() -> None:
    """Each block of a route is run by the route that it names, and each stop of a route has a block."""
    documents = (ROOT / "docs").glob("*.md")
    marked = {
        (document.stem, block.section, block.route)
        for document in documents
        for block in blocks(document)
        if block.route is not None
    }
    assert {route for _, _, route in marked} == set(_ROUTES)
    stops = {(stop.document, stop.section, route) for route, stops in _ROUTES.items() for stop in stops}
    assert not marked - stops
    assert all(stop.blocks(route) for route, stops in _ROUTES.items() for stop in stops)


@pytest.mark.k8s_needs("pods", "images")
@pytest.mark.timeout(_SECONDS, func_only=True)
@pytest.mark.parametrize("route", _ROUTES)
def test_whoever_goes_it_gets_to_its_end(
    released: None, reader_environment: Mapping[str, str], kubectl: Kubectl, helm: Helm, route: str, tmp_path: Path
) -> None:
    """The route starts on a cluster without kplane, and leaves no object of kplane."""
    require_unused(kubectl)
    assert helm.status() is None, (
        "failed to start the route: kplane is installed, because an earlier test did not finish"
    )
    reader = Reader.in_checkout(tmp_path, environment=reader_environment)
    with contextlib.ExitStack() as circumstances:
        for stop in _ROUTES[route]:
            if stop.where is not None:
                circumstances.enter_context(stop.where(kubectl, reader.directory))
            reader.follow(stop.document, stop.blocks(route))
    require_nothing_left(kubectl)
