"""In which order a virtual control plane is taken down: nothing can write below its path any more when its keys go."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kplane.api import ControlPlane, DeletionPolicy
from kplane.controlplane_operator.backends.virtual import VirtualProvisioner
from kplane.controlplane_operator.errors import KeyspaceError
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.workloads import RuntimeFailure

CONTROL_PLANE = ControlPlane.model_validate(
    {"metadata": {"name": "shop", "uid": "u-1"}, "spec": {}, "status": {"clusterPath": "shop"}}
)


class Steps:
    """Stands for the runtime and the etcd: writes down what they are asked, and fails at one step once."""

    def __init__(self, failing: str | None = None, error: Exception | None = None) -> None:
        self.done: list[str] = []
        self._failing = failing
        self._error = error

    def _do(self, step: str) -> None:
        if step == self._failing and self._error is not None:
            error, self._error = self._error, None
            raise error
        self.done.append(step)

    async def delete(self, name: str) -> None:
        self._do("end")

    async def revoke(self, user: str) -> None:
        self._do(f"revoke {user}")

    async def delete_prefix(self, prefix: str) -> int:
        self._do(f"delete {prefix}")
        return 0


def provisioner(steps: Steps) -> VirtualProvisioner:
    parts: Any = SimpleNamespace(client=None, stores=None, events=None)
    runtime: Any = steps
    shared: Any = SimpleNamespace(keyspace=steps)
    return VirtualProvisioner(parts, runtime=runtime, shared_etcd=shared)


async def undo(virtual: VirtualProvisioner, *, policy: DeletionPolicy) -> None:
    await virtual.shut_down(CONTROL_PLANE)
    await virtual.settle(CONTROL_PLANE, policy=policy)


DESTROYED = ["revoke cp-u-1", "end", "delete /clusters/shop/"]


async def test_access_goes_before_the_keys() -> None:
    steps = Steps()
    await undo(provisioner(steps), policy=DeletionPolicy.DESTROY)
    assert steps.done == DESTROYED
    steps = Steps()
    await undo(provisioner(steps), policy=DeletionPolicy.RETAIN)
    assert steps.done == DESTROYED[:-1]


@pytest.mark.parametrize(
    ("failing", "error"),
    [
        ("revoke cp-u-1", KeyspaceError("no leader")),
        ("end", RuntimeFailure("its node is out of reach")),
        ("delete /clusters/shop/", KeyspaceError("1 key is left")),
    ],
)
async def test_a_removal_that_was_cut_off_begins_with_the_access_again(failing: str, error: Exception) -> None:
    steps = Steps(failing, error)
    virtual = provisioner(steps)
    with pytest.raises(ConditionError, match=str(error)):
        await undo(virtual, policy=DeletionPolicy.DESTROY)
    assert steps.done == DESTROYED[: DESTROYED.index(failing)]
    steps.done.clear()
    await undo(virtual, policy=DeletionPolicy.DESTROY)
    assert steps.done == DESTROYED


async def test_access_of_an_earlier_control_plane_is_taken_away_by_its_uid() -> None:
    steps = Steps()
    await provisioner(steps).shut_out("former")
    assert steps.done == ["revoke cp-former"]
