"""Secrets with values of any form."""

from __future__ import annotations

import pytest

from kplane.provider.errors import KubeconfigError
from kplane.provider.providers._support.secret import value_of, values_of


def test_secret_values_are_decoded_and_non_strings_left_out():
    assert values_of({"data": {"a": "eA==", "empty": "", "odd": 3}}) == {"a": b"x", "empty": b""}


@pytest.mark.parametrize("secret", [{}, {"data": None}, {"data": ["a"]}, {"data": "eA=="}])
def test_secret_without_data_has_no_values(secret):
    assert values_of(secret) == {}


@pytest.mark.parametrize("value", ["x", "e A==", "ä"])
def test_secret_error_does_not_show_the_value(value):
    with pytest.raises(KubeconfigError, match=r"^its data is not base64$"):
        values_of({"data": {"a": value}})


def test_missing_and_empty_secret_values_are_distinct():
    assert value_of({"a": b"x"}, "a") == b"x"
    with pytest.raises(KubeconfigError, match="no key 'b'"):
        value_of({"a": b"x"}, "b")
    with pytest.raises(KubeconfigError, match="key 'a' is empty"):
        value_of({"a": b""}, "a")
