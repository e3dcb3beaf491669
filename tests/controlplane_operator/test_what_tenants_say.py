"""Answers of a tenant's API server are validated and bounded before the operator stores them."""

from __future__ import annotations

import datetime as dt
from typing import Any, cast

import pytest

from kplane.api import ControlPlaneRegistrationStatus, ControlPlaneStatus
from kplane.controlplane_operator.errors import BootstrapFailed
from kplane.controlplane_operator.status.errors import tenant_error
from kplane.controlplane_operator.tenant.client import reported_version, tenant_client
from kplane.controlplane_operator.tenant.tokens import request_token
from kplane.provider import Client, ClusterConfig
from kplane.provider.errors import AnswerTooLarge, Forbidden

_LIFE = dt.timedelta(hours=1)


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        ({"gitVersion": "v1.36.3"}, "v1.36.3"),
        ({"gitVersion": "v1.36.3+k3s1"}, "v1.36.3+k3s1"),
        ({"gitVersion": f"v1.36.3-{'a' * 55}"}, f"v1.36.3-{'a' * 55}"),
        ({"gitVersion": f"v1.36.3-{'a' * 500}"}, f"v1.36.3-{'a' * 55}"),
        ({"gitVersion": f"v1.36.3-{'a' * 54}.-{'a' * 500}"}, f"v1.36.3-{'a' * 54}"),
        ({"gitVersion": "v1.36.3\n\x1b[31m"}, "unknown"),
        ({"gitVersion": ""}, "unknown"),
        ({"gitVersion": ["v1"]}, "unknown"),
        ({}, "unknown"),
        ([], "unknown"),
        (None, "unknown"),
    ],
)
def test_reported_version_always_fits_into_status(answer: Any, version: str) -> None:
    assert reported_version(answer) == version
    assert ControlPlaneStatus(version=reported_version(answer)).version == version
    assert ControlPlaneRegistrationStatus(version=reported_version(answer)).version == version


class _Answering:
    """Fake client that always returns the same answer."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    async def request(self, *_: Any, **__: Any) -> Any:
        return self._answer


@pytest.mark.parametrize(
    "status",
    [
        None,
        {},
        {"token": "a.b.c", "expirationTimestamp": 5},
        {"token": "a.b.c", "expirationTimestamp": "2040-01-01T00:00:00"},
        {"token": ["a.b.c"], "expirationTimestamp": "2040-01-01T00:00:00Z"},
        {"token": "", "expirationTimestamp": "2040-01-01T00:00:00Z"},
        {"token": "a b\r\nX-Header: c", "expirationTimestamp": "2040-01-01T00:00:00Z"},
        {"token": "a" * 20_000, "expirationTimestamp": "2040-01-01T00:00:00Z"},
    ],
)
async def test_request_token_refuses_invalid_token_with_message(status: Any) -> None:
    client = cast("Client", _Answering({"status": status}))
    with pytest.raises(BootstrapFailed, match="gave no token for ServiceAccount a"):
        await request_token(client, service_account="a", lifetime=_LIFE)


async def test_request_token_returns_valid_token_unchanged() -> None:
    answer = {"status": {"token": "a.b-c_d", "expirationTimestamp": "2040-01-01T00:00:00Z"}}
    client = cast("Client", _Answering(answer))
    assert (await request_token(client, service_account="a", lifetime=_LIFE)).value == "a.b-c_d"


def test_tenant_error_reports_too_large_answer() -> None:
    failure = tenant_error("setting up the control plane", AnswerTooLarge("https://a answered with more than 4 MiB"))
    assert (failure.reason, failure.message) == (
        "AnswerTooLarge",
        "setting up the control plane: https://a answered with more than 4 MiB",
    )


def test_tenant_error_message_is_bounded_and_printable() -> None:
    failure = tenant_error("a", Forbidden(403, "Forbidden", "no\n\x00\u202e" + "x" * 100_000))
    assert failure.message.isprintable()
    assert len(failure.message) < 2100


async def test_tenant_client_has_lower_limits_than_management_client() -> None:
    config = ClusterConfig("https://127.0.0.1:1")
    async with tenant_client(config, timeout_seconds=1) as tenant, Client(config, field_manager="kplane") as management:
        assert tenant._limits.answer_bytes == tenant._limits.list_bytes == 4 * 1024**2
        assert tenant._limits.values is not None
        assert tenant._limits.together is not None
        assert management._limits.answer_bytes == 64 * 1024**2
        assert management._limits.list_bytes is management._limits.together is None
