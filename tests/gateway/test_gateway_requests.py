"""Predicates for requests that change data (`CHANGES`) and that add data (`GROWS`), evaluated as Envoy does."""

from __future__ import annotations

import re

import pytest

from kplane.gateway.envoy.requests import CHANGES, DOUBLE_SLASH, GROWS, changes

from .route_table import holds

MERGE, APPLY = "application/merge-patch+json", "application/apply-patch+yaml"


def asked(method: str, path: str, *, length: int | None = 200, content: str = MERGE) -> dict[str, str]:
    headers = {":method": method, ":path": f"/clusters/one/control-plane{path}", "content-type": content}
    return headers if length is None else headers | {"content-length": str(length)}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/pods?watch=true"),
        ("HEAD", "/readyz"),
        ("OPTIONS", "/api"),
        ("POST", "/api/v1/namespaces/a/pods/b/exec?command=sh"),
        ("POST", "/api/v1/namespaces/a/pods/b/attach"),
        ("POST", "/api/v1/namespaces/a/pods/b/portforward"),
        ("PUT", "/api/v1/namespaces/a/services/https:web:443/proxy/x//y?z"),
        ("DELETE", "/api/v1/namespaces/a/pods/b/proxy/x"),
        ("POST", "/api/v1/nodes/a/proxy/run/x"),
        ("POST", "/api/v1/namespaces/a/serviceaccounts/b/token"),
        ("POST", "/apis/authentication.k8s.io/v1/tokenreviews?fieldManager=x"),
        ("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews"),
        ("POST", "/apis/authorization.k8s.io/v1/namespaces/a/localsubjectaccessreviews"),
    ],
)
def test_request_that_stores_no_data_matches_no_predicate(method: str, path: str) -> None:
    assert not holds(CHANGES, asked(method, path))
    assert not holds(GROWS, asked(method, path))
    assert not changes(method, f"/clusters/one/control-plane{path}")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", "/api/v1/namespaces/a/pods/b"),
        ("DELETE", "/api/v1/namespaces/a/pods?labelSelector=x"),
        ("POST", "/api/v1/namespaces/a/pods/b/eviction"),
        ("POST", "/api/v1/namespaces/a/pods/b/binding"),
        ("POST", "/apis/certificates.k8s.io/v1/certificatesigningrequests"),
        ("PUT", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/b"),
        ("PATCH", "/apis/coordination.k8s.io/v1/namespaces/a/leases/b?fieldManager=x"),
        ("PATCH", "/api/v1/nodes/a/status"),
        ("PUT", "/apis/example.org/v1/namespaces/a/widgets/b/status"),
        ("PUT", "/api/v1/namespaces/a/finalize"),
        ("PATCH", "/apis/apps/v1/namespaces/a/deployments/b/scale"),
        ("PATCH", "/api/v1/namespaces/a/configmaps/b"),
    ],
)
def test_request_without_growth_matches_changes_only(method: str, path: str) -> None:
    assert holds(CHANGES, asked(method, path))
    assert not holds(GROWS, asked(method, path))
    assert changes(method, f"/clusters/one/control-plane{path}")


@pytest.mark.parametrize(
    "headers",
    [
        asked("POST", "/api/v1/namespaces"),
        asked("POST", "/api/v1/namespaces/a/pods"),
        asked("POST", "/api/v1/namespaces/a/events"),
        asked("POST", "/apis/coordination.k8s.io/v1/namespaces/a/leases"),
        asked("POST", "/apis/example.org/v1/namespaces/a/token"),
        asked("POST", "/apis/example.org/v1/namespaces/a/tokenreviews"),
        asked("POST", "/apis/example.org/v1/namespaces/a/pods/b/exec"),
        asked("POST", "/api/v1/namespaces/a/%70ods/b/eviction"),
        asked("POST", "/api/v1/namespaces/a/configmaps?x=/api/v1/namespaces/a/pods/b/eviction"),
        asked("PUT", "/api/v1/namespaces/a/configmaps/b"),
        asked("PUT", "/api/v1/namespaces/a/configmaps/status"),
        asked("PUT", "/apis/example.org/v1/widgets/status"),
        asked("PATCH", "/api/v1/namespaces/a/configmaps/b", content=APPLY),
        asked("PATCH", "/api/v1/namespaces/a/configmaps/b", length=1000),
        asked("PATCH", "/api/v1/namespaces/a/configmaps/b", length=None),
        asked("POST", "/apis/certificates.k8s.io/v1/certificatesigningrequests", length=10_000),
        asked("POST", "/apis/certificates.k8s.io/v1/certificatesigningrequests", length=None),
        asked("POST", "/api/v1/namespaces/a/pods/b/binding", length=10_000),
        asked("PUT", "/apis/coordination.k8s.io/v1/namespaces/a/leases/b", length=10_000),
        asked("PUT", "/apis/example.org/v1/namespaces/a/widgets/b/status", length=100_000),
        asked("PUT", "/apis/coordination.k8s.io/v1/namespaces/a/leases/b", length=None),
        asked("post", "/api/v1/namespaces/a/pods"),
        asked("X", "/api/v1/namespaces/a/pods"),
    ],
)
def test_other_write_matches_changes_and_grows(headers: dict[str, str]) -> None:
    assert holds(CHANGES, headers)
    assert holds(GROWS, headers)
    assert changes(headers[":method"], headers[":path"])


@pytest.mark.parametrize(
    ("path", "doubled"),
    [
        ("/clusters/one/control-plane//api", True),
        ("//clusters/one/control-plane/api", True),
        ("///clusters/one/control-plane/api", True),
        ("/clusters//one/control-plane/api", True),
        ("/clusters/one//control-plane/api", True),
        ("/clusters/one/control-plane/api//v1", False),
        ("/clusters/one/control-plane/api?a=//", False),
        ("/clusters/one?a=//clusters/", False),
        ("//api/v1/namespaces", False),
        ("/api//clusters/one", False),
    ],
)
def test_double_slash_matches_only_in_prefix_of_control_plane(path: str, *, doubled: bool) -> None:
    assert (re.fullmatch(DOUBLE_SLASH, path) is not None) is doubled
