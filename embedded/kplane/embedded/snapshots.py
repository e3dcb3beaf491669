"""Storage for the snapshots of a management cluster of processes: a folder in its directory, and a key beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyrage

from kplane.embedded.credentials import write_private
from kplane.embedded.errors import EmbeddedError

__all__ = ["SNAPSHOTS", "SNAPSHOT_KEY", "snapshot_arguments"]

SNAPSHOTS: Final = "snapshots"
"""Name of the folder with the files of snapshots."""
SNAPSHOT_KEY: Final = "snapshots-key.txt"
"""Name of the private key that decrypts the snapshots, in the format of age-keygen. It is kept in the directory."""


def snapshot_arguments(directory: Path) -> Sequence[str]:
    """Create the folder and the key if they do not exist, and return the flags of controlplane-operator.

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
