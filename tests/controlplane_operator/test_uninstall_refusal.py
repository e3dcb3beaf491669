"""Refusal of an uninstallation while control planes exist."""

from __future__ import annotations

from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from kplane.controlplane_operator import uninstall
from kplane.controlplane_operator.uninstall import main, refusal
from kplane.provider import Client, NotFound


def cluster(*names: str, error: Exception | None = None) -> Any:
    client = Mock(Client)
    client.list = AsyncMock(
        return_value=Mock(items=[{"metadata": {"name": name}} for name in names]), side_effect=error
    )
    return client


async def test_refusal_is_none_without_control_planes() -> None:
    assert await refusal(cluster()) is None


async def test_refusal_is_none_without_the_crd() -> None:
    assert await refusal(cluster(error=NotFound(404, "NotFound", "gone"))) is None


async def test_refusal_names_five_control_planes_and_counts_the_rest() -> None:
    message = await refusal(cluster(*[f"acme-{number}" for number in range(7)]))
    assert message is not None
    assert "control planes: acme-0, acme-1, acme-2, acme-3, acme-4 and 2 more. Delete them first" in message


def test_main_exits_1_outside_a_pod(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Outside a pod, no API server is configured."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert main() == 1
    assert "failed to list control planes: not in a pod" in capsys.readouterr().err


def test_main_exits_1_with_refusal_and_0_without(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(uninstall, "_asked", AsyncMock(return_value="there are some"))
    assert main() == 1
    assert capsys.readouterr().err == "there are some\n"
    monkeypatch.setattr(uninstall, "_asked", AsyncMock(return_value=None))
    assert main() == 0
