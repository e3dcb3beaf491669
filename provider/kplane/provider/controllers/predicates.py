"""Predicates, which filter events."""

from __future__ import annotations

from collections.abc import Callable

from kplane.provider.cache.event import Event
from kplane.provider.cache.selectors import parse_label_selector

__all__ = [
    "Predicate",
    "all_of",
    "annotations_changed",
    "any_of",
    "generation_changed",
    "in_namespaces",
    "labels_changed",
    "matches_labels",
    "none_of",
    "on_events",
]

Predicate = Callable[[Event], bool]
"""Filter of events, which the event loop calls and which must not block. An error is logged and drops the event.

Predicates of this module read fields that the cache decodes in any case, unless their description mentions a decode."""


def on_events(*, added: bool = True, modified: bool = True, deleted: bool = True) -> Predicate:
    """Accept only events of these kinds."""
    wanted = {kind for kind, is_wanted in (("ADDED", added), ("MODIFIED", modified), ("DELETED", deleted)) if is_wanted}
    return lambda event: event.kind in wanted


def generation_changed() -> Predicate:
    """Drop updates that keep the generation: for most kinds, updates of status, labels and annotations."""
    return lambda event: event.old_entry is None or event.generation != event.old_entry.generation


def labels_changed() -> Predicate:
    """Drop updates that keep the labels."""
    return lambda event: event.old_entry is None or event.labels != event.old_entry.labels


def annotations_changed() -> Predicate:
    """Drop updates that keep the annotations; decodes the metadata of both objects."""

    def changed(event: Event) -> bool:
        old = event.old_metadata
        return old is None or event.metadata.get("annotations") != old.get("annotations")

    return changed


def matches_labels(selector: str) -> Predicate:
    """Accept objects with these labels (`app=web,tier in (a,b)`), and objects that had them before the event.

    Raises ProviderError if the selector cannot be read.
    """
    matches = parse_label_selector(selector)
    return lambda event: matches(event.labels) or (event.old_entry is not None and matches(event.old_entry.labels))


def in_namespaces(*namespaces: str) -> Predicate:
    """Accept only objects in these namespaces."""
    wanted = frozenset(namespaces)
    return lambda event: event.namespace in wanted


def all_of(*predicates: Predicate) -> Predicate:
    """Accept events that pass all predicates."""
    return lambda event: all(predicate(event) for predicate in predicates)


def any_of(*predicates: Predicate) -> Predicate:
    """Accept events that pass any predicate."""
    return lambda event: any(predicate(event) for predicate in predicates)


def none_of(*predicates: Predicate) -> Predicate:
    """Accept events that pass no predicate."""
    return lambda event: not any(predicate(event) for predicate in predicates)
