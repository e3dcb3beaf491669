"""Data stores of an operator: etcds that control planes of mode Virtual share, each with a backend."""

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
        """Return a backend on this etcd; `without` is the error of a backend that has no etcd."""
        ...


class DataStores:
    """Finds the data store of a control plane, and the backend on it."""

    def __init__(self, etcds: Mapping[str | None, SharedEtcd], *, make: _Make) -> None:
        """Create the backends; `etcds` maps names of data stores, as in homes, to etcds. None names the first one."""
        self._make = make
        self._known = {
            name: make(etcd, data_store=name, without=_without(name, known=etcds))
            for name, etcd in {None: None, **etcds}.items()
        }
        self._etcds = etcds
        self._unknown: dict[str | None, VirtualProvisioner] = {}
        """Backends without an etcd, by the names of missing data stores."""

    def of(self, control_plane: ControlPlane) -> VirtualProvisioner:
        """Return the backend of the data store that the control plane's home names.

        The backend of a missing data store raises ConditionError when it needs the etcd.
        """
        name = control_plane.home.data_store
        if (backend := self._known.get(name) or self._unknown.get(name)) is not None:
            return backend
        without = _without(name, known=self._etcds)
        return self._unknown.setdefault(name, self._make(None, data_store=name, without=without))

    def check(self, control_plane: ControlPlane) -> None:
        """Raise ConditionError (DataStoreNotFound) if the home of the control plane names a missing data store."""
        if (name := control_plane.home.data_store) not in self._known:
            raise _without(name, known=self._etcds)

    def let_go(self, uid: str) -> None:
        """Stop background repairs for this control plane in each data store, until the next `ensure`."""
        for backend in self._known.values():
            backend.let_go(uid)

    def usage(self, uid: str) -> Usage | None:
        """Return the last measurement of the control plane with this uid; None if there is none."""
        return next(
            (measured for backend in self._known.values() if (measured := backend.usage(uid)) is not None), None
        )

    def problem(self) -> str | None:
        """Return the problems that the last checks found, for /readyz; None if there are none."""
        problems = {name: backend.problem() for name, backend in self._known.items()}
        descriptions = (
            f"data store {name}: {problem}" if name else problem for name, problem in problems.items() if problem
        )
        return "; ".join(descriptions) or None

    async def run(self) -> None:
        """Run the background tasks of each data store until cancelled. Returns if no data store has an etcd."""
        async with asyncio.TaskGroup() as group:
            for name, backend in self._known.items():
                group.create_task(backend.run(), name=f"data store {name or DEFAULT_DATA_STORE}")


def _without(name: str | None, *, known: Mapping[str | None, SharedEtcd]) -> ConditionError:
    if name is None:
        return ConditionError(Reason.FAILED, _NONE_AT_ALL)
    names = ", ".join(sorted(store or DEFAULT_DATA_STORE for store in known)) or "none"
    return ConditionError(
        Reason.DATA_STORE_NOT_FOUND,
        f"this operator has no data store {name}, and has {names}: name one of them in spec.virtual.dataStoreRef, or in"
        f" the class. If there are data in it, start the operator with --data-store={name}=URL again",
    )
