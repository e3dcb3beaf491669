"""Finds and kills containers of Pods in the nodes of a kind cluster."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from e2e.nodes import Nodes, docker

__all__ = ["Containers"]

_SAMPLE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Containers:
    """The containers with a name in the Pods of a namespace."""

    nodes: Nodes
    namespace: str
    name: str

    def running(self) -> Sequence[tuple[str, str]]:
        """Return the node and the id of each running container."""
        filters = ["--state=Running", f"--name=^{self.name}$", f"--label=io.kubernetes.pod.namespace={self.namespace}"]
        return [
            (node, container)
            for node in self.nodes.names
            for container in docker("exec", node, "crictl", "ps", "--quiet", *filters).split()
        ]

    def kill(self) -> None:
        """Kill the running containers at once (-9). The kubelet starts new containers in the same Pods."""
        for node, container in self.running():
            with contextlib.suppress(AssertionError):  # the container has ended in the meantime
                docker("exec", node, "crictl", "stop", "--timeout=0", container)

    @contextlib.contextmanager
    def never_two(self) -> Iterator[None]:
        """Sample the running containers within the context. Raises AssertionError at its end if two ran at once."""
        violations: list[Sequence[tuple[str, str]]] = []
        end = threading.Event()

        def look() -> None:
            while not end.wait(_SAMPLE_SECONDS):
                containers = self.running()
                if len(containers) > 1:
                    violations.append(containers)

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()
        assert violations == []
