"""One exception for each answer."""

from __future__ import annotations

import pytest

from kplane import provider
from kplane.provider.errors import api_error


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, provider.Unauthorized),
        (403, provider.Forbidden),
        (404, provider.NotFound),
        (409, provider.Conflict),
        (410, provider.Expired),
        (422, provider.Invalid),
        (429, provider.TooManyRequests),
        (500, provider.ServerError),
        (503, provider.ServerError),
        (418, provider.ApiError),
    ],
)
def test_the_status_decides(status, kind):
    error = api_error(status, "Reason", "a sentence")
    assert type(error) is kind
    assert isinstance(error, provider.ProviderError)
    assert (error.status, error.reason, str(error)) == (status, "Reason", "a sentence")


def test_a_taken_name_is_a_conflict_of_its_own():
    assert type(api_error(409, "AlreadyExists", "")) is provider.AlreadyExists


def test_everything_public_is_there():
    assert len(provider.__all__) == len(set(provider.__all__))
    for name in provider.__all__:
        assert hasattr(provider, name)
