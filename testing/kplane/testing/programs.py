"""Finds the programs of a backend in the cache of kplane, then on PATH. Obtains missing programs."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from kplane.binaries.cache import Cache, cache_root, lacking
from kplane.binaries.errors import BinariesError
from kplane.binaries.progress import Report
from kplane.binaries.upstreams import ETCD, KIND, KUBERNETES, RUNTIME, Upstream, this_platform

__all__ = ["kind", "kubectl", "local"]


def local(*, environment: Mapping[str, str]) -> tuple[Path, ...] | None:
    """Find the directories of an embedded cluster's programs; None if a program is missing.

    Raises `BinariesError` on a platform without programs.
    """
    kubernetes = _cached(KUBERNETES, programs=KUBERNETES.programs, environment=environment)
    etcd = _cached(ETCD, programs=ETCD.programs, environment=environment)
    return None if kubernetes is None or etcd is None else tuple(dict.fromkeys((kubernetes, etcd)))


def kubectl(*, environment: Mapping[str, str], report: Report) -> Path:
    """Find kubectl. Raises `BinariesError` if it is missing and cannot be obtained."""
    return _find("kubectl", upstream=KUBERNETES, environment=environment, report=report)


def kind(*, environment: Mapping[str, str], report: Report) -> Path:
    """Find kind: the pinned version if it is cached, because a node image fits a single version of kind.

    Raises `BinariesError` if kind is missing and cannot be obtained.
    """
    return _find("kind", upstream=KIND, environment=environment, report=report)


def _find(program: str, *, upstream: Upstream, environment: Mapping[str, str], report: Report) -> Path:
    try:
        directory = _cached(upstream, programs=[program], environment=environment)
    except BinariesError:
        # Even on a platform without programs of this project, the program may be on PATH.
        directory = None
    if directory is not None:
        return directory / program
    return _on_path(program, environment=environment) or _obtain(program, environment=environment, report=report)


def _cached(upstream: Upstream, *, programs: Sequence[str], environment: Mapping[str, str]) -> Path | None:
    # Does not use kplane.binaries.programs, whose import takes many times as long as this function.
    explicit = environment.get("KPLANE_BINARIES_DIR")
    # As in kplane.binaries.programs: programs of the runtime must be in that directory, programs of developers may be.
    if explicit and (upstream in RUNTIME or not lacking(Path(explicit), programs=programs)):
        directory = Path(explicit).absolute()
    else:
        directory = Cache(cache_root(environment)).directory(upstream, platform=this_platform())
    return None if lacking(directory, programs=programs) else directory


def _on_path(program: str, *, environment: Mapping[str, str]) -> Path | None:
    file = shutil.which(program, path=environment.get("PATH"))
    return Path(file) if file else None


def _obtain(program: str, *, environment: Mapping[str, str], report: Report) -> Path:
    from kplane.binaries.programs import resolve

    return resolve(programs=(program,), environment=environment, report=report).path(program)
