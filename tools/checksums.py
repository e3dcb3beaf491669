"""Records the SHA-256 of the official programs of the pinned versions: `python -m tools.checksums [UPSTREAM...]`.

`kplane.binaries` compares downloads with the records in this repository. A reviewer compares a new record with a second
source.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from kplane.binaries.errors import BinariesError, WayError
from kplane.binaries.progress import Report, print_line
from kplane.binaries.release import OFFICIAL, ReleaseSites, published
from kplane.binaries.upstreams import UPSTREAMS, Platform, Upstream

__all__ = ["PLATFORMS", "record"]

PLATFORMS = (Platform("linux", "amd64"), Platform("linux", "arm64"))
"""Platforms that kplane runs on."""


def record(upstream: Upstream, *, sites: ReleaseSites = OFFICIAL, report: Report = print_line) -> None:
    """Record the published checksums of the pinned version. Raises WayError if they cannot be read."""
    checksums = published(upstream, platforms=PLATFORMS, sites=sites)
    site = sites.mirror or upstream.release.site
    lines = [f"# Published at {site}; recorded by `make checksums`."]
    lines += [f"{sha256}  {path}" for path, sha256 in sorted(checksums.items())]
    staged = upstream.recorded.with_name(".SHA256SUMS.new")
    staged.write_text("\n".join([*lines, ""]))
    staged.replace(upstream.recorded)
    report(f"{upstream.name}: recorded {len(checksums)} checksums of v{upstream.version}; compare with a second source")


def main(arguments: Sequence[str]) -> int:
    """Record the checksums of the named upstreams, by default of all upstreams that publish checksums."""
    by_name = {upstream.name: upstream for upstream in UPSTREAMS}
    unknown = [name for name in arguments if name not in by_name]
    if unknown:
        print_line(f"error: unknown upstream {', '.join(unknown)}; choose from {', '.join(by_name)}")
        return 2
    failed = False
    for name in arguments or [candidate.name for candidate in UPSTREAMS if candidate.release.checksums is not None]:
        try:
            record(by_name[name])
        except WayError as error:
            print_line(f"error: {name}: {error}; what was recorded stays")
            failed = True
        except BinariesError as error:
            print_line(f"error: {error}")
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
