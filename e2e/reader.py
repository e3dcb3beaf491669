"""Runs the commands of documents as a reader does who has a checkout and a cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.documents import Block, script
from e2e.installation import ROOT

__all__ = ["Reader"]

_CHECKOUT = ("crds", "deploy", "examples")
_TARGETS = "images install-kind"


@dataclass(frozen=True, slots=True)
class Reader:
    """Runs commands in one directory. Their files stay from one document to the next."""

    directory: Path
    environment: Mapping[str, str]

    @classmethod
    def in_checkout(cls, directory: Path, *, environment: Mapping[str, str]) -> Reader:
        """Put into an empty directory the part of a checkout that an installation needs."""
        for name in _CHECKOUT:
            (directory / name).symlink_to(ROOT / name)
        # The images are built in the real checkout.
        (directory / "Makefile").write_text(f".PHONY: {_TARGETS}\n{_TARGETS}:\n\t$(MAKE) -C {ROOT} $@\n")
        return cls(directory, environment)

    def follow(self, document: str, chosen: Iterable[Block]) -> None:
        """Run blocks of docs/`document`.md in order. Raises AssertionError with their output."""
        file, log = self.directory / "script.sh", self.directory / "script.log"
        file.write_text(script(f"{document}.md", chosen))
        with log.open("w") as output:
            done = subprocess.run(
                ["bash", str(file)],
                cwd=self.directory,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                check=False,
            )
        assert done.returncode == 0, (
            f"docs/{document}.md ended with status {done.returncode}:\n{log.read_text()[-6000:]}"
        )
