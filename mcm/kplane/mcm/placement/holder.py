"""Identity of this mcm as a holder of Leases in control planes, and the holders whose Leases it may take at once."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kplane.mcm.instance.tenant_lease import Holder
from kplane.mcm.placement.sharding import Sharding

__all__ = ["lease_holder"]

_FILE: Final = ".fleet"


def lease_holder(
    directory: Path,
    *,
    sharding: Sharding | None,
    uid: Callable[[str], str | None],
    before_write: Callable[[str], float | None] | None = None,
) -> Holder:
    """Return the identity of this mcm as a holder, and its fleet.

    With sharding, shard Leases order the mcm of a fleet. An mcm without sharding takes over only from its own earlier
    run: its fleet is its state directory, which no other mcm may use.

    A shared and a dedicated mcm never take over each other's Leases at once. `status.instance` of a registration orders
    the modes, but does not prove the end of an instance. The operator clears it when the pod of a dedicated mcm is
    gone, and a person may clear it. A pod that was deleted by force may still run, so the Lease has to expire.

    `uid` and `before_write` are as in Holder. Raises OSError if the directory cannot be written.
    """
    if sharding is None:
        return Holder(name=socket.gethostname(), fleet=_id_of(directory / _FILE), uid=uid, before_write=before_write)
    return Holder(
        name=sharding.identity or socket.gethostname(),
        fleet=f"{sharding.namespace}/{sharding.prefix}",
        uid=uid,
        before_write=before_write,
    )


def _id_of(path: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        if existing := path.read_text(errors="replace").strip():
            return existing
    created, new = secrets.token_hex(8), path.with_name(f"{path.name}.new")
    new.write_text(created)
    os.replace(new, path)
    return created
