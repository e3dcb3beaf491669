"""Bootstrap tokens that wake a control plane, and the gateway's entry for them."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kplane.controlplane_operator.hibernation.bootstrap_tokens import (
    BootstrapToken,
    read_bootstrap_token,
    tokens_entry,
)
from kplane.gateway.tokens import BootstrapTokens

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
GOOD = {
    "token-id": "abcdef",
    "token-secret": "0123456789abcdef",
    "usage-bootstrap-authentication": "true",
    "expiration": "2026-11-27T13:00:00Z",
}


def secret(*, name: str = "bootstrap-token-abcdef", **data: str) -> dict[str, Any]:
    values = {key.replace("_", "-"): value for key, value in data.items()}
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in (GOOD | values).items()}
    return {"metadata": {"name": name}, "data": encoded}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (secret(), BootstrapToken("abcdef.0123456789abcdef", LATER)),
        (secret(expiration=""), BootstrapToken("abcdef.0123456789abcdef")),
        (secret(expiration="2026-11-27T12:00:00Z"), None),
        (secret(expiration="2026-11-27T13:00:00"), None),
        (secret(expiration="soon"), None),
        (secret(usage_bootstrap_authentication="false"), None),
        (secret(token_secret="short"), None),
        (secret(token_id="ABCDEF"), None),
        (secret(name="bootstrap-token-abcdeg"), None),
        (secret() | {"metadata": {"name": "bootstrap-token-abcdef", "deletionTimestamp": "x"}}, None),
        (secret() | {"data": {"token-id": "%"}}, None),
        ({"metadata": {"name": "bootstrap-token-abcdef"}}, None),
    ],
)
def test_read_returns_only_tokens_that_the_api_server_accepts(found: Any, expected: BootstrapToken | None) -> None:
    assert read_bootstrap_token(found, now=NOW) == expected


def test_gateway_verifies_recorded_tokens_without_their_text() -> None:
    permanent_token, expiring_token = (
        BootstrapToken("abcdef.0123456789abcdef"),
        BootstrapToken("abcdeg.0123456789abcdef", LATER),
    )
    entry = tokens_entry([expiring_token, permanent_token])
    record = BootstrapTokens.from_json(entry)
    assert record.have(permanent_token.text, now=LATER)
    assert record.have(expiring_token.text, now=NOW)
    assert not record.have(expiring_token.text, now=LATER)
    assert not record.have("abcdef.0123456789abcdeg", now=NOW)
    assert b"0123456789abcdef" not in entry
    assert tokens_entry([permanent_token]) != tokens_entry([permanent_token]), "the salt differs"
    assert "0123456789abcdef" not in repr(permanent_token)


def test_record_keeps_the_200_tokens_that_expire_last() -> None:
    tokens = [BootstrapToken(f"a{n:05}.0123456789abcdef", NOW + timedelta(seconds=n)) for n in range(1, 1001)]
    record = BootstrapTokens.from_json(tokens_entry([*tokens, BootstrapToken("abcdef.0123456789abcdef")]))
    assert len(record.expirations) == 200
    assert record.have("abcdef.0123456789abcdef", now=NOW)
    assert record.have(tokens[-1].text, now=NOW)
    assert not record.have(tokens[0].text, now=NOW)
