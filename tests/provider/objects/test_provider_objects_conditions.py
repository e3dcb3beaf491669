"""Conditions and owner references."""

from __future__ import annotations

import datetime as dt

import pytest

from kplane.provider import ProviderError
from kplane.provider.errors import ObjectTaken
from kplane.provider.objects import (
    add_owner,
    controller_of,
    find_condition,
    is_condition_true,
    is_controlled_by,
    owner_reference,
    set_condition,
    set_controller,
)

THEN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
LATER = THEN + dt.timedelta(hours=1)
SHOWN_THEN, SHOWN_LATER = "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"


def test_set_condition_appends_a_new_condition():
    status = {"conditions": [{"type": "Theirs", "status": "True"}]}
    assert set_condition(status, "Ready", value=False, reason="Waits", message="m", observed_generation=3, now=THEN)
    assert status["conditions"][1] == {
        "type": "Ready",
        "status": "False",
        "reason": "Waits",
        "message": "m",
        "observedGeneration": 3,
        "lastTransitionTime": SHOWN_THEN,
    }


@pytest.mark.parametrize(
    ("change", "is_changed", "shown"),
    [
        ({}, False, SHOWN_THEN),
        ({"message": "other"}, True, SHOWN_THEN),
        ({"reason": "Other"}, True, SHOWN_THEN),
        ({"observed_generation": 2}, True, SHOWN_THEN),
        ({"value": "Unknown"}, True, SHOWN_LATER),
    ],
)
def test_transition_time_changes_only_with_the_status(change, is_changed, shown):
    status = {}
    given = {"value": "True", "reason": "Done", "message": "m", "observed_generation": 1}
    set_condition(status, "Ready", **given, now=THEN)
    assert set_condition(status, "Ready", **given | change, now=LATER) is is_changed
    assert status["conditions"][0]["lastTransitionTime"] == shown


def test_condition_without_a_reason_is_refused():
    with pytest.raises(ProviderError, match="needs a reason"):
        set_condition({}, "Ready", value=True, reason="")


def test_find_condition_accepts_any_status():
    status = {}
    set_condition(status, "Ready", "True", reason="Done", observed_generation=1)
    found = {"metadata": {"generation": 2}, "status": status}
    assert find_condition(status, "Ready")["reason"] == "Done"
    assert is_condition_true(found, "Ready")
    assert not is_condition_true(found, "Ready", current=True)
    assert is_condition_true({**found, "metadata": {"generation": 1}}, "Ready", current=True)
    assert not any(is_condition_true(obj, "Ready") for obj in (None, {}, {"status": {"conditions": "odd"}}))


def body(name, *, namespace="x", uid=None, kind="ConfigMap"):
    metadata = {"name": name, "uid": uid or f"uid-{name}"} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata}


def test_set_controller_refuses_a_second_controller():
    owner, owned = body("owner"), body("owned")
    set_controller(owner, owned)
    set_controller(owner, owned)
    expected = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": "uid-owner"}
    expected |= {"controller": True, "blockOwnerDeletion": True}
    assert owned["metadata"]["ownerReferences"] == [expected]
    later = body("owner", uid="of-a-later-one")
    for other, why in (
        (body("other"), "owner; delete or rename it"),
        (later, "owner of uid uid-owner, an earlier one"),
    ):
        with pytest.raises(ObjectTaken, match=f"is controlled by ConfigMap {why}"):
            set_controller(other, owned)
        assert not is_controlled_by(owned, other)
    assert is_controlled_by(owned, owner)


def test_owner_is_added_besides_the_controller():
    owner, owned = body("owner"), body("owned")
    set_controller(owner, owned)
    add_owner(body("second"), owned)
    add_owner(owner, owned)
    assert [reference["name"] for reference in owned["metadata"]["ownerReferences"]] == ["owner", "second"]
    assert controller_of(owned)["name"] == "owner"
    assert controller_of(body("none")) is None


def test_owner_in_another_namespace_is_refused():
    for owned in (body("owned", namespace="y"), body("owned", namespace=None)):
        with pytest.raises(ProviderError, match="owns objects of that namespace"):
            set_controller(body("owner"), owned)
    set_controller(body("owner", namespace=None, kind="Node"), body("owned"))


def test_owner_without_a_uid_is_refused():
    with pytest.raises(ProviderError, match="has no uid"):
        owner_reference({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}})
