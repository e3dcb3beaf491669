"""The nodes of a kind cluster: containers of this machine, into which images are put from outside."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Nodes", "docker"]

_DOCKER_SECONDS = 120.0


def docker(*args: str) -> str:
    """Run docker with these arguments and return what it printed. Raises AssertionError with its words."""
    done = subprocess.run(["docker", *args], capture_output=True, text=True, check=False, timeout=_DOCKER_SECONDS)
    assert done.returncode == 0, f"`docker {' '.join(args)}`: {done.stderr.strip()}"
    return done.stdout


@dataclass(frozen=True, slots=True)
class Nodes:
    """All nodes of the cluster."""

    names: Sequence[str]

    @contextlib.contextmanager
    def image_named(self, image: str, *, also: str) -> Iterator[None]:
        """Let an image that the nodes have go by a second name, as long as the context lasts."""
        with contextlib.ExitStack() as afterwards:
            for name in self.names:
                images = ("exec", name, "ctr", "--namespace=k8s.io", "images")
                docker(*images, "tag", "--force", image, also)
                afterwards.callback(docker, *images, "rm", also)
            yield
