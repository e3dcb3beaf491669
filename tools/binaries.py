"""Finds the Kubernetes and etcd programs that kplane runs, and obtains them where they are not there yet.

For each upstream, in this order: the directory that KPLANE_BINARIES_DIR names; the user's cache; the official release;
a build from source. `python -m tools.binaries` prints the two directories.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tools.cache import Cache, cache_root, describe_lacking, lacking, publish
from tools.errors import BinariesError, WayError
from tools.gobuild import build
from tools.progress import Report, print_line
from tools.release import OFFICIAL, ReleaseSites, download
from tools.upstreams import ETCD, KUBERNETES, UPSTREAMS, Upstream, this_platform

__all__ = ["Binaries", "BinariesError", "resolve"]

EXPLICIT_DIRECTORY = "KPLANE_BINARIES_DIR"

_Way = Callable[..., Iterator[Path]]


@dataclass(frozen=True, slots=True)
class Binaries:
    """The directories that hold the programs."""

    kubernetes: Path
    etcd: Path

    @property
    def directories(self) -> tuple[Path, Path]:
        return (self.kubernetes, self.etcd)

    def path(self, program: str) -> Path:
        """Where a program is. Raises BinariesError for one that is not among those that kplane runs."""
        if program in KUBERNETES.programs:
            return self.kubernetes / program
        if program in ETCD.programs:
            return self.etcd / program
        known = ", ".join(name for upstream in UPSTREAMS for name in upstream.programs)
        raise BinariesError(f"{program} is none of the programs that kplane runs: {known}.")


def resolve(
    *,
    report: Report = print_line,
    environment: Mapping[str, str] | None = None,
    sites: ReleaseSites = OFFICIAL,
) -> Binaries:
    """Find all programs, and obtain those that are missing: at once where they are cached, minutes where not.

    `report` is called with lines of progress for people; `environment` stands for os.environ. Raises BinariesError,
    which says what is missing and why each way of getting it failed.
    """
    environment = os.environ if environment is None else environment
    explicit = environment.get(EXPLICIT_DIRECTORY)
    if explicit:
        return _take_explicit(Path(explicit).absolute())
    cache = Cache(cache_root(environment))
    kubernetes, etcd = (
        _obtain(upstream, cache=cache, environment=environment, sites=sites, report=report) for upstream in UPSTREAMS
    )
    return Binaries(kubernetes=kubernetes, etcd=etcd)


def _take_explicit(directory: Path) -> Binaries:
    programs = [program for upstream in UPSTREAMS for program in upstream.programs]
    missing = lacking(directory, programs=programs)
    if missing:
        raise BinariesError(
            f"{EXPLICIT_DIRECTORY} is {directory}, which lacks {describe_lacking(directory, programs=missing)}; "
            f"put all of {', '.join(programs)} there, or unset {EXPLICIT_DIRECTORY}."
        )
    return Binaries(kubernetes=directory, etcd=directory)


def _obtain(
    upstream: Upstream, *, cache: Cache, environment: Mapping[str, str], sites: ReleaseSites, report: Report
) -> Path:
    platform = this_platform()
    directory = cache.root / f"{upstream.name}-v{upstream.version}-{platform.os}-{platform.arch}"
    if not lacking(directory, programs=upstream.programs):
        return directory
    failures = [
        f"{EXPLICIT_DIRECTORY}: not set",
        f"cache {directory}: no {describe_lacking(directory, programs=lacking(directory, programs=upstream.programs))}",
    ]
    ways: Sequence[tuple[str, _Way]] = (
        ("official release", partial(download, sites=sites)),
        ("go build", partial(build, cache=cache, environment=environment)),
    )
    with cache.exclusive(directory.name, report=report) as staging:
        for title, way in ways:
            missing = lacking(directory, programs=upstream.programs)
            if not missing:
                break
            try:
                for staged in way(upstream, programs=missing, platform=platform, staging=staging, report=report):
                    publish(staged, directory=directory)
            except WayError as error:
                report(f"{upstream.name}: {title}: {error}")
                failures.append(f"{title}: {error}")
            except OSError as error:
                raise BinariesError(f"{upstream.title} cannot be put into the cache {cache.root}: {error}") from error
    missing = lacking(directory, programs=upstream.programs)
    if missing:
        tried = "".join(f"\n- {failure}" for failure in failures)
        raise BinariesError(
            f"{', '.join(missing)} of {upstream.title} v{upstream.version} cannot be had. What was tried:{tried}\n"
            f"Get one of these ways to work, or name a directory with all programs by {EXPLICIT_DIRECTORY}."
        )
    return directory


def main() -> int:
    """Print the directories of the programs, one a line; progress and errors go to standard error."""
    try:
        binaries = resolve()
    except BinariesError as error:
        print_line(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        print_line("interrupted; what was finished is kept")
        return 130
    for directory in binaries.directories:
        print(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
