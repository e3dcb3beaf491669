"""Names of built-in kinds, and errors for unknown kinds."""

from __future__ import annotations

import pytest

from kplane.provider import ProviderError, resource_of
from kplane.provider.client import resources
from kplane.provider.client.kinds import BUILT_IN
from kplane.provider.client.resources import CONFIG_MAPS, DEPLOYMENTS, NAMESPACES, NETWORK_POLICIES


def test_resource_of_accepts_names_and_resources():
    assert [resource_of(kind) for kind in ("v1/ConfigMap", "apps/v1/Deployment", "v1/Namespace", NETWORK_POLICIES)] == [
        CONFIG_MAPS,
        DEPLOYMENTS,
        NAMESPACES,
        NETWORK_POLICIES,
    ]


def test_built_in_table_equals_constants():
    constants = [kind for kind in vars(resources).values() if isinstance(kind, resources.Resource)]
    assert len(constants) > 15
    assert all(BUILT_IN[f"{kind.api_version}/{kind.kind}"] == kind for kind in constants)


def test_unknown_kind_error_names_the_remedy():
    with pytest.raises(ProviderError, match=r"await client.resource\('example.com/v1/Widget'\)"):
        resource_of("example.com/v1/Widget")


@pytest.mark.parametrize("kind", ["ConfigMap", "", "v1/", "/ConfigMap", "a/b/c/d", "apps/v1/../x", "v1/Config Map"])
def test_invalid_kind_name_is_refused(kind):
    with pytest.raises(ProviderError, match="is written as"):
        resource_of(kind)
