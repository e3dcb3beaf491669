"""Removal of a virtual control plane: order of the steps, and ownership of data in the shared etcd."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kplane.api import ControlPlane, DeletionPolicy
from kplane.api.names import DESTROY_DATA_ANNOTATION
from kplane.controlplane_operator.backends.virtual import VirtualProvisioner
from kplane.controlplane_operator.errors import KeyspaceError, PrefixNotOwned
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.data import NotOwned, Owner
from kplane.provider import NotFound
from kplane.workloads import RuntimeFailure

PREFIX = "/clusters/shop/"
OWN = Owner("u-1", "shop")
OTHER = Owner("u-0", "shop")


def control_plane(*, published: bool = False, confirmed: str | None = None) -> ControlPlane:
    status = {"clusterPath": "shop"} | ({"endpoint": "https://shop:6443"} if published else {})
    annotations = {} if confirmed is None else {DESTROY_DATA_ANNOTATION: confirmed}
    metadata = {"name": "shop", "uid": "u-1", "annotations": annotations}
    return ControlPlane.model_validate({"metadata": metadata, "spec": {}, "status": status})


class Steps:
    """Fake runtime and etcd: records the steps, and fails once at the step `failing`."""

    def __init__(
        self, failing: str | None = None, error: Exception | None = None, *, owner: Owner | None = OWN, keys: int = 3
    ) -> None:
        self.done: list[str] = []
        self.told: list[str] = []
        self.held = owner
        self.keys = keys
        self._failing = failing
        self._error = error

    def _do(self, step: str) -> None:
        if step == self._failing and self._error is not None:
            error, self._error = self._error, None
            raise error
        self.done.append(step)

    async def delete(self, name: str) -> None:
        self._do("end")

    def names(self, *, prefix: str = "") -> list[str]:
        return []

    async def revoke(self, user: str) -> None:
        self._do(f"revoke {user}")

    async def owner(self, prefix: str) -> Owner | None:
        return self.held

    async def count(self, prefix: str) -> int:
        return self.keys

    async def claim(self, prefix: str, *, owner: Owner, known: bool) -> None:
        if self.held not in {None, owner} or (self.held is None and self.keys and not known):
            raise PrefixNotOwned(NotOwned(prefix, self.held))
        self.held = owner

    async def take_over(self, prefix: str, *, former: Owner | None, owner: Owner) -> None:
        assert former == self.held
        self.held = owner

    async def discard_unfinished(self, prefix: str, *, owner: Owner) -> None:
        self._do("discard")

    async def release(self, prefix: str, *, owner: Owner) -> None:
        self._do("release")

    async def delete_prefix(self, prefix: str, *, owner: Owner) -> int:
        self._do(f"delete {prefix}")
        assert self.held == owner
        deleted, self.keys, self.held = self.keys, 0, None
        return deleted

    def record(self, _: ControlPlane, *, reason: str, message: str, **__: Any) -> None:
        self.told.append(f"{reason}: {message}")


class NoSecrets:
    async def get(self, *_: Any, **__: Any) -> Any:
        raise NotFound(404, "NotFound", "no such Secret")


def provisioner(steps: Steps) -> VirtualProvisioner:
    stores = SimpleNamespace(secrets={}, allowed_secrets={})
    metrics = SimpleNamespace(keys_deleted=lambda _: None)
    parts: Any = SimpleNamespace(client=NoSecrets(), stores=stores, events=steps, metrics=metrics)
    runtime: Any = steps
    shared: Any = SimpleNamespace(keyspace=steps)
    return VirtualProvisioner(parts, runtime=runtime, shared_etcd=shared, restorer=shared)


async def undo(virtual: VirtualProvisioner, *, policy: DeletionPolicy) -> None:
    await virtual.shut_down(control_plane())
    await virtual.settle(control_plane(), policy=policy)


DESTROYED = ["revoke cp-u-1", "end", f"delete {PREFIX}"]


async def test_removal_revokes_access_before_it_deletes_keys() -> None:
    steps = Steps()
    await undo(provisioner(steps), policy=DeletionPolicy.DESTROY)
    assert steps.done == DESTROYED
    steps = Steps()
    await undo(provisioner(steps), policy=DeletionPolicy.RETAIN)
    # An incomplete copy is discarded. An adopting control plane would run an API server on the copy.
    assert steps.done == [*DESTROYED[:-1], "discard", "release"]


@pytest.mark.parametrize(
    ("failing", "error"),
    [
        ("revoke cp-u-1", KeyspaceError("no leader")),
        ("end", RuntimeFailure("its node is out of reach")),
        (f"delete {PREFIX}", KeyspaceError("no answer")),
    ],
)
async def test_interrupted_removal_starts_again_with_access(failing: str, error: Exception) -> None:
    steps = Steps(failing, error)
    virtual = provisioner(steps)
    with pytest.raises(ConditionError, match=str(error)):
        await undo(virtual, policy=DeletionPolicy.DESTROY)
    assert steps.done == DESTROYED[: DESTROYED.index(failing)]
    steps.done.clear()
    await undo(virtual, policy=DeletionPolicy.DESTROY)
    assert steps.done == DESTROYED


@pytest.mark.parametrize("owner", [None, OTHER], ids=["no owner", "another owner"])
async def test_removal_leaves_foreign_data_and_posts_event(owner: Owner | None) -> None:
    steps = Steps(owner=owner)
    virtual = provisioner(steps)
    assert not await virtual.has_data(control_plane())
    await undo(virtual, policy=DeletionPolicy.DESTROY)
    assert (steps.keys, steps.held) == (3, owner)
    whose = "no control plane that is known" if owner is None else "control plane shop (u-0)"
    assert steps.told == [f"DataLeft: left the data below {PREFIX} of the shared etcd, which belong to {whose}"]


@pytest.mark.parametrize(
    ("owner", "named", "destroyed"),
    [
        (None, PREFIX, True),
        (None, f"{PREFIX}@u-0", False),
        (OTHER, f"{PREFIX}@u-0", True),
        (OTHER, PREFIX, False),
        (OTHER, f"{PREFIX}@u-2", False),
        (OTHER, "true", False),
    ],
)
async def test_annotation_that_names_owner_destroys_foreign_data(
    owner: Owner | None, named: str, *, destroyed: bool
) -> None:
    steps = Steps(owner=owner)
    await provisioner(steps).settle(control_plane(confirmed=named), policy=DeletionPolicy.DESTROY)
    assert (steps.keys == 0) is destroyed
    assert steps.held == (None if destroyed else owner)


async def test_published_control_plane_owns_data_without_owner_key() -> None:
    steps = Steps(owner=None)
    virtual = provisioner(steps)
    assert await virtual.has_data(control_plane(published=True))
    await virtual.settle(control_plane(published=True), policy=DeletionPolicy.DESTROY)
    assert steps.keys == 0


@pytest.mark.parametrize("owner", [None, OTHER, OWN])
async def test_take_over_changes_owner_and_revokes_former_user(owner: Owner | None) -> None:
    steps = Steps(owner=owner)
    await provisioner(steps).take_over(control_plane(), former="u-0")
    assert (steps.done, steps.held) == (["revoke cp-u-0"], OWN)


async def test_take_over_refuses_data_of_another_owner() -> None:
    steps = Steps(owner=Owner("u-7", "shop"))
    with pytest.raises(ConditionError, match=r"belong to control plane shop \(u-7\)") as refused:
        await provisioner(steps).take_over(control_plane(), former="u-0")
    assert f"set annotation {DESTROY_DATA_ANNOTATION} to {PREFIX}@u-7 and spec" in refused.value.message
    assert steps.held == Owner("u-7", "shop")
