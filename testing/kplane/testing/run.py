"""One run of pytest, of however many processes: the directory that they share, and the choice that they make once."""

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
    """What the processes of one run know of each other.

    With xdist it is the workers that learn which tests there are: the first that needs a cluster chooses for all.
    """

    directory: Path
    mine: bool
    """False in a worker of xdist."""

    @classmethod
    def begin(cls) -> Self:
        """Make the directory of a new run."""
        return cls(directory=Path(tempfile.mkdtemp(prefix="k8s-test-")), mine=True)

    @classmethod
    def join(cls, directory: str) -> Self:
        """Be one of the processes of a run."""
        return cls(directory=Path(directory), mine=False)

    def choose(self, decide: Callable[[], Choice]) -> Choice:
        """Give the choice of this run; where nobody has made it, `decide` does.

        Raises `Misconfigured` where that, or `refuse`, said that the run cannot be.
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
        """Have every process raise this error: no test is to run."""
        self._write({"wrong": str(error)})

    def chosen(self) -> Choice | None:
        """Give the choice, if it has been made. Raises `Misconfigured` where the run has been refused."""
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
    """Be the only process that is at the directory."""
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def write_private(file: Path, *, content: str) -> None:
    """Write a file that nobody else can read, and that is there whole or not at all."""
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as written:
        written.write(content)
    partial.replace(file)
