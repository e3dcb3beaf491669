"""Versions and quantities, as users write them and as API servers report them."""

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
def test_what_is_read_of_a_version(text: str | None, version: tuple[int, ...] | None) -> None:
    assert KubernetesVersion.parse(text) == (KubernetesVersion(*version) if version is not None else None)


@given(_VERSIONS, _VERSIONS)
def test_versions_have_an_order_and_read_back(one: KubernetesVersion, other: KubernetesVersion) -> None:
    assert KubernetesVersion.parse(f"v{one}") == one
    assert (one < other) == ((one.major, one.minor, one.patch) < (other.major, other.minor, other.patch))
    assert one.minors_after(other) == -other.minors_after(one)
    if one.minors_after(other) > 0:
        assert one > other


@pytest.mark.parametrize(
    ("text", "amount"),
    [("100m", "0.1"), ("2", "2"), ("1.5", "1.5"), ("256Mi", 256 << 20), ("2G", 2 * 10**9), ("0.5Ki", 512)],
)
def test_what_a_quantity_stands_for(text: str, amount: str | int) -> None:
    assert quantity(text) == Decimal(amount)


def test_what_is_no_quantity_is_refused() -> None:
    with pytest.raises(ValueError, match="'2GB' is no quantity"):
        quantity("2GB")


def test_integers_are_read_as_text() -> None:
    spec: dict[str, Any] = {"resources": {"requests": {"cpu": 2}, "limits": {"memory": 1 << 30}}}
    found = ControlPlane.model_validate({"metadata": {"name": "a"}, "spec": spec}).spec.resources
    assert found is not None
    assert found.requests is not None
    assert found.limits is not None
    assert (found.requests.cpu, found.limits.memory) == ("2", "1073741824")


@pytest.mark.parametrize("field", [{"version": "1.36.3"}, {"resources": {"requests": {"cpu": "1"}}}])
def test_what_kplane_does_not_run_has_neither_version_nor_resources(field: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="for API servers that kplane runs"):
        ControlPlane.model_validate({"metadata": {"name": "a"}, "spec": {"endpointRef": {"name": "e"}, **field}})
