"""Tokens are requested for the ServiceAccount of the published token."""

from __future__ import annotations

import base64
import json
from types import SimpleNamespace
from typing import Any

import pytest

from kplane.client import ClientError
from kplane.client.tokens import issue_token


def jwt(payload: dict[str, Any]) -> str:
    return f"x.{base64.urlsafe_b64encode(json.dumps(payload).encode()).rstrip(b'=').decode()}.y"


class Tenant:
    def __init__(self, token: str | None) -> None:
        self.config = SimpleNamespace(token=token)
        self.asked: list[tuple[str, str, Any]] = []

    async def request(self, method: str, path: str, *, body: Any) -> Any:
        self.asked.append((method, path, body["spec"]))
        return {"status": {"token": "new"}}


async def test_issue_token_requests_token_of_published_service_account() -> None:
    tenant = Tenant(jwt({"sub": "system:serviceaccount:kplane-system:controlplane-admin"}))
    assert await issue_token(tenant, seconds=900) == "new"  # type: ignore[arg-type]
    path = "/api/v1/namespaces/kplane-system/serviceaccounts/controlplane-admin/token"
    assert tenant.asked == [("POST", path, {"expirationSeconds": 900})]


@pytest.mark.parametrize("token", [None, "", "opaque", "a.b.c", jwt({}), jwt({"sub": "someone"}), jwt({"sub": 1})])
async def test_issue_token_without_service_account_token_is_refused(token: str | None) -> None:
    with pytest.raises(ClientError, match="a class with auth"):
        await issue_token(Tenant(token), seconds=900)  # type: ignore[arg-type]
