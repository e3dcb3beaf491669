"""Paths of objects, and names that would change them."""

from __future__ import annotations

import pytest

from kplane.provider import ProviderError
from kplane.provider.client.resources import CLUSTER_ROLES, DEPLOYMENTS, NAMESPACES, PODS


def test_path_has_group_version_namespace_and_escaped_name():
    assert NAMESPACES.path() == "/api/v1/namespaces"
    assert NAMESPACES.path("a") == "/api/v1/namespaces/a"
    assert PODS.path(namespace="ns") == "/api/v1/namespaces/ns/pods"
    assert PODS.path() == "/api/v1/pods"
    assert PODS.path("a", namespace="ns", subresource="status") == "/api/v1/namespaces/ns/pods/a/status"
    assert CLUSTER_ROLES.path("system:node_a~") == "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode_a~"
    assert DEPLOYMENTS.path("a b", namespace="ns") == "/apis/apps/v1/namespaces/ns/deployments/a%20b"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a%2fb"])
def test_path_refuses_names_that_change_it(name):
    with pytest.raises(ProviderError):
        PODS.path(name, namespace="ns")
    with pytest.raises(ProviderError):
        PODS.path("a", namespace=name)


def test_path_refuses_a_namespace_contrary_to_the_scope():
    with pytest.raises(ProviderError, match="cluster-scoped"):
        NAMESPACES.path("a", namespace="ns")
    with pytest.raises(ProviderError, match="a namespace is needed"):
        PODS.path("a")
