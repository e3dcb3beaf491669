"""Predicates of events."""

from __future__ import annotations

import pytest

from kplane.provider import ProviderError
from kplane.provider.client.resources import CONFIG_MAPS
from kplane.provider.controllers.predicates import (
    all_of,
    annotations_changed,
    any_of,
    generation_changed,
    in_namespaces,
    labels_changed,
    matches_labels,
    none_of,
    on_events,
)


@pytest.fixture
def seen(fake_cluster):
    """Play the life of an object, and return the events that the predicate passes."""

    def play(predicate):
        mirror, passed = fake_cluster("a").mirror(CONFIG_MAPS), []
        mirror.add_handler(lambda event: passed.append(event.kind) if predicate(event) else passed.append("-"))
        mirror.put("x", metadata={"generation": 1, "labels": {"app": "web"}})
        mirror.put("x", metadata={"generation": 1, "labels": {"app": "web"}}, status={"ready": True})
        mirror.put("x", metadata={"generation": 1, "labels": {"app": "web"}, "annotations": {"a": "b"}})
        mirror.put("x", metadata={"generation": 2, "labels": {"app": "web"}, "annotations": {"a": "b"}})
        mirror.put("x", metadata={"generation": 2, "labels": {"app": "db"}, "annotations": {"a": "b"}})
        mirror.put("x", metadata={"generation": 2, "labels": {"app": "db"}, "annotations": {"a": "b"}}, status={})
        mirror.remove("x")
        return "".join(kind[0] for kind in passed)

    return play


@pytest.mark.parametrize(
    ("predicate", "passed"),
    [
        (on_events(), "AMMMMMD"),
        (on_events(deleted=False), "AMMMMM-"),
        (on_events(added=False, modified=False), "------D"),
        (generation_changed(), "A--M--D"),
        (labels_changed(), "A---M-D"),
        (annotations_changed(), "A-M---D"),
        # The predicate passes the change that removes the label, so that handlers see it.
        (matches_labels("app=web"), "AMMMM--"),
        (matches_labels("app in (db),app"), "----MMD"),
        (in_namespaces("ns", "other"), "AMMMMMD"),
        (in_namespaces("other"), "-------"),
        (all_of(on_events(added=False), generation_changed()), "---M--D"),
        (any_of(generation_changed(), labels_changed()), "A--MM-D"),
        (none_of(on_events(modified=False), labels_changed()), "-MMM-M-"),
    ],
)
def test_predicate_passes_matching_events(seen, predicate, passed):
    assert seen(predicate) == passed


def test_matches_labels_refuses_an_invalid_selector():
    with pytest.raises(ProviderError, match="label selector"):
        matches_labels("app>web")
