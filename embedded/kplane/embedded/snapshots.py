"""The storage of snapshots of a management cluster of processes: a folder of its directory, and a key beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyrage

from kplane.embedded.credentials import write_private
from kplane.embedded.errors import EmbeddedError

__all__ = ["SNAPSHOTS", "SNAPSHOT_KEY", "snapshot_arguments"]

SNAPSHOTS: Final = "snapshots"
"""The folder with the files of snapshots."""
SNAPSHOT_KEY: Final = "snapshots-key.txt"
"""The private key that opens them, as age-keygen writes it. It stays with the directory, as the files do."""


def snapshot_arguments(directory: Path) -> Sequence[str]:
    """Make the folder and the key, unless they are there, and return the flags of controlplane-operator.

    Raises OSError, and EmbeddedError if the key is damaged.
    """
    folder, file = directory / SNAPSHOTS, directory / SNAPSHOT_KEY
    folder.mkdir(mode=0o700, exist_ok=True)
    if not file.exists():
        write_private(file, content=f"{pyrage.x25519.Identity.generate()}\n".encode())
    return [f"--snapshot-volume={folder}", f"--snapshot-recipient={_recipient(file)}"]


def _recipient(file: Path) -> pyrage.x25519.Recipient:
    keys = [line for line in file.read_text().split() if line.startswith("AGE-SECRET-KEY-")]
    try:
        return pyrage.x25519.Identity.from_str(keys[0]).to_public()
    except (IndexError, pyrage.IdentityError) as error:
        raise EmbeddedError(
            f"failed to read the key of snapshots in {file}: it has no private key of age-keygen; restore the file, or"
            " delete it to have later snapshots encrypted with a new key"
        ) from error
