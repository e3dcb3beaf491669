"""What this machine has: the answers that the choice of a backend needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedded.testing.command import run
from embedded.testing.errors import KindFailed, Unavailable

if TYPE_CHECKING:
    from tools.progress import Report

__all__ = ["Machine"]

_KUBECTL_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Machine:
    """Finds things out by asking this machine; `embedded.testing.choice.Probes` says what the methods do."""

    environment: Mapping[str, str]
    report: Report
    """Is called with lines of progress where programs are obtained."""

    def current_context(self) -> str:
        return self._kubectl("config", "current-context").strip()

    def capabilities(self, context: str) -> frozenset[str]:
        asked = (f"--context={context}", "--request-timeout=10s")
        # Its publisher is one of the controllers: a bare API server does not have it.
        published = self._kubectl(
            *asked, "get", "cm", "kube-root-ca.crt", "-n=default", "--ignore-not-found", "-o=name"
        )
        ready = '{.items[*].status.conditions[?(@.type=="Ready")].status}'
        nodes = self._kubectl(*asked, "get", "nodes", f"-o=jsonpath={ready}").split()
        return frozenset({"api", *(["gc"] if published.strip() else []), *(["pods"] if "True" in nodes else [])})

    def has_kind_cluster(self, name: str) -> bool:
        from embedded.testing import programs
        from embedded.testing.kind import Kind
        from tools.errors import BinariesError

        try:
            program = programs.kind(environment=self.environment, report=self.report)
            return Kind(program=program, cluster=name).exists()
        except (BinariesError, KindFailed) as error:
            raise Unavailable(f"kind does not work here, or its container engine does not: {error}") from error

    def kind(self) -> str:
        from embedded.testing import programs
        from tools.errors import BinariesError

        try:
            return str(programs.kind(environment=self.environment, report=self.report).parent)
        except BinariesError as error:
            raise Unavailable(f"no kind: {error}") from error

    def programs(self, *, obtain: bool) -> str:
        from embedded.testing import programs
        from tools.errors import BinariesError

        try:
            directories = programs.local(environment=self.environment)
            if directories is None and obtain:
                from tools.binaries import resolve

                directories = resolve(environment=self.environment, report=self.report).directories
        except BinariesError as error:
            raise Unavailable(f"no embedded cluster: {error}") from error
        if directories is None:
            raise Unavailable(
                "no embedded cluster, as its programs are not here; `python -m tools.binaries` obtains them"
            )
        return " and ".join(str(directory) for directory in directories)

    def _kubectl(self, *args: str) -> str:
        from embedded.testing import programs
        from tools.errors import BinariesError

        try:
            program = programs.kubectl(environment=self.environment, report=self.report)
        except BinariesError as error:
            raise Unavailable(f"no kubectl: {error}") from error
        title = " ".join(("kubectl", *args))
        environment = dict(self.environment)
        return run(
            program, args, title=title, failure=Unavailable, timeout_seconds=_KUBECTL_SECONDS, environment=environment
        ).output
