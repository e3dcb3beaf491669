"""Changes the nodes of a kind cluster, which are containers on this machine."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Nodes", "docker"]

_DOCKER_SECONDS = 120.0


def docker(*args: str, stdin: str | None = None, timeout_seconds: float = _DOCKER_SECONDS) -> str:
    """Run docker with these arguments and return its output. Raises AssertionError with docker's errors."""
    result = subprocess.run(
        ["docker", *args], input=stdin, capture_output=True, text=True, check=False, timeout=timeout_seconds
    )
    assert result.returncode == 0, f"`docker {' '.join(args)}`: {result.stderr.strip()}"
    return result.stdout


@dataclass(frozen=True, slots=True)
class Nodes:
    """All nodes of a kind cluster."""

    names: Sequence[str]

    @contextlib.contextmanager
    def image_named(self, image: str, *, also: str) -> Iterator[None]:
        """Give an image a second name on all nodes, within the context."""
        with contextlib.ExitStack() as afterwards:
            for name in self.names:
                images = ("exec", name, "ctr", "--namespace=k8s.io", "images")
                docker(*images, "tag", "--force", image, also)
                afterwards.callback(docker, *images, "rm", also)
            yield
