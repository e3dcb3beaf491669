"""Runs a program to its end, from code that is not async."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kplane.embedded.errors import EmbeddedError

__all__ = ["Ended", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Status and output of a program that has ended."""

    status: int
    output: str
    errors: str


def run(
    program: Path,
    args: Sequence[str],
    *,
    title: str,
    failure: type[EmbeddedError],
    timed_out: type[EmbeddedError] | None = None,
    timeout_seconds: float,
    stdin: str | None = None,
    check: bool = True,
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Run a program. Error messages contain `title` in place of the command.

    Raises `failure` with the program's output if it cannot start or, with `check`, has a status other than 0. Raises
    `timed_out`, by default `failure`, if it takes longer than `timeout_seconds`. `environment` replaces os.environ.
    """
    __tracebackhide__ = True  # pytest shows the line of the test instead
    try:
        ended = subprocess.run(
            [str(program), *args],
            # Standard input is never the terminal: a credential plugin would wait there for input.
            stdin=subprocess.DEVNULL if stdin is None else None,
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_seconds,
            check=False,
            env=environment,
        )
    except subprocess.TimeoutExpired as error:
        raise (timed_out or failure)(f"failed to run `{title}`: not done after {timeout_seconds:g} s") from error
    except OSError as error:
        raise failure(f"failed to run `{title}`: {error}") from error
    if check and ended.returncode != 0:
        words = ended.stderr.strip() or ended.stdout.strip()
        raise failure(f"failed to run `{title}`: status {ended.returncode}: {words}")
    return Ended(status=ended.returncode, output=ended.stdout, errors=ended.stderr)
