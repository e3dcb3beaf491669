"""Class in force of a control plane: a deleted or refused class stays in force as it was last read."""

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


def test_deleted_class_stays_in_force_with_its_whole_spec() -> None:
    present = class_in_force(control_plane(), classes=classes(gold=SPEC))
    deleted = class_in_force(control_plane(status=remembering()), classes=classes())
    assert present.lost is None
    assert deleted.lost is not None
    assert deleted.lost.reason == "ClassNotFound"
    assert present.chosen is not None
    assert deleted.chosen is not None
    assert deleted.chosen.spec == present.chosen.spec
    # A different memory would make the operator write the status in each reconcile.
    assert deleted.remembered() == present.remembered()


def test_recreated_class_replaces_remembered_class() -> None:
    in_force = class_in_force(control_plane(status=remembering()), classes=classes(gold={"deletionPolicy": "Retain"}))
    assert in_force.lost is None
    assert in_force.chosen is not None
    assert in_force.chosen.spec.deletion_policy == "Retain"


def test_published_control_plane_keeps_former_class_until_new_exists() -> None:
    acme = control_plane("silver", remembering(published=True))
    assert class_in_force(control_plane("silver", remembering()), classes=classes(gold={})).chosen is None
    in_force = class_in_force(acme, classes=classes(gold={}))
    assert in_force.lost is not None
    assert in_force.chosen is not None
    assert (in_force.chosen.name, in_force.chosen.spec.deletion_policy) == ("gold", "Destroy")
    condition = find_condition(with_class_found(acme, followed=in_force), CLASS_FOUND)
    assert condition is not None
    assert "silver" in condition.message
    assert "gold" in condition.message
    assert class_in_force(control_plane(None, remembering()), classes=classes(gold=SPEC)).chosen is None


@pytest.mark.parametrize(
    ("edited", "reason"),
    [
        ({"modesAllowed": ["Virtual"]}, "ModeNotAllowed"),
        ({"auth": {"model": "x509"}}, "AuthModelNotSupported"),
    ],
)
def test_refusing_class_edit_leaves_published_control_plane_as_is(edited: dict[str, Any], reason: str) -> None:
    external = {"mode": "Dedicated", "endpointRef": {"name": "theirs"}}
    before = {"auth": {"lifetime": "90m"}}
    for published in (True, False):
        acme = control_plane(status=remembering(before, published=published), **external)
        in_force = class_in_force(acme, classes=classes(gold=edited))
        assert in_force.lost is not None
        assert in_force.lost.reason == reason
        if published:
            assert in_force.remembered() == class_in_force(acme, classes=classes(gold=before)).remembered()
        else:
            assert in_force.chosen is None


def test_invalid_schedule_of_class_keeps_former_schedule() -> None:
    schedule: dict[str, Any] = {"schedule": "23 */6 * * *", "retain": 5}
    typo: dict[str, Any] = {"schedule": "99 * * * *", "retain": 2}
    after: dict[str, Any] = {"snapshots": typo, "auth": {"lifetime": "90m"}}
    edited = classes(gold=after)
    before: dict[str, Any] = {"snapshots": schedule}
    acme = control_plane(status=remembering(before, published=True))
    in_force = class_in_force(acme, classes=edited)
    assert in_force.lost is None
    assert in_force.chosen is not None
    assert in_force.chosen.spec.snapshots is not None
    assert (in_force.chosen.spec.snapshots.schedule, in_force.chosen.spec.snapshots.retain) == ("23 */6 * * *", 5)
    # The other fields of the class apply, and the former schedule stays remembered.
    assert in_force.chosen.spec.auth.lifetime == "90m"
    remembered = in_force.remembered()
    assert remembered is not None
    assert remembered.spec["snapshots"] == schedule
    corrected = class_in_force(acme, classes=classes(gold={"snapshots": {"schedule": "1 1 * * *"}})).chosen
    assert corrected is not None
    assert corrected.spec.snapshots is not None
    assert corrected.spec.snapshots.schedule == "1 1 * * *"


