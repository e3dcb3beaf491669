"""What a control plane gets from a snapshot before its API server first starts: a protocol."""

from __future__ import annotations

from typing import Protocol

from kplane.api import ControlPlane
from kplane.data import HeldCredentials

__all__ = ["Restorer"]


class Restorer(Protocol):
    """Restores keys and data. Every call may be repeated, and continues where an earlier one was cut off."""

    async def restore_keys(self, control_plane: ControlPlane) -> None:
        """Have the Secret of the authorities be that of the snapshot. Raises ConditionError while it is not."""
        ...

    async def restore_data(self, control_plane: ControlPlane, *, endpoint: str, credentials: HeldCredentials) -> None:
        """Have all data of the snapshot be in this etcd. Raises ConditionError while they are not.

        Raises it once more when they are: the etcd is to be described as one that has its data.
        """
        ...

    def has_restored(self, control_plane: ControlPlane) -> bool:
        """Tell whether `restore_data` found all data in the etcd."""
        ...
