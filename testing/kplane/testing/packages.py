"""kplane's own packages, beside those of the project whose tests run: the names may be the same."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from kplane.testing.errors import Misconfigured

__all__ = ["require"]

_HERE = Path(__file__).resolve().parents[2]
_IMPORTED = ("tools", "workloads")
"""What the plugin imports into pytest's process. An embedded cluster uses more, in processes of its own."""


def require() -> None:
    """Raise `Misconfigured` where Python would find, or has found, a package of somebody else's for one of ours."""
    for name in _IMPORTED:
        location = _location(name)
        if location is not None and not location.is_relative_to(_HERE / name):
            raise Misconfigured(
                f"k8s: kplane's package `{name}` in {_HERE} is hidden by {location}, which Python finds first. Rename "
                f"that one; or, if the tests do not import it, run `pytest --import-mode=importlib` in place of "
                f"`python -m pytest`; or run without a cluster: --k8s=none."
            )


def _location(name: str) -> Path | None:
    loaded = sys.modules.get(name)
    spec = find_spec(name) if loaded is None else loaded.__spec__
    if spec is None:
        return None
    places = [spec.origin] if spec.has_location else spec.submodule_search_locations
    return next((Path(place).resolve() for place in places or () if place), None)
