"""What a control plane gets from its source before its API server first starts: a protocol."""

from __future__ import annotations

from typing import Protocol

from kplane.api import ControlPlane
from kplane.data import Credentials, HeldCredentials

__all__ = ["Restorer"]


class Restorer(Protocol):
    """Restores keys and data. Every call may be repeated, and continues where an earlier one was cut off."""

    async def restore_keys(self, control_plane: ControlPlane) -> None:
        """Have the Secret of the authorities be that of the snapshot; a clone gets others, by who asks for them.

        Raises ConditionError while it is not.
        """
        ...

    async def restore_data(
        self, control_plane: ControlPlane, *, endpoint: str, credentials: Credentials | HeldCredentials, prefix: str
    ) -> None:
        """Have all data be below this prefix of the control plane's. Raises ConditionError while they are not."""
        ...

    def has_restored(self, control_plane: ControlPlane) -> bool:
        """Tell whether `restore_data` found all data in the etcd."""
        ...

    def forget(self, uid: str) -> None:
        """Keep nothing of a control plane in memory, keys above all, until it is asked for again."""
        ...
