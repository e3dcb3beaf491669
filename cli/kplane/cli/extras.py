"""Check that the packages for kplane on this machine are installed, which most commands do not need."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution, requires

from packaging.requirements import Requirement

from kplane.cli.errors import Refused

__all__ = ["require_operators"]


def require_operators() -> None:
    """Check that the packages of controlplane-operator are installed. Raises Refused if packages are missing.

    Envoy has a check of its own, because KPLANE_ENVOY can name another program.
    """
    requirements = (Requirement(text) for text in requires("kplane") or ())
    missing = [
        requirement.name
        for requirement in requirements
        if requirement.marker is not None
        and requirement.marker.evaluate({"extra": "operator"})
        and not _is_installed(requirement.name)
    ]
    if missing:
        raise Refused(
            f"failed to run kplane on this machine: not installed: {', '.join(sorted(missing))}; install kplane[local]"
        )


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
