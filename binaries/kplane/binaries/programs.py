"""Finds the programs that kplane uses, and obtains missing programs.

`resolve` tries KPLANE_BINARIES_DIR, the cache, the official release and a build from source, in this order.
`python -m kplane.binaries [PROGRAM...]` prints the directories of the programs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kplane.binaries.cache import Cache, cache_root, describe_lacking, lacking, publish
from kplane.binaries.errors import BinariesError, WayError
from kplane.binaries.gobuild import build
from kplane.binaries.progress import Report, print_line
from kplane.binaries.release import OFFICIAL, ReleaseSites, download
from kplane.binaries.upstreams import (
    ETCD,
    KUBERNETES,
    RUNTIME,
    UPSTREAMS,
    Platform,
    Upstream,
    parse_platform,
    this_platform,
)

__all__ = ["RUNTIME_PROGRAMS", "Binaries", "BinariesError", "resolve"]

EXPLICIT_DIRECTORY = "KPLANE_BINARIES_DIR"

RUNTIME_PROGRAMS = tuple(program for upstream in RUNTIME for program in upstream.programs)
"""Programs that kplane needs to run: the programs of Kubernetes and etcd."""

_Way = Callable[..., Iterator[Path]]


@dataclass(frozen=True, slots=True)
class Binaries:
    """Maps each requested program to its file."""

    paths: Mapping[str, Path]
    """File by program."""

    @classmethod
    def of_runtime(cls, *, kubernetes: Path, etcd: Path) -> Binaries:
        """Take the programs that kplane needs to run from these two directories, unchecked."""
        return cls(_paths(kubernetes, KUBERNETES.programs) | _paths(etcd, ETCD.programs))

    @property
    def directories(self) -> tuple[Path, ...]:
        """Directories of the programs, without duplicates."""
        return tuple(dict.fromkeys(path.parent for path in self.paths.values()))

    @property
    def kubernetes(self) -> Path:
        """Directory of kube-apiserver and the other Kubernetes programs.

        Raises BinariesError if it was not requested.
        """
        return self.path("kube-apiserver").parent

    @property
    def etcd(self) -> Path:
        """Directory of etcd. Raises BinariesError if it was not requested."""
        return self.path("etcd").parent

    def path(self, program: str) -> Path:
        """Return the file of a program. Raises BinariesError if the program is unknown or was not requested."""
        if program not in self.paths:
            _require_known([program])
            requested = ", ".join(self.paths) or "nothing"
            raise BinariesError(
                f"failed to find {program}: only {requested} was requested; name it in resolve(programs=...)"
            )
        return self.paths[program]

    def copy(self, into: Path) -> None:
        """Copy each program into a directory, and create the directory if it does not exist. Raises OSError."""
        into.mkdir(parents=True, exist_ok=True)
        # Copies, not hard links: a change of a copy must not change the cache.
        with tempfile.TemporaryDirectory(prefix=".staging-", dir=into) as staging:
            for program, path in self.paths.items():
                publish(Path(shutil.copyfile(path, Path(staging) / program)), directory=into)


def resolve(
    *,
    programs: Sequence[str] = RUNTIME_PROGRAMS,
    platform: Platform | None = None,
    report: Report = print_line,
    environment: Mapping[str, str] | None = None,
    sites: ReleaseSites = OFFICIAL,
) -> Binaries:
    """Find `programs`, and obtain missing programs, which takes minutes.

    `platform` is the platform of the programs, by default this machine. `report` receives lines of progress.
    `environment` replaces os.environ. Raises BinariesError, which names the missing programs and why each way to obtain
    them failed.
    """
    _require_known(programs)
    environment = os.environ if environment is None else environment
    platform = platform or this_platform()
    explicit = _explicit_directory(programs, platform=platform, environment=environment)
    cache = Cache(cache_root(environment))
    paths: dict[str, Path] = {}
    for upstream in UPSTREAMS:
        requested = tuple(program for program in upstream.programs if program in programs)
        if explicit is not None and not lacking(explicit, programs=requested):
            paths |= _paths(explicit, requested)
        elif requested:
            directory = _obtain(
                upstream,
                programs=requested,
                platform=platform,
                cache=cache,
                environment=environment,
                sites=sites,
                report=report,
            )
            paths |= _paths(directory, requested)
    return Binaries(paths)


def _paths(directory: Path, programs: Sequence[str]) -> dict[str, Path]:
    return {program: directory / program for program in programs}


def _require_known(programs: Iterable[str]) -> None:
    programs_of_upstreams = [program for upstream in UPSTREAMS for program in upstream.programs]
    for program in programs:
        if program not in programs_of_upstreams:
            raise BinariesError(
                f"failed to find {program}: unknown program; choose from {', '.join(programs_of_upstreams)}"
            )


def _explicit_directory(programs: Sequence[str], *, platform: Platform, environment: Mapping[str, str]) -> Path | None:
    """Return the directory in KPLANE_BINARIES_DIR, if it is for this platform.

    Raises BinariesError if the directory lacks a requested program of Kubernetes or etcd. Other programs may be
    missing.
    """
    explicit = environment.get(EXPLICIT_DIRECTORY)
    if not explicit or platform != this_platform():
        return None
    directory = Path(explicit).absolute()
    required = [program for program in RUNTIME_PROGRAMS if program in programs]
    missing = lacking(directory, programs=required)
    if missing:
        lacks = describe_lacking(directory, programs=missing)
        raise BinariesError(
            f"failed to use {EXPLICIT_DIRECTORY}={directory}: it lacks {lacks}; "
            f"put all of {', '.join(required)} there, or unset {EXPLICIT_DIRECTORY}"
        )
    return directory


def _obtain(
    upstream: Upstream,
    *,
    programs: Sequence[str],
    platform: Platform,
    cache: Cache,
    environment: Mapping[str, str],
    sites: ReleaseSites,
    report: Report,
) -> Path:
    directory = cache.directory(upstream, platform=platform)
    missing = lacking(directory, programs=programs)
    if not missing:
        return directory
    failures = [
        f"{EXPLICIT_DIRECTORY}: {_why_not_explicit(platform, programs=missing, environment=environment)}",
        f"cache {directory}: no {describe_lacking(directory, programs=missing)}",
    ]
    ways: Sequence[tuple[str, _Way]] = (
        ("official release", partial(download, sites=sites)),
        ("go build", partial(build, cache=cache, environment=environment)),
    )
    with cache.exclusive(directory.name, report=report) as staging:
        for title, way in ways:
            missing = lacking(directory, programs=programs)
            if not missing:
                break
            try:
                for staged in way(upstream, programs=missing, platform=platform, staging=staging, report=report):
                    publish(staged, directory=directory)
            except WayError as error:
                report(f"{upstream.name}: {title}: {error}")
                failures.append(f"{title}: {error}")
            except OSError as error:
                raise BinariesError(f"failed to write {upstream.title} to {cache.root}: {error}") from error
    missing = lacking(directory, programs=programs)
    if missing:
        tried = "".join(f"\n- {failure}" for failure in failures)
        raise BinariesError(
            f"failed to obtain {', '.join(missing)} of {upstream.title} v{upstream.version}:{tried}\n"
            f"Repair one of these ways, or set {EXPLICIT_DIRECTORY} to a directory with all programs."
        )
    return directory


def _why_not_explicit(platform: Platform, *, programs: Sequence[str], environment: Mapping[str, str]) -> str:
    explicit = environment.get(EXPLICIT_DIRECTORY)
    if not explicit:
        return "not set"
    if platform != this_platform():
        return f"holds programs for this machine, not for {platform.os}/{platform.arch}"
    return f"{explicit} has no {describe_lacking(Path(explicit), programs=programs)}"


def main(arguments: Sequence[str] = ()) -> int:
    """Print the directories of the programs, a directory per line. Progress and errors go to standard error."""
    parser = argparse.ArgumentParser(
        prog="python -m kplane.binaries",
        description="Finds programs, obtains the missing ones, and prints their directories.",
        allow_abbrev=False,
    )
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="default: all of Kubernetes and etcd")
    parser.add_argument("--platform", metavar="OS/ARCH", help="platform of the programs; default: this machine")
    parser.add_argument("--into", type=Path, metavar="DIRECTORY", help="copy the programs there, and print it")
    given = parser.parse_args(list(arguments))
    try:
        binaries = resolve(
            programs=given.programs or RUNTIME_PROGRAMS,
            platform=parse_platform(given.platform) if given.platform else None,
        )
        if given.into is not None:
            binaries.copy(given.into)
    except (BinariesError, OSError) as error:
        print_line(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        print_line("interrupted; finished programs are kept")
        return 130
    for directory in binaries.directories if given.into is None else [given.into]:
        print(directory)
    return 0
