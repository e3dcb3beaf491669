"""Which commands `kplane describe` names."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kplane.api import ControlPlane
from kplane.api.names import PAUSED_ANNOTATION
from kplane.cli.description import describe_control_plane
from kplane.cli.kubeconfigs import Management
from kplane.client import ControlPlanes


class One:
    """Knows one control plane without anything around it."""

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


async def test_one_that_no_operator_has_seen() -> None:
    told = await described(One())
    assert "not ready: no operator has seen it yet\nnext:      kplane doctor" in told
    assert "no controllers run; kplane register acme" in told


@pytest.mark.parametrize("context", [None, "prod"])
async def test_commands_name_the_cluster_that_was_asked_for(context: str | None) -> None:
    option = f" --context {context}" if context is not None else ""
    conditions = [condition("Ready", "False", "ClassNotFound"), condition("Paused", "True", "Paused")]
    told = await described(One(conditions=conditions), context=context)
    assert f"next:      kubectl{option} get controlplaneclasses" in told
    assert f"kplane resume acme{option}" in told
    assert f"kplane register acme{option}" in told
