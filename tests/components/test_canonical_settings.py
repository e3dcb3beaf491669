"""Equivalent settings of a class give the same API server, so that no pod is replaced."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kplane.api import MANAGED_FLAGS, ApiServerSettings, AuditPolicy, ControlPlaneClass
from kplane.binaries.programs import Binaries
from kplane.components import canonical
from kplane.components.api_server import bootstrap_arguments
from kplane.components.api_server_configuration import audit_configuration
from kplane.components.canonical import canonical_flags
from kplane.controlplane_operator.backends.class_settings import scheduling_of

INFLIGHT, GOAWAY = "--max-requests-inflight=200", "--goaway-chance=0.001"
FLAGS = st.sampled_from([INFLIGHT, "--max-requests-inflight=9", GOAWAY, "--v=2", "--v=4", "--allow-privileged"])


def arguments(*flags: str) -> tuple[str, ...]:
    return tuple(bootstrap_arguments(ApiServerSettings(extra_args=[*flags]), service_cidr="10.96.0.0/16"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([INFLIGHT, GOAWAY], [GOAWAY, INFLIGHT]),
        ([INFLIGHT], [INFLIGHT, INFLIGHT]),
        ([INFLIGHT, GOAWAY], [INFLIGHT, GOAWAY, INFLIGHT]),
        (["--feature-gates=A=true,B=false"], ["--feature-gates=B=false", "--feature-gates=A=true"]),
        (["--runtime-config=api/alpha=true,v1=true"], ["--runtime-config=v1=true,api/alpha=true"]),
        (["--api-audiences=a,b"], ["--api-audiences=b", "--api-audiences=a,b"]),
        (["--allow-privileged"], ["--allow-privileged=true"]),
        (["--watch-cache-sizes=a#1,b#2"], ["--watch-cache-sizes=b#2,a#1"]),
        (["--strict-transport-security-directives=a,b"], ["--strict-transport-security-directives=b,a"]),
        (["--feature-gates=A=true,B=false"], ["--feature-gates=A=TRUE,B=0"]),
        (["--runtime-config=api/alpha=true"], ["--runtime-config=api/alpha=T"]),
        (["--v=2", "--v=4"], ["--v=4"]),
        (["--allow-privileged=false", "--allow-privileged"], ["--allow-privileged=true"]),
    ],
)
def test_equivalent_flags_give_equal_arguments(one: list[str], other: list[str]) -> None:
    assert arguments(*one) == arguments(*other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([INFLIGHT, "--max-requests-inflight=9"], ["--max-requests-inflight=9", INFLIGHT]),
        (["--v=2", "--v=4", "--v=2"], ["--v=2", "--v=4"]),
        (["--feature-gates=A=true,A=false"], ["--feature-gates=A=false,A=true"]),
        (["--feature-gates=kube:A=true,A=false"], ["--feature-gates=A=false,kube:A=true"]),
        (["--feature-gates=A=false", "--feature-gates= A=true"], ["--feature-gates= A=true,A=false"]),
        (["--service-account-extend-token-expiration"], ["--service-account-extend-token-expiration=false"]),
        (["--watch-cache-sizes=a#1,a#2"], ["--watch-cache-sizes=a#2,a#1"]),
        (["--vmodule=a=1", "--vmodule=b=2"], ["--vmodule=b=2"]),
    ],
)
def test_flags_with_other_meaning_give_other_arguments(one: list[str], other: list[str]) -> None:
    assert arguments(*one) != arguments(*other)


@given(st.lists(FLAGS, max_size=12))
def test_each_flag_keeps_its_last_value(flags: list[str]) -> None:
    def last(items: Any) -> dict[str, str]:
        pairs = (flag.partition("=") for flag in items)
        return {name: value if equals else "true" for name, equals, value in pairs}

    assert last(canonical_flags(flags)) == last(flags)
    assert canonical_flags(canonical_flags(flags)) == canonical_flags(flags)


@pytest.mark.integration
def test_every_list_flag_of_kube_apiserver_is_known(binaries: Binaries) -> None:
    """kube-apiserver joins the values of a repeated list. Of any other flag, it uses the last value."""
    text = subprocess.run([binaries.paths["kube-apiserver"], "--help"], capture_output=True, text=True, check=True)
    flags = re.findall(r"^ +(?:-\w, )?(--[-a-z0-9]+) (\S+)", text.stdout, re.MULTILINE)
    lists = {name for name, kind in flags if re.search(r"strings|Array|Slice|[mM]ap|stringTo|namedCertKey|,", kind)}
    assert {"--api-audiences", "--feature-gates", "--vmodule"} <= lists
    assert lists - {f"--{flag}" for flag in MANAGED_FLAGS} <= canonical._SETS | canonical._ORDERED_LISTS


def test_order_matters_for_audit_rules_but_not_for_their_lists() -> None:
    quiet = {"level": "None", "verbs": ["get", "list"], "users": ["b", "a"], "resources": [{"group": "b"}, {}]}
    same = {**quiet, "verbs": ["list", "get", "get"], "users": ["a", "b"], "resources": [{}, {"group": "b"}]}
    rest = {"level": "Metadata"}

    def written(*rules: dict[str, Any]) -> bytes:
        return audit_configuration(AuditPolicy.model_validate({"rules": rules}))

    assert written(quiet, rest) == written(same, rest)
    assert written(quiet, rest) != written(rest, quiet)


def test_order_of_tolerations_is_ignored() -> None:
    def scheduling(*keys: str) -> Any:
        tolerations = [{"key": key, "operator": "Exists"} for key in keys]
        body = {"metadata": {"name": "a"}, "spec": {"pods": {"tolerations": tolerations}}}
        return scheduling_of(ControlPlaneClass.model_validate(body))

    assert scheduling("a", "b") == scheduling("b", "a", "a") != scheduling("a")


def test_order_of_lists_in_affinity_is_ignored_but_not_their_weights() -> None:
    def scheduling(terms: list[str], *, values: list[str]) -> Any:
        match = {"matchExpressions": [{"key": "zone", "operator": "In", "values": values}]}
        preferred = [{"weight": 1, "preference": {"matchFields": [{"key": term}]}} for term in terms]
        node = {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [match]},
            "preferredDuringSchedulingIgnoredDuringExecution": preferred,
        }
        body = {"metadata": {"name": "a"}, "spec": {"pods": {"affinity": {"nodeAffinity": node}}}}
        return scheduling_of(ControlPlaneClass.model_validate(body))

    reference = scheduling(["x", "y"], values=["a", "b"])
    assert scheduling(["y", "x"], values=["b", "a", "a"]) == reference
    assert scheduling(["x", "y", "x"], values=["a", "b"]) != reference
