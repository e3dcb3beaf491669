"""The data stores of an operator: etcds that control planes of mode Virtual share, each with the API servers on it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, Protocol

from kplane.api import DEFAULT_DATA_STORE, ControlPlane
from kplane.api.reasons import Reason
from kplane.controlplane_operator.backends.virtual import VirtualProvisioner
from kplane.controlplane_operator.shared_etcd.access import SharedEtcd
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.data import Usage

__all__ = ["DataStores"]

_NONE_AT_ALL: Final = (
    "this operator has no shared etcd for control planes of mode Virtual: start it with --shared-etcd-service, or with"
    " --shared-etcd-endpoint and --shared-etcd-credentials, or set spec.endpointRef"
)


class _Make(Protocol):
    def __call__(
        self, etcd: SharedEtcd | None, *, data_store: str | None, without: ConditionError
    ) -> VirtualProvisioner:
        """Make the way to API servers on an etcd. `without` is raised where there is none."""
        ...


class DataStores:
    """Finds the data store that has the data of a control plane, and the way to its API server there."""

    def __init__(self, etcds: Mapping[str | None, SharedEtcd], *, make: _Make) -> None:
        """`etcds` has the data stores by the names that homes have: None is the name of the first one."""
        self._make = make
        self._known = {
            name: make(etcd, data_store=name, without=_without(name, known=etcds))
            for name, etcd in {None: None, **etcds}.items()
        }
        self._etcds = etcds
        self._unknown: dict[str | None, VirtualProvisioner] = {}
        """By names that control planes have, and no data store."""

    def of(self, control_plane: ControlPlane) -> VirtualProvisioner:
        """Return the way to the API server in the home that the status names."""
        name = control_plane.home.data_store
        if (found := self._known.get(name) or self._unknown.get(name)) is not None:
            return found
        without = _without(name, known=self._etcds)
        return self._unknown.setdefault(name, self._make(None, data_store=name, without=without))

    def check(self, control_plane: ControlPlane) -> None:
        """Raise ConditionError (DataStoreNotFound) where the home of the control plane names no data store."""
        if (name := control_plane.home.data_store) not in self._known:
            raise _without(name, known=self._etcds)

    def let_go(self, uid: str) -> None:
        """Repair nothing of a control plane by itself any more, until it is ensured again."""
        for each in self._known.values():
            each.let_go(uid)

    def usage(self, uid: str) -> Usage | None:
        """Return what was measured last of the control plane with a uid."""
        return next((found for each in self._known.values() if (found := each.usage(uid)) is not None), None)

    def problem(self) -> str | None:
        """Say what the last checks found wrong, for /readyz."""
        said = {name: each.problem() for name, each in self._known.items()}
        told = (f"data store {name}: {problem}" if name else problem for name, problem in said.items() if problem)
        return "; ".join(told) or None

    async def run(self) -> None:
        """Take care of each data store. Returns when cancelled only, or where there is none."""
        async with asyncio.TaskGroup() as group:
            for name, each in self._known.items():
                group.create_task(each.run(), name=f"data store {name or DEFAULT_DATA_STORE}")


def _without(name: str | None, *, known: Mapping[str | None, SharedEtcd]) -> ConditionError:
    if name is None:
        return ConditionError(Reason.FAILED, _NONE_AT_ALL)
    there = ", ".join(sorted(each or DEFAULT_DATA_STORE for each in known)) or "none"
    return ConditionError(
        Reason.DATA_STORE_NOT_FOUND,
        f"this operator has no data store {name}, and has {there}: name one of them in spec.virtual.dataStoreRef, or in"
        f" the class. If there are data in it, start the operator with --data-store={name}=URL again",
    )
