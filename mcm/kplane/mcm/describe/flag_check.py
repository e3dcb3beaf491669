"""Asks kube-controller-manager whether it would start with some arguments; nothing is started by that."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kplane.workloads import ProgramFailed, ProgramTimedOut, RuntimeFailure, run_program

__all__ = ["dry_run"]

_TIMEOUT_SECONDS: Final = 15.0
_NOWHERE: Final = "/nonexistent/kubeconfig"
_REFUSAL: Final = re.compile(r'^Error: (.+)$|"command failed"[, ]+"?err"?[=:]"((?:[^"\\]|\\.)*)"', re.MULTILINE)


async def dry_run(program: Path, arguments: Sequence[str]) -> str | None:
    """Return why kube-controller-manager does not take these arguments, in its own words; None if it does.

    It validates all flags before it reads its kubeconfig, and here there is none: so the complaint about that one says
    that all the rest is well (upstream cmd/kube-controller-manager/app/options, `Config`). `--version` and `--help`
    would have it parse them, and look at no value of `--controllers`. Raises RuntimeFailure if it cannot be asked.
    """
    # Ours come first, so that no flag that lacks its value takes one of them for it.
    question = [f"--kubeconfig={_NOWHERE}", "--secure-port=0", *arguments]
    try:
        await run_program(program, question, timeout_seconds=_TIMEOUT_SECONDS)
    except ProgramFailed as failure:
        said = _refusal(failure.stderr.decode(errors="replace"))
        if said is None:
            raise RuntimeFailure(f"failed to validate flags with {program}: {failure}") from failure
        return None if said.startswith(f"stat {_NOWHERE}:") else said
    except ProgramTimedOut as error:
        raise RuntimeFailure(f"failed to validate flags with {program}: {error}") from error
    raise RuntimeFailure(f"failed to validate flags with {program}: it ended and did not mention its kubeconfig")


def _refusal(said: str) -> str | None:
    """Find the last complaint, which is below the usage or, with a high `--v`, below all flags."""
    found = deque(_REFUSAL.finditer(said), maxlen=1)
    if not found:
        return None
    plain, quoted = found[0].groups()
    if plain is not None:
        return str(plain)
    try:
        return str(json.loads(f'"{quoted}"'))
    except ValueError:
        return str(quoted)
