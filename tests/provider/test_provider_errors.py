"""Exceptions by status and reason of an answer."""

from __future__ import annotations

import pytest

from kplane import provider
from kplane.provider import errors
from kplane.provider.errors import api_error


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, errors.Unauthorized),
        (403, errors.Forbidden),
        (404, errors.NotFound),
        (409, errors.Conflict),
        (410, errors.Expired),
        (422, errors.Invalid),
        (429, errors.TooManyRequests),
        (500, errors.ServerError),
        (503, errors.ServerError),
        (418, errors.ApiError),
    ],
)
def test_api_error_has_class_of_its_status(status, kind):
    error = api_error(status, "Reason", "a sentence")
    assert type(error) is kind
    assert isinstance(error, errors.ProviderError)
    assert (error.status, error.reason, str(error)) == (status, "Reason", "a sentence")


def test_api_error_of_taken_name_is_already_exists():
    assert type(api_error(409, "AlreadyExists", "")) is errors.AlreadyExists


def test_public_names_exist_and_are_few():
    assert len(provider.__all__) <= 53
    assert len(provider.__all__) == len(set(provider.__all__))
    for name in provider.__all__:
        assert hasattr(provider, name)
