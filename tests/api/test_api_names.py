"""Derived names: unique DNS labels for every control plane."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from kplane.api.names import controllers_secret_name, kubeconfig_secret_name, label_value, management_namespace

OBJECT_NAMES = st.from_regex(
    r"[a-z0-9]([-a-z0-9]{0,60}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,60}[a-z0-9])?){0,3}", fullmatch=True
).filter(lambda name: len(name) <= 253)
NAMERS: list[Callable[[str], str]] = [management_namespace, kubeconfig_secret_name, controllers_secret_name]


@pytest.mark.parametrize("name", ["a", "a-b", "aa", "tenant-7", "x" * 20])
def test_short_name_stays_readable(name: str) -> None:
    assert management_namespace(name) == f"kplane-cp-{name}"
    assert kubeconfig_secret_name(name) == f"controlplane-{name}-kubeconfig"
    assert controllers_secret_name(name) == f"controlplane-{name}-controllers"


@pytest.mark.parametrize("namer", NAMERS)
@given(name=OBJECT_NAMES)
@example(name="0." + "-".join("a" * 120))
def test_derived_name_is_a_dns_label(namer: Callable[[str], str], name: str) -> None:
    label = namer(name)
    assert len(label) <= 63
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", label)


@pytest.mark.parametrize("namer", [*NAMERS, label_value])
@settings(max_examples=40)
@given(name=OBJECT_NAMES, other=OBJECT_NAMES)
@example(name="a.b", other="a-b")
@example(name="a" * 64, other="a" * 65)
@example(name="a" * 60 + ".b", other="a" * 60 + ".c")
def test_derived_names_of_different_names_differ(namer: Callable[[str], str], name: str, other: str) -> None:
    assume(name != other)
    assert namer(name) != namer(other)


@pytest.mark.parametrize("long", ["a" * 64, "a.b", "x-a.b"])
def test_no_name_maps_to_the_namespace_of_a_long_name(long: str) -> None:
    namespace = management_namespace(long)
    candidates = [namespace[start:] for start in range(len(namespace)) if namespace[start] != "-"]
    assert namespace not in {management_namespace(name) for name in candidates}


@given(name=OBJECT_NAMES)
def test_label_value_is_valid_for_every_name(name: str) -> None:
    value = label_value(name)
    assert len(value) <= 63
    assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", value)
    assert len(name) > 63 or value == name
