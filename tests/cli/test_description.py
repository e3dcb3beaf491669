"""Commands that `kplane describe` suggests."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kplane.api import ControlPlane
from kplane.api.names import PAUSED_ANNOTATION
from kplane.cli.description import describe_control_plane
from kplane.cli.kubeconfigs import Management
from kplane.client import ControlPlanes


class One:
    """A client with a single control plane, without registrations and snapshots."""

    def __init__(self, **status: Any) -> None:
        self.found = ControlPlane.model_validate(
            {"metadata": {"name": "acme", "annotations": {PAUSED_ANNOTATION: "true"}}, "spec": {}, "status": status}
        )

    async def get(self, name: str) -> ControlPlane:
        return self.found

    async def registrations(self, name: str) -> list[Any]:
        return []

    async def snapshots(self, name: str) -> list[Any]:
        return []


def condition(kind: str, status: str, reason: str) -> dict[str, str]:
    time = "2026-11-26T01:00:00Z"
    return {"type": kind, "status": status, "reason": reason, "message": "so it is", "lastTransitionTime": time}


async def described(one: One, *, context: str | None = None) -> str:
    return "\n".join(await describe_control_plane(cast("ControlPlanes", one), "acme", cluster=Management(context)))


async def test_unseen_control_plane_suggests_doctor_and_register() -> None:
    text = await described(One())
    assert "not ready: no operator has seen it yet\nnext:      kplane doctor" in text
    assert "no controllers run; kplane register acme" in text


@pytest.mark.parametrize("context", [None, "prod"])
async def test_suggested_commands_name_the_given_context(context: str | None) -> None:
    option = f" --context {context}" if context is not None else ""
    conditions = [condition("Ready", "False", "ClassNotFound"), condition("Paused", "True", "Paused")]
    text = await described(One(conditions=conditions), context=context)
    assert f"next:      kubectl{option} get controlplaneclasses" in text
    assert f"kplane resume acme{option}" in text
    assert f"kplane register acme{option}" in text
