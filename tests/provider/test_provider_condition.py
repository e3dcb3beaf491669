"""Conditions that other programs wrote."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kplane.provider.providers._support.condition import is_true, section

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["status", "conditions", "type"]), inner, max_size=3)
    ),
    max_leaves=8,
)


def found(*conditions):
    return {"status": {"conditions": list(conditions)}}


def test_condition_is_met_only_by_status_true_of_its_type():
    assert is_true(found({"type": "Other", "status": "False"}, {"type": "Ready", "status": "True"}), "Ready")
    for status in ("False", "Unknown", True, None):
        assert not is_true(found({"type": "Ready", "status": status}), "Ready")
    assert not is_true(found({"type": "Other", "status": "True"}), "Ready")
    assert not is_true({}, "Ready")


def test_missing_section_is_empty():
    assert section({"a": {"b": {"c": 1}}}, "a", "b") == {"c": 1}
    assert section({"a": {"b": [1]}}, "a", "b") == {}
    assert section({"a": "text"}, "a", "b") == {}


@given(json_values)
def test_condition_of_arbitrary_status_does_not_raise(status):
    assert is_true({"status": status}, "Ready") is False
    assert is_true({"status": {"conditions": status}}, "Ready") is False
