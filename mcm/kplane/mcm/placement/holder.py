"""Under which name this mcm holds Leases in control planes, and whose Leases it may take over at once."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kplane.api import RegistrationMode
from kplane.mcm.instance.tenant_lease import Holder
from kplane.mcm.placement.sharding import Sharding

__all__ = ["lease_holder"]

_DEDICATED: Final = "dedicated"
_SHARED: Final = "shared"
_FILE: Final = ".fleet"


def lease_holder(
    directory: Path,
    *,
    sharding: Sharding | None,
    mode: RegistrationMode,
    announces: bool,
    uid: Callable[[str], str | None],
    before_write: Callable[[str], float | None] | None = None,
) -> Holder:
    """Name this mcm as a holder, and the groups of mcm that it belongs to and follows.

    Shard Leases order the mcm of a fleet. An mcm that is alone follows itself: its fleet is its state directory, which
    no other mcm may use. `status.instance` orders the modes of a registration. A dedicated mcm `announces` each
    instance there before it starts. It follows a shared mcm only if that one does so too. No dedicated mcm follows
    another one, because a pod that was deleted by force may still work.

    `uid` and `before_write` are as in Holder. Raises OSError if the directory cannot be written.
    """
    name = socket.gethostname()
    fleet = f"{sharding.namespace}/{sharding.prefix}" if sharding is not None else _id_of(directory / _FILE)
    groups: tuple[str, ...] = (fleet, _DEDICATED)
    follows: tuple[str, ...] = (fleet, _SHARED)
    if mode is RegistrationMode.SHARED:
        groups, follows = (fleet, _SHARED) if announces else (fleet,), (fleet, _DEDICATED)
    if sharding is not None and sharding.identity is not None:
        name = sharding.identity
    return Holder(name=name, groups=groups, follows=follows, uid=uid, before_write=before_write)


def _id_of(path: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        if found := path.read_text(errors="replace").strip():
            return found
    made, new = secrets.token_hex(8), path.with_name(f"{path.name}.new")
    new.write_text(made)
    os.replace(new, path)
    return made
