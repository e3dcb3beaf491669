"""URLs of control planes: taken over, completed, or refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kplane.api import ControlPlane, ControlPlaneEndpoint
from kplane.controlplane_operator.endpoints.addresses import addresses_of, tenant_url
from kplane.controlplane_operator.status.errors import ConditionError

_BASE = "https://api.example:6443"
_PATHS = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)


def control_plane(mode: str = "Virtual", **spec: Any) -> ControlPlane:
    return ControlPlane.model_validate({"metadata": {"name": "acme", "uid": "u1"}, "spec": {"mode": mode, **spec}})


def endpoint(spec: dict[str, Any], *, status: dict[str, Any] | None = None, **metadata: Any) -> ControlPlaneEndpoint:
    return ControlPlaneEndpoint.model_validate(
        {"metadata": {"name": "e", "generation": 2, **metadata}, "spec": spec, "status": status or {}}
    )


def test_tenant_url_appends_path_to_bare_url() -> None:
    assert tenant_url(f"{_BASE}/", cluster_path="acme") == f"{_BASE}/clusters/acme/control-plane"


def test_tenant_url_keeps_url_with_own_path() -> None:
    url = f"{_BASE}/base/clusters/acme/control-plane"
    assert tenant_url(url, cluster_path="acme") == url


@given(own=_PATHS, other=_PATHS)
def test_tenant_url_refuses_path_of_another_tenant(own: str, other: str) -> None:
    url = f"{_BASE}/clusters/{other}/control-plane"
    if own == other:
        assert tenant_url(url, cluster_path=own) == url
    else:
        with pytest.raises(ConditionError, match="address of clusterPath"):
            tenant_url(url, cluster_path=own)


@pytest.mark.parametrize(
    "path",
    [
        "/clusters/%62ob/control-plane",
        "/clusters/acme/control-plane/clusters/bob/control-plane",
        "/clusters/acme/control-plane/../../bob/control-plane",
        "/clusters//acme/control-plane",
        "/clusters/bob%2Fcontrol-plane",
        "/clusters/./bob/control-plane",
    ],
)
def test_tenant_url_refuses_disguised_paths(path: str) -> None:
    with pytest.raises(ConditionError) as refused:
        tenant_url(f"{_BASE}{path}", cluster_path="acme")
    assert refused.value.reason == "EndpointInvalid"


def test_addresses_of_external_and_join_fall_back() -> None:
    addresses = addresses_of(endpoint({"endpoint": _BASE}), control_plane=control_plane("Dedicated"))
    assert (addresses.internal, addresses.external, addresses.join) == (_BASE, _BASE, _BASE)
    addresses = addresses_of(
        endpoint({"endpoint": _BASE, "externalEndpoint": "https://out.example"}), control_plane=control_plane()
    )
    assert addresses.internal == f"{_BASE}/clusters/acme/control-plane"
    assert addresses.external == addresses.join == "https://out.example/clusters/acme/control-plane"


def test_addresses_of_prefers_observed_url_of_current_generation() -> None:
    spec, observed = {"endpoint": "https://new.example"}, "https://observed.example"
    current = endpoint(spec, status={"endpoint": observed, "observedGeneration": 2})
    stale = endpoint(spec, status={"endpoint": observed, "observedGeneration": 1})
    assert addresses_of(current, control_plane=control_plane("Dedicated")).internal == observed
    assert addresses_of(stale, control_plane=control_plane("Dedicated")).internal == "https://new.example"


def test_addresses_of_refuses_endpoint_of_another_control_plane() -> None:
    owner = {"apiVersion": "controlplane.kplane.dev/v1alpha1", "kind": "ControlPlane", "name": "bob", "uid": "u2"}
    with pytest.raises(ConditionError, match="belongs to control plane bob") as refused:
        addresses_of(endpoint({"endpoint": _BASE}, ownerReferences=[owner]), control_plane=control_plane())
    assert refused.value.reason == "EndpointInvalid"


def test_addresses_of_keeps_url_of_own_managed_endpoint() -> None:
    owner = {"apiVersion": "controlplane.kplane.dev/v1alpha1", "kind": "ControlPlane", "name": "acme", "uid": "u1"}
    addresses = addresses_of(endpoint({"endpoint": _BASE}, ownerReferences=[owner]), control_plane=control_plane())
    assert addresses.internal == _BASE


def test_forged_owner_reference_opens_no_path_of_another_tenant() -> None:
    owner = {"apiVersion": "controlplane.kplane.dev/v1alpha1", "kind": "ControlPlane", "name": "acme", "uid": "u1"}
    adopted = control_plane(endpointRef={"name": "e"})
    victim = endpoint({"endpoint": f"{_BASE}/clusters/victim/control-plane"}, ownerReferences=[owner])
    with pytest.raises(ConditionError, match="address of clusterPath 'victim'"):
        addresses_of(victim, control_plane=adopted)


@pytest.mark.parametrize("field", ["endpoint", "externalEndpoint", "joinEndpoint"])
def test_mode_dedicated_opens_no_path_of_another_tenant(field: str) -> None:
    adopted = control_plane("Dedicated", endpointRef={"name": "e"})
    for name in ("victim", "%61cme", "root"):
        door = endpoint({"endpoint": _BASE}, status={field: f"{_BASE}/clusters/{name}/control-plane"})
        with pytest.raises(ConditionError) as refused:
            addresses_of(door, control_plane=adopted)
        assert refused.value.reason == "EndpointInvalid"
    own_url = f"{_BASE}/clusters/acme/control-plane"
    assert addresses_of(endpoint({"endpoint": own_url}), control_plane=adopted).internal == own_url


def test_reserved_path_is_refused_for_control_plane_of_its_name() -> None:
    named = ControlPlane.model_validate({"metadata": {"name": "root", "uid": "u1"}, "spec": {"mode": "Dedicated"}})
    with pytest.raises(ConditionError, match="address of clusterPath 'root'"):
        addresses_of(endpoint({"endpoint": f"{_BASE}/clusters/root/control-plane"}), control_plane=named)


@pytest.mark.parametrize("mode", ["Virtual", "Dedicated"])
def test_addresses_of_refuses_invalid_url(mode: str) -> None:
    with pytest.raises(ConditionError, match="is no URL") as refused:
        addresses_of(endpoint({"endpoint": "https://[1::2::3]:6443"}), control_plane=control_plane(mode))
    assert refused.value.reason == "EndpointInvalid"


def test_addresses_of_endpoint_without_url_is_pending() -> None:
    with pytest.raises(ConditionError) as refused:
        addresses_of(endpoint({}), control_plane=control_plane())
    assert refused.value.reason == "EndpointPending"


@pytest.mark.parametrize(
    "url",
    ["http://plain.example", "https://user:secret@api.example", "https://api.example/?to=x", "https://a b", "api"],
)
@pytest.mark.parametrize("field", ["endpoint", "externalEndpoint", "joinEndpoint"])
def test_addresses_of_refuses_invalid_observed_url(field: str, url: str) -> None:
    observed = endpoint({"endpoint": _BASE}, status={field: url, "observedGeneration": 2})
    with pytest.raises(ConditionError) as refused:
        addresses_of(observed, control_plane=control_plane())
    assert refused.value.reason == "EndpointInvalid"
