"""Management cluster of `kplane up --driver kind`: a cluster of kind, with images that are built from a clone."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from kplane.binaries.errors import BinariesError
from kplane.binaries.programs import resolve
from kplane.cli.errors import CliError, Refused

__all__ = ["CLUSTER", "CONTEXT", "end_on_kind", "find_clone", "start_on_kind"]

CLUSTER: Final = "kplane"
CONTEXT: Final = f"kind-{CLUSTER}"
_ASK_SECONDS: Final = 60.0

Report = Callable[[str], None]


def start_on_kind(clone: Path, *, report: Report) -> None:
    """Create a cluster of kind with the kplane of a clone, and make its context current. Calls can be repeated.

    kind, make and docker print their own progress. Raises CliError if one of them fails.
    """
    kind = _kind(report=report)
    if CLUSTER in _clusters(kind):
        report(f"kind has the cluster {CLUSTER} already")
        _run([str(kind), "export", "kubeconfig", "--name", CLUSTER])
    else:
        _run([str(kind), "create", "cluster", "--name", CLUSTER])
    report("building the images, and installing the chart ...")
    _run(["make", "-C", str(clone), "install-kind"])
    report("next: kplane create acme; end it: kplane down --driver kind --purge")


def end_on_kind(*, purge: bool, report: Report) -> None:
    """Delete the cluster of kind with all data. Raises Refused without `purge`, and CliError if kind fails."""
    if not purge:
        raise Refused(
            "a cluster of kind keeps no data; delete it with all control planes: kplane down --driver kind --purge"
        )
    kind = _kind(report=report)
    if CLUSTER not in _clusters(kind):
        report("nothing runs")
        return
    _run([str(kind), "delete", "cluster", "--name", CLUSTER])
    report("ended, and all data deleted")


def find_clone(module: Path) -> Path:
    """Return the clone of kplane's repository that contains a module. Raises Refused if there is no clone."""
    for folder in module.resolve().parents:
        if (folder / "Makefile").is_file() and (folder / "deploy" / "images").is_dir():
            return folder
    raise Refused(
        "the images of kplane are not published, so they are built from a clone: run `make venv`, and then"
        " .venv/bin/kplane there"
    )


def _kind(*, report: Report) -> Path:
    try:
        return resolve(programs=["kind"], report=report).path("kind")
    except BinariesError as error:
        raise CliError(str(error)) from error


def _clusters(kind: Path) -> Sequence[str]:
    try:
        process = subprocess.run(
            [str(kind), "get", "clusters"], capture_output=True, text=True, timeout=_ASK_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise CliError(f"kind did not answer for {_ASK_SECONDS:g} s: does docker run?") from None
    if process.returncode != 0:
        raise CliError(f"failed to list the clusters of kind: {process.stderr.strip()}; does docker run?")
    return process.stdout.split()


def _run(command: Sequence[str]) -> None:
    # No timeout here, because the program has its own. Its output goes directly to the user.
    try:
        process = subprocess.run(command, check=False)
    except FileNotFoundError:
        raise CliError(f"there is no program {command[0]}; install it") from None
    if process.returncode != 0:
        raise CliError(
            f"{Path(command[0]).name} {command[-1]} ended with status {process.returncode}; its message is above"
        )
