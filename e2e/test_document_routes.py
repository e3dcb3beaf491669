"""Runs the alternative routes through the documents."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from e2e.installation import Helm, require_nothing_left, require_unused
from e2e.kubectl import Kubectl
from e2e.reader import Reader
from e2e.routes import ROUTES

_SECONDS: Final = 1800


@pytest.mark.k8s_needs("pods", "images")
@pytest.mark.timeout(_SECONDS, func_only=True)
@pytest.mark.parametrize("route", ROUTES)
def test_route_runs_to_its_end_and_leaves_no_objects(
    released: None, reader_environment: Mapping[str, str], kubectl: Kubectl, helm: Helm, route: str, tmp_path: Path
) -> None:
    """The route starts on a cluster without kplane."""
    require_unused(kubectl)
    assert helm.status() is None, (
        "failed to start the route: kplane is installed, because an earlier test did not finish"
    )
    reader = Reader.in_checkout(tmp_path, environment=reader_environment)
    with contextlib.ExitStack() as circumstances:
        for stop in ROUTES[route]:
            if stop.where is not None:
                circumstances.enter_context(stop.where(kubectl, reader.directory))
            reader.follow(stop.document, stop.blocks(route))
    require_nothing_left(kubectl)
