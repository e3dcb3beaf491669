"""A class that is gone is followed as it was, and told to be gone."""

from __future__ import annotations

from typing import Any

from api import ControlPlane, find_condition
from controlplane_operator.cache import Store
from controlplane_operator.class_in_force import CLASS_FOUND, class_in_force, with_class_found
from controlplane_operator.kinds import CONTROL_PLANE_CLASSES

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


def control_plane(name: str | None = "gold", status: dict[str, Any] | None = None) -> ControlPlane:
    spec = {"classRef": {"name": name}} if name is not None else {}
    return ControlPlane.model_validate({"metadata": {"name": "acme"}, "spec": spec, "status": status or {}})


def remembering() -> dict[str, Any]:
    memory = class_in_force(control_plane(), classes=classes(gold=SPEC)).remembered()
    assert memory is not None
    return {"rememberedClass": memory.model_dump(mode="json", by_alias=True)}


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


def test_nothing_is_remembered_of_another_class() -> None:
    found = class_in_force(control_plane("silver", remembering()), classes=classes())
    assert found.chosen is None
    assert found.lost is not None
    assert class_in_force(control_plane(None, remembering()), classes=classes(gold=SPEC)).chosen is None


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
