"""Installation and upgrade of kplane on a cluster: runs helm with the chart of this package."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Self

from kplane.binaries.errors import BinariesError
from kplane.binaries.programs import resolve
from kplane.cli.errors import CliError, Refused
from kplane.cli.kubeconfigs import Management
from kplane.cli.session import continuing
from kplane.cli.versions import is_newer

__all__ = ["CHART", "NAMESPACE", "RELEASE", "Installation"]

CHART: Final = Path(__file__).parent / "chart"
"""Chart of this version of kplane."""
RELEASE: Final = "kplane"
NAMESPACE: Final = "kplane-system"
_ASK_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Installation:
    """Release of kplane on a management cluster."""

    helm: Path
    cluster: Management

    @classmethod
    def on(cls, cluster: Management, *, report: Callable[[str], None]) -> Self:
        """Find or download helm. Raises CliError if helm is not available."""
        try:
            return cls(resolve(programs=["helm"], report=report).path("helm"), cluster)
        except BinariesError as error:
            raise CliError(str(error)) from error

    def install(self, options: Sequence[str]) -> None:
        """Install the chart, with more options of helm.

        Raises Refused if kplane is installed, CliError if helm fails.
        """
        if (release := self._release()) is not None:
            raise Refused(f"{release['chart']} is installed already ({release['status']}): kplane upgrade")
        self._change("install", "--create-namespace", *options)

    def upgrade(self, options: Sequence[str]) -> None:
        """Upgrade to the chart of this version. Values that the user has set remain.

        Raises Refused if kplane is not installed or newer, CliError if helm fails.
        """
        if (release := self._release()) is None:
            raise Refused(f"there is no release {RELEASE} in namespace {NAMESPACE}: kplane init")
        own, installed = version("kplane"), release["chart"].rpartition(f"{RELEASE}-")[2]
        if is_newer(installed, own):
            raise Refused(f"kplane {installed} is installed, and this command is {own}: pip install --upgrade kplane")
        self._change("upgrade", "--reset-then-reuse-values", *options)

    def _release(self) -> dict[str, Any] | None:
        command = self._command("list", "--filter", f"^{RELEASE}$", "--output", "json")
        try:
            process = subprocess.run(
                command,
                env=self.cluster.environment,
                capture_output=True,
                text=True,
                timeout=_ASK_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise CliError(f"helm did not answer for {_ASK_SECONDS:g} s: is the cluster reachable?") from None
        if process.returncode != 0:
            raise CliError(f"failed to look for a release: {process.stderr.strip()}")
        releases: list[dict[str, Any]] = json.loads(process.stdout)
        return releases[0] if releases else None

    def _change(self, verb: str, *options: str) -> None:
        # No timeout here, because helm has its own. The output of helm goes directly to the user.
        command = self._command(verb, RELEASE, str(CHART), *options)
        with continuing(f"helm was interrupted; see the state of the release: helm status {RELEASE} -n {NAMESPACE}"):
            process = subprocess.run(command, env=self.cluster.environment, check=False)
        if process.returncode != 0:
            raise CliError(f"helm {verb} ended with status {process.returncode}; its message is above")

    def _command(self, *arguments: str) -> list[str]:
        context = [] if self.cluster.context is None else ["--kube-context", self.cluster.context]
        return [str(self.helm), *arguments, "--namespace", NAMESPACE, *context]
