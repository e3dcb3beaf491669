"""Kills the two operators, which are Pods, or processes of an embedded cluster."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from e2e.installation import NAMESPACE
from e2e.kubectl import Kubectl
from e2e.waiting import eventually

__all__ = ["Operators"]

_MODULES: Final = ("kplane.controlplane_operator.main", "kplane.mcm.main")
_WORKLOADS: Final = ("kplane-operator", "kplane-mcm")


@dataclass(frozen=True, slots=True)
class Operators:
    """Both operators of a backend: controlplane-operator and mcm."""

    kubectl: Kubectl
    directory: Path | None
    """Directory of the embedded cluster; None if the operators are Pods."""

    @classmethod
    def of(cls, k8s: Any, kubectl: Kubectl) -> Operators:
        """Return the operators of a backend."""
        return cls(kubectl, None if "pods" in k8s.capabilities else k8s.directory)

    def kill(self) -> None:
        """Kill both operators at once, without a graceful shutdown."""
        if self.directory is not None:
            for module in _MODULES:
                for pid in self._processes(module):
                    os.kill(pid, signal.SIGKILL)
        else:
            self.kubectl("delete", "pod", *self._pods(), "-n", NAMESPACE, "--grace-period=0", "--force")

    def wait_back(self, former: frozenset[str]) -> None:
        """Wait until both operators run again. `former` is the result of `running` before the kill."""
        eventually(
            "both operators run again",
            self.running,
            lambda found: len(found) == len(_MODULES) and not found & former,
            timeout_seconds=120,
        )

    def running(self) -> frozenset[str]:
        """Return the uids of the operators' ready Pods, or the ids of their processes."""
        if self.directory is not None:
            return frozenset(str(pid) for module in _MODULES for pid in self._processes(module))
        return frozenset(self._pods(ready=True).values())

    def _pods(self, *, ready: bool = False) -> dict[str, str]:
        """Return the uid of each operator Pod by name. A uid identifies a Pod, because a StatefulSet reuses names."""
        uids = {}
        for pod in self.kubectl.items("pods", "-n", NAMESPACE):
            conditions = {condition["type"]: condition["status"] for condition in pod["status"].get("conditions", ())}
            name: str = pod["metadata"]["name"]
            is_operator = any(name.startswith(f"{workload}-") for workload in _WORKLOADS)
            if is_operator and (not ready or conditions.get("Ready") == "True"):
                uids[name] = pod["metadata"]["uid"]
        return uids

    def _processes(self, module: str) -> list[int]:
        """Find the processes of a module in this embedded cluster. Other clusters can run on the same machine."""
        parents: dict[int, int] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    arguments = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                except OSError:
                    continue  # the process has ended in the meantime
                if module in arguments and any(str(self.directory) in argument for argument in arguments):
                    parents[int(entry.name)] = parent
        # Between fork and exec, a child process has the arguments of its parent, and does not count.
        return [pid for pid, parent in parents.items() if parent not in parents]
