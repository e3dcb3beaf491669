"""Credentials that wake a control plane, and their record in the gateway's Secret."""

from __future__ import annotations

import base64
import json
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from kplane.api import ControlPlane
from kplane.controlplane_operator.hibernation.bootstrap_tokens import BootstrapToken
from kplane.controlplane_operator.hibernation.credentials import Credentials, record_credentials
from kplane.controlplane_operator.hibernation.service_accounts import ServiceAccount
from kplane.provider import NotFound

_ACME = ControlPlane.model_validate({"metadata": {"name": "acme", "uid": "1"}, "spec": {}})
_TOKENS = (BootstrapToken("abcdef.0123456789abcdef"),)
_ACCOUNTS = (ServiceAccount("default", "robot", "1"), ServiceAccount("default", "default", "2"))
_BY_PATH = {"data": {"sa.pub": "YQ=="}}


def context(existing: Any, *, patch: AsyncMock) -> Any:
    objects = {("kplane-gateway", "controlplane-acme"): existing}
    return SimpleNamespace(
        gateway=SimpleNamespace(namespace="kplane-gateway"),
        client=SimpleNamespace(patch=patch),
        secrets=SimpleNamespace(open=AsyncMock()),
        stores=SimpleNamespace(secrets=SimpleNamespace(get=objects.get, apply=lambda _: None)),
    )


def written(patch: AsyncMock) -> dict[str, Any]:
    """Return the data of the last patch, decoded."""
    ((_, _, body), _) = patch.await_args  # type: ignore[misc]
    return {
        key: json.loads(base64.b64decode(value)) if value is not None else None for key, value in body["data"].items()
    }


@pytest.mark.parametrize(
    ("existing", "writes"),
    [(None, 0), ({"data": {"host": "YQ==", "server": "YQ=="}}, 0), (_BY_PATH, 1)],
    ids=["absent", "by host name", "by path"],
)
async def test_credentials_are_recorded_if_gateway_secret_is_by_path(existing: Any, writes: int) -> None:
    patch = AsyncMock(return_value={})
    await record_credentials(context(existing, patch=patch), _ACME, Credentials(_TOKENS, _ACCOUNTS))
    assert patch.await_count == writes
    if writes:
        data = written(patch)
        assert len(data["bootstrap-tokens.json"]["tokens"]) == 1
        assert len(data["accounts.json"]["accounts"]) == 2
    patch.side_effect = NotFound(404, "NotFound", "gone")
    await record_credentials(context(existing, patch=patch), _ACME, Credentials())


async def test_record_removes_former_accounts_if_there_are_too_many() -> None:
    patch = AsyncMock(return_value={})
    await record_credentials(context(_BY_PATH, patch=patch), _ACME, Credentials(_TOKENS, None))
    data = written(patch)
    assert data["accounts.json"] is None
    assert data["bootstrap-tokens.json"] is not None
