"""Label selectors match like label selectors of the API server."""

from __future__ import annotations

import pytest

from kplane.provider import ProviderError
from kplane.provider.cache.selectors import parse_label_selector

LABELS = {"app": "web", "tier": "a.b_c-1", "empty": "", "example.com/owner": "me"}


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("", True),
        ("  ", True),
        ("app=web", True),
        ("app == web", True),
        ("app=other", False),
        ("absent=web", False),
        ("app!=web", False),
        ("app!=other", True),
        ("absent!=web", True),
        ("empty=", True),
        ("absent=", False),
        ("app", True),
        ("absent", False),
        ("!app", False),
        ("! absent", True),
        ("app in (web,db)", True),
        ("app in (db, web )", True),
        ("app in (db)", False),
        ("absent in (web)", False),
        ("app notin (db)", True),
        ("app notin (db,web)", False),
        ("absent notin (web)", True),
        ("empty in (,a)", True),
        ("example.com/owner=me,tier=a.b_c-1", True),
        ("app in (web,db),tier!=x , !absent", True),
        ("app in (web,db),tier=x", False),
    ],
)
def test_label_selector_matches(selector, matches):
    assert parse_label_selector(selector)(LABELS) is matches


@pytest.mark.parametrize(
    "selector", ["=web", "app=a b", "app in web", "app in (a b)", "app>1", "app,,tier", "!", "a=b="]
)
def test_invalid_label_selector_is_refused(selector):
    with pytest.raises(ProviderError, match="cannot be read: write key=value"):
        parse_label_selector(selector)
