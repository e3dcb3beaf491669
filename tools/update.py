"""Changes the pinned version of an upstream: `python -m tools.update kubernetes 1.36.4`.

The go.mod is rendered from upstream's own go.mod. So it pins the modules that upstream built and tested, and no module
of an earlier version.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from kplane.binaries.cache import Cache, cache_root
from kplane.binaries.errors import BinariesError, WayError
from kplane.binaries.progress import Report, print_line
from kplane.binaries.release import OFFICIAL, ReleaseSites
from kplane.binaries.toolchain import Go, find_go
from kplane.binaries.upstreams import KUBERNETES, UPSTREAMS, Upstream
from tools.checksums import record

__all__ = ["NAMED_IN", "render_go_mod", "update"]

NAMED_IN = ("deploy/chart/kplane/values.yaml", "deploy/images/list.txt", "deploy/install.yaml")
"""Files that name images of upstreams, with their versions."""

_ROOT = Path(__file__).resolve().parent.parent
_TAGS = {
    "etcd": ("registry.k8s.io/etcd", "v{version}"),
    "kubernetes": ("registry.k8s.io/kube-apiserver", "v{version}"),
}
"""Repository and tag of the image that has an upstream's programs, by the upstream's name."""

_GO_SECONDS = 900.0
_OLDEST_GO = (1, 24)
"""The first Go that supports the directive `tool`."""


def update(
    upstream: Upstream,
    *,
    version: str,
    report: Report = print_line,
    environment: Mapping[str, str] | None = None,
    root: Path = _ROOT,
    sites: ReleaseSites = OFFICIAL,
) -> None:
    """Pin another version. go.mod and go.sum change only after the whole set of modules was resolved.

    Then the files of `NAMED_IN` below `root` get the new image, and the checksums of the release are recorded. Without
    checksums, the programs are built from source. `environment` replaces os.environ. Raises BinariesError if the
    version is invalid, or Go cannot resolve it.
    """
    number = version.removeprefix("v")
    if not re.fullmatch(r"\d+\.\d+\.\d+(-(alpha|beta|rc)\.\d+)?", number):
        raise BinariesError(
            f"{version!r} is no version of {upstream.title}; say for example VERSION={upstream.version}."
        )
    environment = os.environ if environment is None else environment
    go = find_go(upstream.go_version, cache=Cache(cache_root(environment)), environment=environment, report=report)
    # `go mod tidy` writes go.mod; all other calls of Go treat it as read-only.
    go = Go(go.command, {**go.environment, "GOFLAGS": "-mod=mod"})
    with tempfile.TemporaryDirectory(prefix="kplane-update-") as name:
        directory = Path(name)
        (directory / "go.mod").write_text(f"module kplane.dev/tools/update\n\ngo {upstream.go_version}\n")
        report(f"{upstream.name}: asking for {upstream.module} v{number}")
        answer = _run(go, ["mod", "download", "-json", f"{upstream.module}@v{number}"], directory=directory)
        theirs = Path(json.loads(answer)["GoMod"]).read_text()
        (directory / "go.mod").write_text(render_go_mod(upstream, version=number, theirs=theirs))
        report(f"{upstream.name}: resolving its dependencies")
        _run(go, ["mod", "tidy"], directory=directory)
        for file in ("go.sum", "go.mod"):
            staged = upstream.directory / f".{file}.new"
            staged.write_bytes((directory / file).read_bytes())
            staged.replace(upstream.directory / file)
    _name_image(upstream, version=number, root=root)
    upstream.recorded.unlink(missing_ok=True)
    try:
        record(upstream, sites=sites, report=report)
    except WayError as error:
        until = " until `make checksums` succeeds" if upstream.release.checksums is not None else ""
        report(f"{upstream.name}: {error}; its programs are built from source{until}")
    programs = " ".join(upstream.programs)
    report(f"{upstream.name}: pinned v{number}; `python -m kplane.binaries {programs}` and the tests tell if it works")


def _name_image(upstream: Upstream, *, version: str, root: Path) -> None:
    """Write the upstream's image of this version into the chart and its manifests."""
    if upstream.name not in _TAGS:
        return
    repository, tag = _TAGS[upstream.name]
    for name in NAMED_IN:
        file = root / name
        image = f"{repository}:{tag.format(version=version)}"
        file.write_text(re.sub(rf"{re.escape(repository)}:[\w.-]+", image, file.read_text()))


def render_go_mod(upstream: Upstream, *, version: str, theirs: str) -> str:
    """Return the go.mod that pins `version`, for `go mod tidy` to complete; `theirs` is upstream's own go.mod."""
    directives = [_raise_go(line) for line in re.findall(r"^(?:go|godebug) \S+$", theirs, re.MULTILINE)]
    tools = sorted(upstream.packages.values())
    # Kubernetes' programs are packages of a common module; each program of etcd is a module.
    one_module = all(tool.startswith(f"{upstream.module}/") for tool in tools)
    roots = [upstream.module] if one_module else tools
    head = (
        f"// The {upstream.title} programs that kplane uses, pinned. Not a library: nothing imports this module.\n"
        f"// To change the version, see docs/contribute/programs.md.\n"
        f"module kplane.dev/tools/{upstream.name}"
    )
    parts = [
        head,
        *directives,
        _block("tool", tools),
        _block("require", [f"{root} v{version}" for root in roots]),
    ]
    staging = re.findall(r"^\s*(?:replace\s+)?(\S+) => \./staging/", theirs, re.MULTILINE)
    if staging:
        published = f"v0.{version.split('.', 1)[1]}"
        parts.append(
            f"// {upstream.module} names its staging modules by a path inside its own repository: "
            f"here they are the published ones.\n"
            + _block("replace", [f"{module} => {module} {published}" for module in staging])
        )
    return "\n\n".join(parts) + "\n"


def _raise_go(directive: str) -> str:
    """Return the directive, with a Go that can read the rest of the file if it requires an older Go."""
    version = re.fullmatch(r"go (\d+)\.(\d+)\S*", directive)
    major, minor = _OLDEST_GO
    return f"go {major}.{minor}.0" if version and (int(version[1]), int(version[2])) < _OLDEST_GO else directive


def _block(keyword: str, lines: list[str]) -> str:
    if len(lines) == 1:
        return f"{keyword} {lines[0]}"
    return "\n".join([f"{keyword} (", *(f"\t{line}" for line in lines), ")"])


def _run(go: Go, arguments: list[str], *, directory: Path) -> str:
    what = f"go {' '.join(arguments)}"
    try:
        outcome = subprocess.run(
            [go.command, *arguments],
            cwd=directory,
            env=go.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_GO_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BinariesError(f"{what} failed: {error}") from error
    if outcome.returncode != 0:
        raise BinariesError(f"{what} failed:\n{(outcome.stderr or outcome.stdout).strip()}")
    return outcome.stdout


def main(arguments: list[str]) -> int:
    """Run `update` for an upstream and a version given as arguments. Returns the exit status."""
    by_name = {upstream.name: upstream for upstream in UPSTREAMS}
    if len(arguments) != 2 or arguments[0] not in by_name:
        print_line(
            f"error: say what to update to which version, as in `make update-kubernetes VERSION={KUBERNETES.version}`"
        )
        return 2
    try:
        update(by_name[arguments[0]], version=arguments[1])
    except BinariesError as error:
        print_line(f"error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
