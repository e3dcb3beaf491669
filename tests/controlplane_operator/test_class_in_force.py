"""A class that is gone is followed as it was, and told to be gone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from kplane.api import ControlPlane, ControlPlaneMode, Home, find_condition
from kplane.api.conditions import CLASS_FOUND
from kplane.controlplane_operator.class_policy import class_in_force, home_asked_for, wanted_home, with_class_found
from kplane.controlplane_operator.kinds import CONTROL_PLANE_CLASSES
from kplane.controlplane_operator.watch.cache import Store

SPEC: dict[str, Any] = {
    "deletionPolicy": "Destroy",
    "auth": {"model": "x509", "defaultRole": "edit", "lifetime": "90m"},
    "defaultServices": ["controllers"],
    "controllers": {"profile": "Core"},
}


def classes(**specs: dict[str, Any]) -> Store:
    store = Store(CONTROL_PLANE_CLASSES)
    for name, spec in specs.items():
        store.apply({"metadata": {"name": name, "resourceVersion": "1"}, "spec": spec})
    return store


def control_plane(
    name: str | None = "gold", status: dict[str, Any] | None = None, **spec: dict[str, Any] | str
) -> ControlPlane:
    if name is not None:
        spec["classRef"] = {"name": name}
    return ControlPlane.model_validate({"metadata": {"name": "acme"}, "spec": spec, "status": status or {}})


def remembering(spec: dict[str, Any] = SPEC, *, published: bool = False) -> dict[str, Any]:
    memory = class_in_force(control_plane(), classes=classes(gold=spec)).remembered()
    assert memory is not None
    endpoint = {"endpoint": "https://acme.example"} if published else {}
    return {"rememberedClass": memory.model_dump(mode="json", by_alias=True), **endpoint}


def test_everything_that_a_class_says_is_remembered() -> None:
    there = class_in_force(control_plane(), classes=classes(gold=SPEC))
    gone = class_in_force(control_plane(status=remembering()), classes=classes())
    assert there.lost is None
    assert gone.lost is not None
    assert gone.lost.reason == "ClassNotFound"
    assert there.chosen is not None
    assert gone.chosen is not None
    assert gone.chosen.spec == there.chosen.spec
    # Else the status would be written again and again.
    assert gone.remembered() == there.remembered()


def test_a_class_that_is_there_again_counts() -> None:
    found = class_in_force(control_plane(status=remembering()), classes=classes(gold={"deletionPolicy": "Retain"}))
    assert found.lost is None
    assert found.chosen is not None
    assert found.chosen.spec.deletion_policy == "Retain"


def test_until_another_class_can_be_followed_the_former_one_is() -> None:
    one = control_plane("silver", remembering(published=True))
    assert class_in_force(control_plane("silver", remembering()), classes=classes(gold={})).chosen is None
    found = class_in_force(one, classes=classes(gold={}))
    assert found.lost is not None
    assert found.chosen is not None
    assert (found.chosen.name, found.chosen.spec.deletion_policy) == ("gold", "Destroy")
    told = find_condition(with_class_found(one, followed=found), CLASS_FOUND)
    assert told is not None
    assert "silver" in told.message
    assert "gold" in told.message
    assert class_in_force(control_plane(None, remembering()), classes=classes(gold=SPEC)).chosen is None


@pytest.mark.parametrize(
    ("edited", "reason"),
    [
        ({"modesAllowed": ["Virtual"]}, "ModeNotAllowed"),
        ({"auth": {"model": "x509"}}, "AuthModelNotSupported"),
    ],
)
def test_a_class_that_is_made_stricter_ends_nothing(edited: dict[str, Any], reason: str) -> None:
    external = {"mode": "Dedicated", "endpointRef": {"name": "theirs"}}
    before = {"auth": {"lifetime": "90m"}}
    for published in (True, False):
        one = control_plane(status=remembering(before, published=published), **external)
        found = class_in_force(one, classes=classes(gold=edited))
        assert found.lost is not None
        assert found.lost.reason == reason
        if published:
            assert found.remembered() == class_in_force(one, classes=classes(gold=before)).remembered()
        else:
            assert found.chosen is None


def test_control_plane_keeps_its_schedule_while_that_of_the_class_is_invalid() -> None:
    good: dict[str, Any] = {"schedule": "23 */6 * * *", "retain": 5}
    typo: dict[str, Any] = {"schedule": "99 * * * *", "retain": 2}
    after: dict[str, Any] = {"snapshots": typo, "auth": {"lifetime": "90m"}}
    edited = classes(gold=after)
    before: dict[str, Any] = {"snapshots": good}
    one = control_plane(status=remembering(before, published=True))
    found = class_in_force(one, classes=edited)
    assert found.lost is None
    assert found.chosen is not None
    assert found.chosen.spec.snapshots is not None
    assert (found.chosen.spec.snapshots.schedule, found.chosen.spec.snapshots.retain) == ("23 */6 * * *", 5)
    # Everything else of the class counts, and the former schedule is remembered further.
    assert found.chosen.spec.auth.lifetime == "90m"
    remembered = found.remembered()
    assert remembered is not None
    assert remembered.spec["snapshots"] == good
    corrected = class_in_force(one, classes=classes(gold={"snapshots": {"schedule": "1 1 * * *"}})).chosen
    assert corrected is not None
    assert corrected.spec.snapshots is not None
    assert corrected.spec.snapshots.schedule == "1 1 * * *"


@pytest.mark.parametrize("before", [{}, {"snapshots": {"schedule": "99 * * * *", "retain": 2}}])
def test_invalid_schedule_stays_when_there_was_no_valid_one(before: dict[str, Any]) -> None:
    edited = {"snapshots": {"schedule": "99 * * * *", "retain": 3}}
    found = class_in_force(control_plane(status=remembering(before, published=True)), classes=classes(gold=edited))
    assert found.chosen is not None
    assert found.chosen.spec.snapshots is not None
    assert found.chosen.spec.snapshots.retain == 3


def test_of_a_class_that_refuses_a_control_plane_the_deletion_policy_counts() -> None:
    edited = {"modesAllowed": ["Dedicated"], "deletionPolicy": "Retain"}
    one = control_plane(status=remembering(published=True))
    alive = class_in_force(one, classes=classes(gold=edited))
    told = find_condition(with_class_found(one, followed=alive), CLASS_FOUND)
    assert told is not None
    assert "with deletionPolicy Retain" in told.message
    leaving = one.model_copy(
        update={"metadata": one.metadata.model_copy(update={"deletion_timestamp": datetime.now(UTC)})}
    )
    for found in (alive, class_in_force(leaving, classes=classes(gold=edited))):
        assert found.chosen is not None
        assert found.chosen.spec.deletion_policy == "Retain"
    # Also when it is gone afterwards.
    memory = alive.remembered()
    assert memory is not None
    assert memory.spec["deletionPolicy"] == "Retain"
    assert memory.spec["auth"] == SPEC["auth"]


def test_a_class_that_says_what_is_not_understood_is_followed_as_it_was() -> None:
    later = {"auth": {"model": "oidc"}}
    found = class_in_force(control_plane(status=remembering()), classes=classes(gold=later))
    assert found.chosen is not None
    assert found.chosen.spec.auth.model == "x509"
    new = class_in_force(control_plane(), classes=classes(gold=later))
    assert new.chosen is None
    for followed in (found, new):
        assert followed.lost is not None
        assert followed.lost.reason == "ClassInvalid"
        assert "spec.auth.model" in followed.lost.message


def test_it_is_told_while_the_class_is_gone_and_no_longer() -> None:
    one = control_plane(status=remembering())
    told = with_class_found(one, followed=class_in_force(one, classes=classes()))
    condition = find_condition(told, CLASS_FOUND)
    assert condition is not None
    assert (condition.status, condition.reason) == ("False", "ClassNotFound")
    assert "stays in force" in condition.message
    one = one.model_copy(update={"status": one.status.model_copy(update={"conditions": told})})
    assert with_class_found(one, followed=class_in_force(one, classes=classes(gold=SPEC))) == []


@pytest.mark.parametrize(
    ("by_class", "own", "wanted"),
    [
        (None, None, None),
        ("pool-b", None, "pool-b"),
        ("pool-b", "pool-c", "pool-c"),
        ("pool-b", "default", None),
        ("default", None, None),
    ],
)
def test_the_data_store_is_that_of_the_class_unless_the_control_plane_names_one(
    by_class: str | None, own: str | None, wanted: str | None
) -> None:
    def virtual(name: str | None) -> dict[str, Any]:
        return {"virtual": {"dataStoreRef": {"name": name}}} if name is not None else {}

    lives_there: dict[str, Any] = {"home": {"mode": "Virtual", "slot": 1, "dataStore": "pool-b"}}
    one = control_plane(status=lives_there, **virtual(own))
    chosen = class_in_force(one, classes=classes(gold=virtual(by_class))).chosen
    asked = home_asked_for(one, chosen=chosen)
    assert (asked.data_store, asked.slot) == (wanted, 0)
    # Its components have other names in another home only.
    assert wanted_home(one, chosen=chosen) == (
        one.home if wanted == "pool-b" else Home(mode=ControlPlaneMode.VIRTUAL, slot=0, data_store=wanted)
    )
    dedicated = control_plane(mode="Dedicated")
    assert home_asked_for(dedicated, chosen=chosen) == Home(mode=ControlPlaneMode.DEDICATED)
