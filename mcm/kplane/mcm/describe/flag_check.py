"""Dry run of kube-controller-manager with some arguments: validates flags, and starts no controllers."""

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
    """Return the error with which kube-controller-manager rejects these arguments; None if the arguments are valid.

    The program validates all flags before it reads its kubeconfig, and this kubeconfig does not exist. So an error
    about the kubeconfig proves that all flags are valid (upstream cmd/kube-controller-manager/app/options, `Config`).
    `--version` and `--help` would parse the flags, and not check the value of `--controllers`. Raises RuntimeFailure
    if the program cannot be run.
    """
    # The flags of mcm come first, because a preceding flag without a value would take the next flag as its value.
    question = [f"--kubeconfig={_NOWHERE}", "--secure-port=0", *arguments]
    try:
        await run_program(program, question, timeout_seconds=_TIMEOUT_SECONDS)
    except ProgramFailed as failure:
        error_text = _refusal(failure.stderr.decode(errors="replace"))
        if error_text is None:
            raise RuntimeFailure(f"failed to validate flags with {program}: {failure}") from failure
        return None if error_text.startswith(f"stat {_NOWHERE}:") else error_text
    except ProgramTimedOut as error:
        raise RuntimeFailure(f"failed to validate flags with {program}: {error}") from error
    raise RuntimeFailure(f"failed to validate flags with {program}: it ended and did not mention its kubeconfig")


def _refusal(said: str) -> str | None:
    """Return the last error in the output: below the usage or, with a high `--v`, below a list of all flags."""
    matches = deque(_REFUSAL.finditer(said), maxlen=1)
    if not matches:
        return None
    plain, quoted = matches[0].groups()
    if plain is not None:
        return str(plain)
    try:
        return str(json.loads(f'"{quoted}"'))
    except ValueError:
        return str(quoted)
