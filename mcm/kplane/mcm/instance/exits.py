"""Reason of an instance's end, from its exit code and its last lines of log."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from kplane.mcm.reasons import Reason

__all__ = ["EXIT_REASONS", "KILLED_BY", "OomKills", "exit_reason", "find_counter"]

EXIT_REASONS: Final = (
    Reason.BAD_FLAG,
    Reason.API_SERVER_NOT_HEALTHY,
    Reason.LEASE_LOST,
    Reason.OUT_OF_MEMORY,
    Reason.KILLED,
    Reason.BACKOFF,
)
"""Every reason of an end; the last reason covers all other ends."""

KILLED_BY: Final = -9
"""Exit code after SIGKILL."""

# Errors that kube-controller-manager 1.34 to 1.36 writes before it ends: cmd/kube-controller-manager/app
# (WaitForAPIServer, leader election), k8s.io/component-base/cli, pflag,
# k8s.io/apiserver/pkg/server/options/authentication.go.
_LAST_WORDS: Final = (
    (
        Reason.BAD_FLAG,
        re.compile(
            r"unknown (shorthand )?flag|invalid argument .* for .* flag|flag needs an argument"
            r"|is not in the list of known controllers|unrecognized feature gate|cannot set feature gate"
            r"|unable to parse flag"
        ),
    ),
    (
        Reason.API_SERVER_NOT_HEALTHY,
        re.compile(
            r"failed to wait for apiserver being healthy|unable to load configmap based request-header-client-ca-file"
        ),
    ),
    (Reason.LEASE_LOST, re.compile(r"leader ?election lost")),
    (Reason.OUT_OF_MEMORY, re.compile(r"fatal error: (runtime: )?(out of memory|cannot allocate memory)")),
)


def exit_reason(exit_code: int | None, log: str, *, oom_killed: bool) -> Reason:
    """Return why a process ended by itself.

    `exit_code` is negative for a signal. `log` is the end of the process's log. `oom_killed` is whether SIGKILL came
    from a lack of memory. The log may quote answers of an API server. So a hostile API server can fake the reason of
    its own instance's end; no other decision depends on the reason.
    """
    if exit_code is not None and exit_code < 0:
        return Reason.OUT_OF_MEMORY if exit_code == KILLED_BY and oom_killed else Reason.KILLED
    return next((reason for reason, words in _LAST_WORDS if words.search(log)), Reason.BACKOFF)


class OomKills:
    """Counter of processes of this control group that the kernel killed for lack of memory.

    Version 2 of control groups also counts descendant groups (`oom_kill` of memory.events,
    https://docs.kernel.org/admin-guide/cgroup-v2.html). Version 1 counts this group alone (`oom_kill` of
    memory.oom_control). Without a readable counter, for example without control groups, no end counts as an OOM kill.
    """

    def __init__(self, path: Path | None = None) -> None:
        """`path` is the file with the counter; the default is the file of this process's own group."""
        self._path = path if path is not None else find_counter()
        self._taken = self._read()

    def take(self) -> bool:
        """Return whether a kill is left to take, and take it. Each kill explains the end of one process."""
        left = self._read() > self._taken
        self._taken += left
        return left

    def _read(self) -> int:
        if self._path is None:
            return 0
        try:
            counters = dict(line.split() for line in self._path.read_text().splitlines())
            return int(counters.get("oom_kill", 0))
        except (OSError, ValueError):
            return 0


def find_counter(root: Path = Path("/sys/fs/cgroup"), *, membership: Path = Path("/proc/self/cgroup")) -> Path | None:
    """Return the file with the counter of kills; None if there is none.

    In a container, the group is mounted as the root, and `membership` may or may not show that.
    """
    try:
        groups = [line.split(":", 2)[1:] for line in membership.read_text().splitlines()]
    except (OSError, ValueError):
        return None
    for controllers, group in groups:
        if controllers == "":
            paths = [root / group.lstrip("/") / "memory.events", root / "memory.events"]
        elif "memory" in controllers.split(","):
            paths = [
                root / "memory" / group.lstrip("/") / "memory.oom_control",
                root / "memory" / "memory.oom_control",
            ]
        else:
            continue
        if (path := next((candidate for candidate in paths if candidate.is_file()), None)) is not None:
            return path
    return None
