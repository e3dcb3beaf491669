"""Shares a directory and a choice of backend between the processes of a pytest run."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from kplane.testing.choice import Choice
from kplane.testing.errors import Misconfigured

__all__ = ["Run", "exclusive", "write_private"]

_VERDICT = "verdict"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Connects the processes of a run.

    The first xdist worker whose tests need a cluster makes the choice for all workers.
    """

    directory: Path
    mine: bool
    """False in an xdist worker."""

    @classmethod
    def begin(cls) -> Self:
        """Create the directory of a new run."""
        return cls(directory=Path(tempfile.mkdtemp(prefix="k8s-test-")), mine=True)

    @classmethod
    def join(cls, directory: str) -> Self:
        """Join the run that has this directory."""
        return cls(directory=Path(directory), mine=False)

    def choose(self, decide: Callable[[], Choice]) -> Choice:
        """Return the choice of this run; call `decide` if the run has no choice yet.

        Raises `Misconfigured` if `decide` raises it, or if another process has called `refuse`.
        """
        with exclusive(self.directory):
            choice = self.chosen()
            if choice is None:
                try:
                    choice = decide()
                except Misconfigured as error:
                    self.refuse(error)
                    raise
                self._write({"choice": choice.dump()})
            return choice

    def refuse(self, error: Misconfigured) -> None:
        """Let each process raise this error, so that no test runs."""
        self._write({"wrong": str(error)})

    def chosen(self) -> Choice | None:
        """Return the choice of this run; None if the run has no choice yet. Raises `Misconfigured` after `refuse`."""
        file = self.directory / _VERDICT
        if not file.exists():
            return None
        verdict: dict[str, Any] = json.loads(file.read_text())
        if "wrong" in verdict:
            raise Misconfigured(verdict["wrong"])
        return Choice.load(verdict["choice"])

    def _write(self, verdict: dict[str, Any]) -> None:
        write_private(self.directory / _VERDICT, content=json.dumps(verdict))


@contextlib.contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Hold the lock of the directory."""
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def write_private(file: Path, *, content: str) -> None:
    """Write a file atomically, readable for this user only."""
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as written:
        written.write(content)
    partial.replace(file)
