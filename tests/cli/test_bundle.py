"""Namespaces that a support bundle covers, and parts that fail."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kplane.api import ControlPlane
from kplane.cli.bundle import Bundle, covered
from kplane.cli.doctor.survey import Survey
from kplane.provider import Unreachable

OWN = {"default", "kplane-gateway", "kplane-cp-acme"}


def survey(*namespaces: dict[str, Any], home: str | None = None) -> Survey:
    programs: Any = SimpleNamespace(namespace=home)
    acme = ControlPlane.model_validate({"metadata": {"name": "acme"}, "spec": {}})
    return Survey(client=None, programs=programs, control_planes=[acme], namespaces=namespaces)  # type: ignore[arg-type]


def namespace(name: str, *, of: str | None = None) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"controlplane.kplane.dev/name": of} if of else {}}}


def test_bundle_covers_only_namespaces_of_kplane() -> None:
    assert covered(survey(home="platform")) == {*OWN, "platform"}
    assert covered(survey()) == {*OWN, "kplane-system"}
    present = [
        namespace("default"),
        namespace("default-app"),
        namespace("kplane-of-others"),
        namespace("kplane-system"),
        namespace("platform"),
        namespace("kplane-cp-acme", of="acme"),
        namespace("kplane-cp-gone", of="gone"),
    ]
    assert covered(survey(*present, home="platform")) == {"default", "platform", "kplane-cp-acme", "kplane-cp-gone"}


@pytest.mark.parametrize(
    "failure", [Unreachable("away", kind="connect"), OSError("gone"), ValueError("odd"), KeyError("x")]
)
async def test_failed_part_is_recorded_with_its_error(failure: Exception) -> None:
    bundle = Bundle()
    async with bundle.part("objects/leases"):
        raise failure
    assert type(failure).__name__ in bundle.files["objects/leases.failed.txt"]
