"""Protocol to restore keys and data of a control plane before its API server first starts."""

from __future__ import annotations

from typing import Protocol

from kplane.api import ControlPlane
from kplane.data import Credentials, HeldCredentials

__all__ = ["Restorer"]


class Restorer(Protocol):
    """Restores keys and data. Each call may be repeated, and continues an earlier call that was interrupted."""

    async def restore_keys(self, control_plane: ControlPlane) -> None:
        """Restore the Secret of the authorities from the snapshot.

        Does nothing for a clone, whose keys the caller creates. Raises ConditionError until the Secret is restored.
        """
        ...

    async def restore_data(
        self, control_plane: ControlPlane, *, endpoint: str, credentials: Credentials | HeldCredentials, prefix: str
    ) -> None:
        """Restore all data below this prefix of the control plane.

        Raises ConditionError until the data are complete.
        """
        ...

    def has_restored(self, control_plane: ControlPlane) -> bool:
        """Return whether `restore_data` has found all data in the etcd."""
        ...

    def forget(self, uid: str) -> None:
        """Discard the state of a control plane in memory, above all its keys, until the next call for it."""
        ...
