"""Finds the facts about this machine that the choice of a backend needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kplane.testing.command import run
from kplane.testing.errors import KindFailed, Unavailable

if TYPE_CHECKING:
    from kplane.binaries.progress import Report

__all__ = ["Machine"]

_KUBECTL_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Machine:
    """Implements `kplane.testing.choice.Probes` with the programs of this machine."""

    environment: Mapping[str, str]
    report: Report
    """Receives lines of progress if programs are obtained."""

    def current_context(self) -> str:
        return self._kubectl("config", "current-context").strip()

    def capabilities(self, context: str) -> frozenset[str]:
        asked = (f"--context={context}", "--request-timeout=10s")
        # A controller publishes this ConfigMap, so a bare API server does not have it.
        published = self._kubectl(
            *asked, "get", "cm", "kube-root-ca.crt", "-n=default", "--ignore-not-found", "-o=name"
        )
        ready = '{.items[*].status.conditions[?(@.type=="Ready")].status}'
        nodes = self._kubectl(*asked, "get", "nodes", f"-o=jsonpath={ready}").split()
        return frozenset({"api", *(["gc"] if published.strip() else []), *(["pods"] if "True" in nodes else [])})

    def has_kind_cluster(self, name: str) -> bool:
        from kplane.binaries.errors import BinariesError
        from kplane.testing import programs
        from kplane.testing.kind import Kind

        try:
            program = programs.kind(environment=self.environment, report=self.report)
            return Kind(program=program, cluster=name).exists()
        except (BinariesError, KindFailed) as error:
            raise Unavailable(f"failed to use kind or its container engine: {error}") from error

    def kind(self) -> str:
        from kplane.binaries.errors import BinariesError
        from kplane.testing import programs

        try:
            return str(programs.kind(environment=self.environment, report=self.report).parent)
        except BinariesError as error:
            raise Unavailable(f"failed to find kind: {error}") from error

    def programs(self, *, obtain: bool) -> str:
        from kplane.binaries.errors import BinariesError
        from kplane.testing import programs

        try:
            directories = programs.local(environment=self.environment)
            if directories is None and obtain:
                from kplane.binaries.programs import resolve

                directories = resolve(environment=self.environment, report=self.report).directories
        except BinariesError as error:
            raise Unavailable(f"failed to find the programs of an embedded cluster: {error}") from error
        if directories is None:
            raise Unavailable(
                "no embedded cluster, because its programs are missing; `python -m kplane.binaries` obtains them"
            )
        return " and ".join(str(directory) for directory in directories)

    def _kubectl(self, *args: str) -> str:
        from kplane.binaries.errors import BinariesError
        from kplane.testing import programs

        try:
            program = programs.kubectl(environment=self.environment, report=self.report)
        except BinariesError as error:
            raise Unavailable(f"failed to find kubectl: {error}") from error
        title = " ".join(("kubectl", *args))
        environment = dict(self.environment)
        return run(
            program, args, title=title, failure=Unavailable, timeout_seconds=_KUBECTL_SECONDS, environment=environment
        ).output
