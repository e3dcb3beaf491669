"""Where a control plane's components are on a cluster."""

from __future__ import annotations

import pytest

from api.names import management_namespace
from controlplane_operator.components import apiserver_name, etcd_name, place
from workloads import RuntimeFailure
from workloads.pods import Placement


@pytest.mark.parametrize("name", ["acme", "etcd", "apiserver", "a.b", "x" * 253, "kplane-cp-x"])
def test_components_are_in_the_namespace_of_their_control_plane(name: str) -> None:
    namespace = management_namespace(name)
    assert place(apiserver_name(name)) == Placement(namespace, "kube-apiserver")
    assert place(etcd_name(name)) == Placement(namespace, "etcd")


def test_name_that_is_none_of_ours_is_refused() -> None:
    with pytest.raises(RuntimeFailure, match="Component web is none of a control plane"):
        place("web")
