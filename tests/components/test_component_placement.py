"""Namespaces and names of a control plane's components on a cluster."""

from __future__ import annotations

import re

import pytest

from kplane.api.names import management_namespace
from kplane.components.names import (
    apiserver_name,
    components_of,
    egress_name,
    etcd_name,
    makes_template,
    mark_of,
    mcm_mark,
    mcm_name,
    place,
    template_name,
)
from kplane.workloads import RuntimeFailure
from kplane.workloads.pods import Placement


@pytest.mark.parametrize("name", ["acme", "etcd", "apiserver", "a.b", "x" * 253, "kplane-cp-x"])
def test_components_are_in_the_namespace_of_their_control_plane(name: str) -> None:
    namespace = management_namespace(name)
    assert place(apiserver_name(name)) == Placement(namespace, "kube-apiserver")
    assert place(egress_name(name)) == Placement(namespace, "egress-proxy")
    assert place(etcd_name(name)) == Placement(namespace, "etcd", group="etcd")
    assert place(etcd_name(name, 2)) == Placement(namespace, "etcd-2", group="etcd")
    assert place(template_name(name)) == Placement(namespace, "template")
    assert [component for component in components_of(name) if makes_template(component)] == [template_name(name)]
    assert place(apiserver_name(name, slot=1)) == Placement(namespace, "kube-apiserver-2")
    assert place(egress_name(name, slot=1)) == Placement(namespace, "egress-proxy-2")
    assert place(etcd_name(name, 1, slot=1)) == Placement(namespace, "etcd-4", group="etcd")
    homes = [
        (
            apiserver_name(name, slot=slot),
            egress_name(name, slot=slot),
            *(etcd_name(name, n, slot=slot) for n in range(3)),
        )
        for slot in (0, 1)
    ]
    assert len({*homes[0], *homes[1], template_name(name)}) == 11
    assert set(components_of(name)) == {*homes[0], *homes[1], template_name(name)}
    assert all(len(component) <= 63 for component in components_of(name))


@pytest.mark.parametrize("control_plane", ["acme", "a.b", "x" * 53, "x" * 253])
@pytest.mark.parametrize("uid", ["2f0f0a39-8a1e-4b66-b7e1-0c5f1a3e0d11", "another"])
def test_mcm_of_registration_is_in_namespace_of_control_plane(control_plane: str, uid: str) -> None:
    component = mcm_name(control_plane, uid=uid)
    assert re.fullmatch("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", component)
    mark = mcm_mark(uid)
    assert mark_of(component) == mark
    assert place(component) == Placement(management_namespace(control_plane), f"mcm-{mark}")


def test_components_of_control_plane_have_no_mcm_mark() -> None:
    names = ["mcm", "mcmabcdef", "mcmabcdef-a", "mcm-abcdef-a"]
    assert [mark_of(name_of(name)) for name_of in (apiserver_name, etcd_name) for name in names] == [None] * 8


def test_registrations_of_a_control_plane_have_separate_mcms() -> None:
    names = {mcm_name("acme", uid=f"uid-{number}") for number in range(1000)}
    assert len(names) == 1000


def test_unknown_component_name_raises_runtime_failure() -> None:
    with pytest.raises(RuntimeFailure, match="Component web is none of a control plane"):
        place("web")
