"""Data are destroyed by a policy that was in force, and by nothing else, whatever becomes of the class."""

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
def test_while_it_lives_the_spec_counts_then_the_class_then_what_was_in_force(
    spec: DeletionPolicy | None,
    in_force: DeletionPolicy | None,
    by_class: DeletionPolicy | None,
    expected: DeletionPolicy,
) -> None:
    chosen = class_of(by_class) if by_class is not None else None
    assert policy_of(control_plane(spec=spec, in_force=in_force), chosen=chosen) is expected


def test_what_a_removal_began_with_holds_whatever_becomes_of_the_class() -> None:
    for in_force, by_class in product((RETAIN, DESTROY), (*POLICIES, "gone")):
        begun = control_plane(in_force=in_force, deleting=True, conditions=[DELETING])
        chosen = class_of(DeletionPolicy(by_class) if by_class else None) if by_class != "gone" else None
        assert policy_of(begun, chosen=chosen) is in_force


def test_an_edit_that_may_have_come_after_the_deletion_never_destroys() -> None:
    for in_force, by_class in ((RETAIN, DESTROY), (DESTROY, RETAIN), (DESTROY, None)):
        found = control_plane(in_force=in_force, deleting=True)
        assert policy_of(found, chosen=class_of(by_class)) is RETAIN
        assert is_unclear(found, chosen=class_of(by_class))
    agreed = control_plane(in_force=DESTROY, deleting=True)
    assert policy_of(agreed, chosen=class_of(DESTROY)) is DESTROY
    assert not is_unclear(agreed, chosen=class_of(DESTROY))
    own = control_plane(spec=DESTROY, in_force=RETAIN, deleting=True)
    assert policy_of(own, chosen=class_of(RETAIN)) is DESTROY
    assert not is_unclear(own, chosen=class_of(RETAIN))


def test_a_pause_is_no_beginning_of_a_removal() -> None:
    paused = control_plane(in_force=DESTROY, deleting=True, phase="Terminating")
    assert policy_of(paused, chosen=class_of(RETAIN)) is RETAIN
    assert is_unclear(paused, chosen=class_of(RETAIN))


@dataclass(frozen=True)
class World:
    """A class and a control plane of it, and the operator's part of the control plane's status."""

    by_class: DeletionPolicy | str | None = "gone"
    own: DeletionPolicy | None = None
    status: dict[str, Any] = field(default_factory=dict)
    deleting: bool = False

    def control_plane(self) -> ControlPlane:
        found = control_plane(spec=self.own, deleting=self.deleting)
        return ControlPlane.model_validate({**found.model_dump(by_alias=True), "status": self.status})

    def look(self) -> tuple[World, DeletionPolicy]:
        """Do what the operator does at each look: find the class in force, decide, write both down."""
        classes = Store(CONTROL_PLANE_CLASSES)
        if self.by_class != "gone":
            spec = {"deletionPolicy": self.by_class} if self.by_class is not None else {}
            classes.apply({"metadata": {"name": "c", "resourceVersion": "1"}, "spec": spec})
        found = self.control_plane()
        followed = class_in_force(found, classes=classes)
        if not self.deleting and followed.chosen is None:
            return self, RETAIN  # ClassNotFound, before anything is made or written down
        policy = policy_of(found, chosen=followed.chosen)
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
    for what, value in edits:
        world = world.look()[0] if what == "look" else replace(world, **{what: value})
    return world


@settings(max_examples=400)
@given(before=st.lists(EDITS, max_size=8), after=st.lists(CLASS_EDITS, max_size=4), seen=st.booleans())
def test_deletion_keeps_to_the_policy_in_force(
    before: list[tuple[str, Any]], after: list[tuple[str, Any]], *, seen: bool
) -> None:
    """`seen`: the operator looked between the deletion and what became of the class after it."""
    world = follow(World(by_class=DESTROY).look()[0], before)
    world, in_force = world.look()
    if world.by_class == "gone":
        in_force = DeletionPolicy(world.status["deletionPolicy"])
    world = replace(world, deleting=True)
    if seen:
        world = world.look()[0]
    world = follow(world, after)
    begun, policy = world.look()
    if seen or world.own is not None or not after:
        assert policy is in_force
    elif in_force is RETAIN:
        # The operator was away: what was to be kept at the time of the deletion is kept.
        assert policy is RETAIN
    elif world.by_class == "gone":
        # That the class is gone says nothing about what it said.
        assert policy is DESTROY
    for _ in range(3):
        begun, again = begun.look()
        assert again is policy


@given(edits=st.lists(st.one_of(EDITS, st.just(("deleting", True))), max_size=12))
def test_nothing_is_destroyed_that_nobody_wanted_destroyed(edits: list[tuple[str, Any]]) -> None:
    world, wanted = World(), False
    for what, value in edits:
        world = world.look()[0] if what == "look" else replace(world, **{what: value})
        wanted = wanted or DESTROY in (world.by_class, world.own)
    assert wanted or world.look()[1] is RETAIN
