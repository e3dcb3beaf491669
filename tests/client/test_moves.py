"""A move restores the settings of its target mode, and a rollback restores the former home."""

from __future__ import annotations

from typing import Any

import pytest

from kplane.api import ControlPlane, ControlPlaneMode
from kplane.api.names import FORMER_SETTINGS_ANNOTATION
from kplane.client import arrived
from kplane.client.moves import former_home, home_of_mode, patch_for

VIRTUAL, DEDICATED = ControlPlaneMode.VIRTUAL, ControlPlaneMode.DEDICATED
VOLUME = {"size": "20Gi", "storageClassName": "fast"}


def merged(target: Any, patch: Any) -> Any:
    """Apply a merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


class Acme:
    """The object of a control plane in the API server, and the operator that moves the control plane."""

    def __init__(self, spec: dict[str, Any], **status: Any) -> None:
        self.object: dict[str, Any] = {"metadata": {"name": "acme", "generation": 1}, "spec": spec, "status": status}
        self.object["status"].setdefault("home", self.wanted(slot=0))

    @property
    def model(self) -> ControlPlane:
        return ControlPlane.model_validate(self.object)

    @property
    def spec(self) -> dict[str, Any]:
        return {name: value for name, value in self.object["spec"].items() if name != "migration"}

    def wanted(self, *, slot: int) -> dict[str, Any]:
        home = self.model.home_asked_for()
        return home.model_copy(update={"slot": slot}).model_dump(mode="json", by_alias=True, exclude_none=True)

    def ask(self, mode: ControlPlaneMode, *, home: bool = True) -> None:
        target = home_of_mode(self.model, mode) if home else None
        self.object = merged(self.object, patch_for(self.model, mode=mode, home=target, plan=False))
        # Validation of the model refuses inconsistent fields, as the API server does.
        assert self.model.spec.mode is mode

    def abort(self) -> None:
        present_home = self.model.home
        self.object = merged(self.object, patch_for(self.model, mode=present_home.mode, home=present_home, plan=False))

    def roll_back(self) -> None:
        home = former_home(self.model)
        self.object = merged(self.object, patch_for(self.model, mode=home.mode, home=home, plan=False))

    def begin(self, step: str = "Copying") -> None:
        status = self.object["status"]
        target = self.wanted(slot=1 - status["home"].get("slot", 0))
        self.object["status"] = {**status, "migration": {"from": status["home"], "to": target, "step": step}}

    def cut(self) -> None:
        self.begin("Retaining")
        self.object["status"] = {**self.object["status"], "home": self.object["status"]["migration"]["to"]}

    def asks_for_former_home(self) -> bool:
        model = self.model
        return model.status.migration is not None and model.home_asked_for().is_like(model.status.migration.source)

    def asks_for_present_home(self) -> bool:
        return self.model.home_asked_for().is_like(self.model.home)


def test_rollback_to_dedicated_asks_for_the_former_volume() -> None:
    dedicated = {"volume": VOLUME, "etcd": {"members": 3}}
    acme = Acme({"mode": "Dedicated", "dedicated": dedicated})
    acme.ask(VIRTUAL)
    assert acme.spec == {"mode": "Virtual"}
    acme.cut()
    acme.roll_back()
    assert acme.spec == {"mode": "Dedicated", "dedicated": dedicated}
    assert acme.asks_for_former_home()


def test_rollback_works_after_a_move_by_kubectl() -> None:
    acme = Acme({"mode": "Dedicated", "dedicated": {"volume": VOLUME}})
    # kubectl did not set the former settings aside.
    acme.object["spec"] = {"mode": "Virtual"}
    acme.cut()
    acme.roll_back()
    assert acme.spec == {"mode": "Dedicated", "dedicated": {"volume": VOLUME}}
    assert acme.asks_for_former_home()


@pytest.mark.parametrize(
    "virtual",
    [
        {"start": "OnDemand"},
        {"dataStoreRef": {"name": "east"}},
        {"start": "Always", "dataStoreRef": {"name": "east"}},
        {},
    ],
)
def test_round_trip_from_virtual_keeps_its_settings(virtual: dict[str, Any]) -> None:
    spec = {"mode": "Virtual", **({"virtual": virtual} if virtual else {})}
    acme = Acme(spec)
    acme.ask(DEDICATED)
    assert acme.spec == {"mode": "Dedicated"}
    acme.cut()
    acme.ask(VIRTUAL)
    assert acme.spec == spec
    assert acme.asks_for_former_home()
    # A second round trip.
    acme.cut()
    acme.ask(DEDICATED)
    acme.cut()
    acme.roll_back()
    assert acme.spec == spec


def test_move_restores_settings_after_the_former_home_is_forgotten() -> None:
    acme = Acme({"mode": "Virtual", "virtual": {"start": "OnDemand", "dataStoreRef": {"name": "east"}}})
    acme.ask(DEDICATED)
    acme.cut()
    del acme.object["status"]["migration"]
    acme.ask(VIRTUAL)
    assert acme.spec["virtual"] == {"start": "OnDemand", "dataStoreRef": {"name": "east"}}


def test_abort_before_the_cut_restores_former_settings() -> None:
    virtual = {"start": "OnDemand", "dataStoreRef": {"name": "east"}}
    acme = Acme({"mode": "Virtual", "virtual": virtual})
    acme.ask(DEDICATED)
    acme.begin()
    acme.abort()
    assert acme.spec == {"mode": "Virtual", "virtual": virtual}
    assert acme.asks_for_present_home()


def test_abort_after_the_cut_stays_in_the_present_home() -> None:
    acme = Acme({"mode": "Dedicated", "dedicated": {"volume": VOLUME}})
    acme.ask(VIRTUAL)
    acme.cut()
    acme.roll_back()
    acme.abort()
    assert acme.spec == {"mode": "Virtual"}
    assert acme.asks_for_present_home()


def test_abort_of_volume_change_removes_added_volume_fields() -> None:
    acme = Acme({"mode": "Dedicated", "dedicated": {"volume": {"size": "20Gi"}}})
    acme.object["spec"]["dedicated"] = {"volume": {"storageClassName": "fast"}}
    acme.begin()
    acme.abort()
    assert acme.spec == {"mode": "Dedicated", "dedicated": {"volume": {"size": "20Gi"}}}
    acme = Acme({"mode": "Dedicated"})
    acme.object["spec"]["dedicated"] = {"volume": VOLUME}
    acme.begin()
    acme.abort()
    assert acme.asks_for_present_home()


def test_rollback_names_default_data_store_if_class_has_another() -> None:
    acme = Acme({"mode": "Virtual"})
    acme.object["status"]["rememberedClass"] = {"name": "x", "spec": {"virtual": {"dataStoreRef": {"name": "west"}}}}
    acme.ask(DEDICATED)
    acme.cut()
    acme.roll_back()
    assert acme.spec["virtual"] == {"dataStoreRef": {"name": "default"}}
    # The former home used the store of the class, so the choice stays with the class.
    acme = Acme({"mode": "Virtual"}, home={"mode": "Virtual", "dataStore": "west"})
    acme.object["status"]["rememberedClass"] = {"name": "x", "spec": {"virtual": {"dataStoreRef": {"name": "west"}}}}
    acme.ask(DEDICATED)
    acme.cut()
    acme.roll_back()
    assert acme.spec == {"mode": "Virtual"}


def test_move_keeps_cluster_path_that_differs_from_name() -> None:
    acme = Acme({"mode": "Virtual", "virtual": {"clusterPath": "acme-corp"}}, clusterPath="acme-corp")
    acme.ask(DEDICATED)
    acme.cut()
    # A user removed the annotation.
    acme.object["metadata"]["annotations"] = {}
    acme.ask(VIRTUAL)
    assert acme.spec["virtual"] == {"clusterPath": "acme-corp"}


@pytest.mark.parametrize("annotation", ["", "{", "[]", "null", '{"Virtual": 1}', '{"Dedicated": {}}'])
def test_unreadable_settings_annotation_is_ignored(annotation: str) -> None:
    acme = Acme({"mode": "Dedicated"})
    acme.object["metadata"]["annotations"] = {FORMER_SETTINGS_ANNOTATION: annotation}
    acme.ask(VIRTUAL)
    assert acme.spec == {"mode": "Virtual"}


READY: dict[str, Any] = {
    "observedGeneration": 1,
    "conditions": [
        {
            "type": "Ready",
            "status": "True",
            "reason": "R",
            "message": "",
            "lastTransitionTime": "2026-11-26T01:00:00Z",
        }
    ],
}


@pytest.mark.parametrize(
    ("step", "is_cut", "expected"),
    [
        ("Copying", False, False),
        ("EndingControllers", False, False),
        ("Cutting", False, False),
        ("Retaining", True, True),
        ("Completed", True, True),
        (None, True, False),
    ],
)
def test_arrived_in_new_home_needs_the_cut(step: str | None, is_cut: bool, expected: bool) -> None:
    acme = Acme({"mode": "Virtual"}, **READY)
    former = acme.model.home
    acme.ask(DEDICATED)
    target = acme.model.home_asked_for()
    acme.begin("Copying")
    acme.object["status"]["migration"]["step"] = step
    if is_cut:
        acme.object["status"]["home"] = acme.object["status"]["migration"]["to"]
    assert arrived(target)(acme.model) is expected
    assert not arrived(former)(acme.model)


def test_arrived_after_rollback_needs_a_second_cut() -> None:
    acme = Acme({"mode": "Dedicated", "dedicated": {"volume": VOLUME}}, **READY)
    acme.ask(VIRTUAL)
    acme.cut()
    acme.roll_back()
    settled = arrived(former_home(acme.model))
    assert not settled(acme.model)
    acme.begin()
    assert not settled(acme.model)
    acme.cut()
    assert settled(acme.model)
    # The volume of the home counts, and not its mode alone.
    assert not arrived(acme.model.home.model_copy(update={"volume": None}))(acme.model)


def test_arrived_after_rollback_before_the_cut_needs_the_end_of_the_move() -> None:
    acme = Acme({"mode": "Virtual"}, **READY)
    acme.ask(DEDICATED)
    acme.begin("Starting")
    acme.roll_back()
    settled = arrived(former_home(acme.model))
    assert not settled(acme.model)
    del acme.object["status"]["migration"]
    assert settled(acme.model)


def test_arrived_needs_a_ready_control_plane_of_its_generation() -> None:
    acme = Acme({"mode": "Virtual"}, **READY)
    home = acme.model.home
    assert arrived(home)(acme.model)
    acme.object["metadata"]["generation"] = 2
    assert not arrived(home)(acme.model)


def test_arrived_waits_until_the_aborted_migration_is_gone() -> None:
    acme = Acme({"mode": "Virtual"}, **READY)
    home = acme.model.home
    assert arrived(home)(acme.model)
    acme.ask(DEDICATED)
    acme.begin()
    assert not arrived(home)(acme.model)
    acme.object["status"]["migration"]["step"] = None
    assert not arrived(home)(acme.model)
    del acme.object["status"]["migration"]
    assert arrived(home)(acme.model)
