"""Deletion policy: only a Destroy that was in force destroys data, even if the class changes or is deleted."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kplane.api import ControlPlane, ControlPlaneClass, DeletionPolicy
from kplane.controlplane_operator.class_policy import class_in_force, is_unclear, policy_of
from kplane.controlplane_operator.kinds import CONTROL_PLANE_CLASSES
from kplane.controlplane_operator.watch.cache import Store

RETAIN, DESTROY = DeletionPolicy.RETAIN, DeletionPolicy.DESTROY
POLICIES = (None, RETAIN, DESTROY)
DELETING = {
    "type": "Deleting",
    "status": "True",
    "reason": "RegistrationsPending",
    "message": "",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}


def class_of(policy: DeletionPolicy | None) -> ControlPlaneClass:
    spec = {"deletionPolicy": policy} if policy is not None else {}
    return ControlPlaneClass.model_validate({"metadata": {"name": "c"}, "spec": spec})


def control_plane(
    *, spec: DeletionPolicy | None = None, in_force: DeletionPolicy | None = None, deleting: bool = False, **extra: Any
) -> ControlPlane:
    metadata = {"name": "acme", **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleting else {})}
    body = {"classRef": {"name": "c"}, **({"deletionPolicy": spec} if spec is not None else {})}
    status = {**({"deletionPolicy": in_force} if in_force is not None else {}), **extra}
    return ControlPlane.model_validate({"metadata": metadata, "spec": body, "status": status})


@pytest.mark.parametrize(
    ("spec", "in_force", "by_class", "expected"),
    [
        (None, None, None, RETAIN),
        (None, None, DESTROY, DESTROY),
        (None, DESTROY, None, DESTROY),
        (None, DESTROY, RETAIN, RETAIN),
        (RETAIN, DESTROY, DESTROY, RETAIN),
        (DESTROY, None, RETAIN, DESTROY),
    ],
)
def test_policy_of_prefers_spec_then_class_then_recorded_policy(
    spec: DeletionPolicy | None,
    in_force: DeletionPolicy | None,
    by_class: DeletionPolicy | None,
    expected: DeletionPolicy,
) -> None:
    control_plane_class = class_of(by_class) if by_class is not None else None
    assert policy_of(control_plane(spec=spec, in_force=in_force), chosen=control_plane_class) is expected


def test_policy_of_begun_removal_ignores_class_edits() -> None:
    for in_force, by_class in product((RETAIN, DESTROY), (*POLICIES, "gone")):
        acme = control_plane(in_force=in_force, deleting=True, conditions=[DELETING])
        control_plane_class = class_of(DeletionPolicy(by_class) if by_class else None) if by_class != "gone" else None
        assert policy_of(acme, chosen=control_plane_class) is in_force


def test_policy_of_deleting_retains_when_class_and_record_differ() -> None:
    for in_force, by_class in ((RETAIN, DESTROY), (DESTROY, RETAIN), (DESTROY, None)):
        conflict = control_plane(in_force=in_force, deleting=True)
        assert policy_of(conflict, chosen=class_of(by_class)) is RETAIN
        assert is_unclear(conflict, chosen=class_of(by_class))
    agreement = control_plane(in_force=DESTROY, deleting=True)
    assert policy_of(agreement, chosen=class_of(DESTROY)) is DESTROY
    assert not is_unclear(agreement, chosen=class_of(DESTROY))
    override = control_plane(spec=DESTROY, in_force=RETAIN, deleting=True)
    assert policy_of(override, chosen=class_of(RETAIN)) is DESTROY
    assert not is_unclear(override, chosen=class_of(RETAIN))


def test_policy_of_paused_deletion_is_unclear_and_retains() -> None:
    acme = control_plane(in_force=DESTROY, deleting=True, phase="Terminating")
    assert policy_of(acme, chosen=class_of(RETAIN)) is RETAIN
    assert is_unclear(acme, chosen=class_of(RETAIN))


@dataclass(frozen=True)
class World:
    """A class, a control plane of that class, and the status that the operator wrote."""

    by_class: DeletionPolicy | str | None = "gone"
    own: DeletionPolicy | None = None
    status: dict[str, Any] = field(default_factory=dict)
    deleting: bool = False

    def control_plane(self) -> ControlPlane:
        acme = control_plane(spec=self.own, deleting=self.deleting)
        return ControlPlane.model_validate({**acme.model_dump(by_alias=True), "status": self.status})

    def look(self) -> tuple[World, DeletionPolicy]:
        """Reconcile: find the class in force, decide the policy, and record both in the status."""
        classes = Store(CONTROL_PLANE_CLASSES)
        if self.by_class != "gone":
            spec = {"deletionPolicy": self.by_class} if self.by_class is not None else {}
            classes.apply({"metadata": {"name": "c", "resourceVersion": "1"}, "spec": spec})
        acme = self.control_plane()
        followed = class_in_force(acme, classes=classes)
        if not self.deleting and followed.chosen is None:
            return self, RETAIN  # ClassNotFound: the operator has not made or recorded any object
        policy = policy_of(acme, chosen=followed.chosen)
        status: dict[str, Any] = {**self.status, "deletionPolicy": policy}
        if self.deleting:
            status["conditions"] = [DELETING]
        else:
            memory = followed.remembered()
            status["rememberedClass"] = memory.model_dump(by_alias=True) if memory is not None else None
        return replace(self, status=status), policy


EDITS = st.one_of(
    st.tuples(st.just("by_class"), st.sampled_from([*POLICIES, "gone"])),
    st.tuples(st.just("own"), st.sampled_from(POLICIES)),
    st.tuples(st.just("look"), st.none()),
)
CLASS_EDITS = st.tuples(st.just("by_class"), st.sampled_from([*POLICIES, "gone"]))


def follow(world: World, edits: list[tuple[str, Any]]) -> World:
    for action, value in edits:
        world = world.look()[0] if action == "look" else replace(world, **{action: value})
    return world


@settings(max_examples=400)
@given(before=st.lists(EDITS, max_size=8), after=st.lists(CLASS_EDITS, max_size=4), seen=st.booleans())
def test_deletion_uses_the_policy_in_force(
    before: list[tuple[str, Any]], after: list[tuple[str, Any]], *, seen: bool
) -> None:
    """With `seen`, the operator reconciled between the deletion and later edits of the class."""
    world = follow(World(by_class=DESTROY).look()[0], before)
    world, in_force = world.look()
    if world.by_class == "gone":
        in_force = DeletionPolicy(world.status["deletionPolicy"])
    world = replace(world, deleting=True)
    if seen:
        world = world.look()[0]
    world = follow(world, after)
    removal, policy = world.look()
    if seen or world.own is not None or not after:
        assert policy is in_force
    elif in_force is RETAIN:
        # The operator was down. Retain was in force at the deletion, so the data stay.
        assert policy is RETAIN
    elif world.by_class == "gone":
        # The deleted class leaves the recorded policy in force.
        assert policy is DESTROY
    for _ in range(3):
        removal, later_policy = removal.look()
        assert later_policy is policy


@given(edits=st.lists(st.one_of(EDITS, st.just(("deleting", True))), max_size=12))
def test_policy_is_retain_unless_spec_or_class_ever_set_destroy(edits: list[tuple[str, Any]]) -> None:
    world, destroy_requested = World(), False
    for action, value in edits:
        world = world.look()[0] if action == "look" else replace(world, **{action: value})
        destroy_requested = destroy_requested or DESTROY in (world.by_class, world.own)
    assert destroy_requested or world.look()[1] is RETAIN