@pytest.mark.parametrize("before", [{}, {"snapshots": {"schedule": "99 * * * *", "retain": 2}}])
def test_invalid_schedule_stays_without_former_valid_schedule(before: dict[str, Any]) -> None:
    edited = {"snapshots": {"schedule": "99 * * * *", "retain": 3}}
    in_force = class_in_force(control_plane(status=remembering(before, published=True)), classes=classes(gold=edited))
    assert in_force.chosen is not None
    assert in_force.chosen.spec.snapshots is not None
    assert in_force.chosen.spec.snapshots.retain == 3


def test_deletion_policy_of_refusing_class_applies() -> None:
    edited = {"modesAllowed": ["Dedicated"], "deletionPolicy": "Retain"}
    acme = control_plane(status=remembering(published=True))
    live_class = class_in_force(acme, classes=classes(gold=edited))
    condition = find_condition(with_class_found(acme, followed=live_class), CLASS_FOUND)
    assert condition is not None
    assert "with deletionPolicy Retain" in condition.message
    deleted_acme = acme.model_copy(
        update={"metadata": acme.metadata.model_copy(update={"deletion_timestamp": datetime.now(UTC)})}
    )
    for in_force in (live_class, class_in_force(deleted_acme, classes=classes(gold=edited))):
        assert in_force.chosen is not None
        assert in_force.chosen.spec.deletion_policy == "Retain"
    # The policy stays in force after the class is deleted.
    memory = live_class.remembered()
    assert memory is not None
    assert memory.spec["deletionPolicy"] == "Retain"
    assert memory.spec["auth"] == SPEC["auth"]


def test_class_that_fails_validation_stays_in_force_as_remembered() -> None:
    unknown_spec = {"auth": {"model": "oidc"}}
    in_force = class_in_force(control_plane(status=remembering()), classes=classes(gold=unknown_spec))
    assert in_force.chosen is not None
    assert in_force.chosen.spec.auth.model == "x509"
    unremembered = class_in_force(control_plane(), classes=classes(gold=unknown_spec))
    assert unremembered.chosen is None
    for followed in (in_force, unremembered):
        assert followed.lost is not None
        assert followed.lost.reason == "ClassInvalid"
        assert "spec.auth.model" in followed.lost.message


def test_class_found_condition_exists_only_while_class_is_missing() -> None:
    acme = control_plane(status=remembering())
    conditions = with_class_found(acme, followed=class_in_force(acme, classes=classes()))
    condition = find_condition(conditions, CLASS_FOUND)
    assert condition is not None
    assert (condition.status, condition.reason) == ("False", "ClassNotFound")
    assert "stays in force" in condition.message
    acme = acme.model_copy(update={"status": acme.status.model_copy(update={"conditions": conditions})})
    assert with_class_found(acme, followed=class_in_force(acme, classes=classes(gold=SPEC))) == []


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
def test_data_store_of_spec_overrides_data_store_of_class(
    by_class: str | None, own: str | None, wanted: str | None
) -> None:
    def virtual(name: str | None) -> dict[str, Any]:
        return {"virtual": {"dataStoreRef": {"name": name}}} if name is not None else {}

    lives_there: dict[str, Any] = {"home": {"mode": "Virtual", "slot": 1, "dataStore": "pool-b"}}
    acme = control_plane(status=lives_there, **virtual(own))
    control_plane_class = class_in_force(acme, classes=classes(gold=virtual(by_class))).chosen
    home = home_asked_for(acme, chosen=control_plane_class)
    assert (home.data_store, home.slot) == (wanted, 0)
    # Only another home gives components other names.
    assert wanted_home(acme, chosen=control_plane_class) == (
        acme.home if wanted == "pool-b" else Home(mode=ControlPlaneMode.VIRTUAL, slot=0, data_store=wanted)
    )
    dedicated = control_plane(mode="Dedicated")
    assert home_asked_for(dedicated, chosen=control_plane_class) == Home(mode=ControlPlaneMode.DEDICATED)
