"""Runs the commands of documents as a reader with a checkout and a cluster does."""

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
    """A reader who runs commands in a directory. Files stay there between documents."""

    directory: Path
    environment: Mapping[str, str]

    @classmethod
    def in_checkout(cls, directory: Path, *, environment: Mapping[str, str]) -> Reader:
        """Link the parts of a checkout that an installation needs into an empty directory."""
        for name in _CHECKOUT:
            (directory / name).symlink_to(ROOT / name)
        # The targets of this Makefile build the images in the real checkout.
        (directory / "Makefile").write_text(f".PHONY: {_TARGETS}\n{_TARGETS}:\n\t$(MAKE) -C {ROOT} $@\n")
        return cls(directory, environment)

    def follow(self, document: str, chosen: Iterable[Block]) -> None:
        """Run blocks of docs/`document`.md in order. Raises AssertionError with the output if a command fails."""
        file, log = self.directory / "script.sh", self.directory / "script.log"
        file.write_text(script(f"{document}.md", chosen))
        with log.open("w") as output:
            result = subprocess.run(
                ["bash", str(file)],
                cwd=self.directory,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                check=False,
            )
        assert result.returncode == 0, (
            f"docs/{document}.md ended with status {result.returncode}:\n{log.read_text()[-6000:]}"
        )
