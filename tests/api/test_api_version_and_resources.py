"""Versions and quantities, from users and from API servers."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kplane.api import ControlPlane, KubernetesVersion, quantity

_VERSIONS = st.builds(KubernetesVersion, *[st.integers(0, 40)] * 3)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("1.36.3", (1, 36, 3)),
        ("v1.36.10", (1, 36, 10)),
        ("v1.36.3-eks-1a2b", (1, 36, 3)),
        ("v1.36.3+k3s1", (1, 36, 3)),
        ("1.36", None),
        ("latest", None),
        ("", None),
        (None, None),
        ("unknown v1.36.3", None),
        ("v1.36.33333", None),
    ],
)
def test_version_parse_accepts_suffixes_and_rejects_other_text(
    text: str | None, version: tuple[int, ...] | None
) -> None:
    assert KubernetesVersion.parse(text) == (KubernetesVersion(*version) if version is not None else None)


@given(_VERSIONS, _VERSIONS)
def test_versions_are_ordered_and_round_trip(one: KubernetesVersion, other: KubernetesVersion) -> None:
    assert KubernetesVersion.parse(f"v{one}") == one
    assert (one < other) == ((one.major, one.minor, one.patch) < (other.major, other.minor, other.patch))
    assert one.minors_after(other) == -other.minors_after(one)
    if one.minors_after(other) > 0:
        assert one > other


@pytest.mark.parametrize(
    ("text", "amount"),
    [("100m", "0.1"), ("2", "2"), ("1.5", "1.5"), ("256Mi", 256 << 20), ("2G", 2 * 10**9), ("0.5Ki", 512)],
)
def test_quantity_parses_suffixes(text: str, amount: str | int) -> None:
    assert quantity(text) == Decimal(amount)


def test_quantity_refuses_unknown_suffix() -> None:
    with pytest.raises(ValueError, match="'2GB' is no quantity"):
        quantity("2GB")


def test_integer_resources_are_read_as_text() -> None:
    spec: dict[str, Any] = {"resources": {"requests": {"cpu": 2}, "limits": {"memory": 1 << 30}}}
    resources = ControlPlane.model_validate({"metadata": {"name": "a"}, "spec": spec}).spec.resources
    assert resources is not None
    assert resources.requests is not None
    assert resources.limits is not None
    assert (resources.requests.cpu, resources.limits.memory) == ("2", "1073741824")


@pytest.mark.parametrize("field", [{"version": "1.36.3"}, {"resources": {"requests": {"cpu": "1"}}}])
def test_adopted_control_plane_refuses_version_and_resources(field: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="for API servers that kplane runs"):
        ControlPlane.model_validate({"metadata": {"name": "a"}, "spec": {"endpointRef": {"name": "e"}, **field}})
