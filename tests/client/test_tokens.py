"""Tokens are asked for the ServiceAccount that the published one is of."""

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


async def test_the_account_of_the_published_token_gets_another_one() -> None:
    tenant = Tenant(jwt({"sub": "system:serviceaccount:kplane-system:controlplane-admin"}))
    assert await issue_token(tenant, seconds=900) == "new"  # type: ignore[arg-type]
    path = "/api/v1/namespaces/kplane-system/serviceaccounts/controlplane-admin/token"
    assert tenant.asked == [("POST", path, {"expirationSeconds": 900})]


@pytest.mark.parametrize("token", [None, "", "opaque", "a.b.c", jwt({}), jwt({"sub": "someone"}), jwt({"sub": 1})])
async def test_another_credential_is_refused_with_advice(token: str | None) -> None:
    with pytest.raises(ClientError, match="a class with auth"):
        await issue_token(Tenant(token), seconds=900)  # type: ignore[arg-type]
