"""A path leads to the same control plane in each way in which a program may parse the path."""

from __future__ import annotations

import posixpath
import re
from urllib.parse import unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kplane.gateway.envoy.routing import TENANT_PATH, tenant_of

from .path_model import BEGINNINGS, PIECES, routed

_rest = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
paths = st.builds(str.__add__, st.sampled_from(BEGINNINGS), _rest)


def _readings(path: str) -> list[str]:
    bare = path.partition("?")[0]
    decoded = unquote(bare)
    slashes = re.sub("/+", "/", decoded.replace("\\", "/"))
    return [bare, decoded, slashes, posixpath.normpath(slashes), posixpath.normpath(bare)]


@given(paths)
@example("/clusters/one/control-plane/../../two/control-plane/api")
@example("/clusters/one/control-plane/%2e%2e/%2E./two/control-plane/api")
@example("/clusters/one/control-plane/..\\..\\two\\control-plane")
@example("/clusters/one/control-plane//clusters/two/control-plane")
@example("/clusters/one/control-plane/..")
@example("/clusters/one/control-plane/..?x")
def test_routed_path_names_same_control_plane_in_all_readings(path: str) -> None:
    name = routed(path)
    if name is not None:
        assert {tenant_of(reading) for reading in _readings(path)} == {name}


@given(paths)
def test_tenant_of_agrees_with_tenant_path_and_routed(path: str) -> None:
    assert (tenant_of(path) is not None) == (re.fullmatch(TENANT_PATH, path) is not None)
    name = routed(path)
    if name is not None:
        assert tenant_of(path) == name


@pytest.mark.parametrize(
    "path",
    [
        "/clusters/one/control-plane",
        "/clusters/one/control-plane/",
        "/clusters/one/control-plane?timeout=1s",
        "/clusters/one/control-plane/api/v1/namespaces?fieldSelector=a%2Fb&x=/../y",
        "/clusters/one/control-plane/apis/apps/v1/namespaces/a.b/deployments/..x",
        "/clusters/one/control-plane/api/v1/namespaces/a/services/https:web:443/proxy//x/.well-known/y.",
    ],
)
def test_paths_of_kubernetes_clients_are_routed(path: str) -> None:
    assert routed(path) == "one"
