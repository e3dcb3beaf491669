"""deletionPolicy Destroy deletes all data of the control plane, and no data of other tenants."""

from __future__ import annotations

import pytest

from e2e.kubectl import Object
from e2e.platform import Platform
from e2e.tenant import Tenant, widgets

_KEPT = ("namespaces", "configmaps", "secrets", "customresourcedefinitions", "clusterroles", "serviceaccounts")


def _objects(tenant: Tenant) -> dict[tuple[str, str, str], tuple[str, str]]:
    """Return identity and version of a tenant's objects. Any deletion, creation or write changes them."""

    def key(found: Object) -> tuple[str, str, str]:
        return found["kind"], found["metadata"].get("namespace", ""), found["metadata"]["name"]

    objects = tenant.kubectl.items(",".join(_KEPT), "--all-namespaces")
    return {key(obj): (obj["metadata"]["uid"], obj["metadata"]["resourceVersion"]) for obj in objects}


@pytest.fixture
def neighbours(platform: Platform, unregistered: str) -> dict[str, Tenant]:
    """Three tenants whose names begin alike, each with objects."""
    stems = {"a": platform.name("a"), "a-b": platform.name("a-b"), "aa": platform.name("aa")}
    for name in stems.values():
        platform.create("ControlPlane", name, classRef={"name": unregistered})
    tenants = {}
    for stem, name in stems.items():
        platform.becomes_ready("ControlPlane", name)
        tenants[stem] = tenant = platform.tenant(name)
        tenant.keep("owner", name)
        tenant.kubectl.apply(widgets("example.com"))
        # The API server itself writes the status of the CRD, and must have done so before the comparison starts.
        tenant.kubectl("wait", "--for=condition=Established", "crd/widgets.example.com", "--timeout=120s")
    return tenants


@pytest.mark.smoke("its data below its own prefix of a shared etcd")
def test_deletion_leaves_neighbours_with_similar_names_unchanged(
    platform: Platform, neighbours: dict[str, Tenant], unregistered: str
) -> None:
    """The neighbours keep their objects in the same version. A new control plane of the same name is empty."""
    destroyed = neighbours.pop("a")
    before = {stem: _objects(tenant) for stem, tenant in neighbours.items()}
    platform.delete("ControlPlane", destroyed.name)
    assert platform.kubectl.find("namespace", f"kplane-cp-{destroyed.name}") is None
    assert platform.find("ControlPlaneEndpoint", destroyed.name) is None
    for stem, tenant in neighbours.items():
        assert _objects(tenant) == before[stem]

    platform.create("ControlPlane", destroyed.name, classRef={"name": unregistered})
    platform.becomes_ready("ControlPlane", destroyed.name)
    successor = platform.tenant(destroyed.name)
    assert successor.kept("owner") is None
    assert "widgets.example.com" not in successor.kubectl.names("customresourcedefinitions")
    successor.keep("owner", "the next one")
    assert neighbours["aa"].kept("owner") == neighbours["aa"].name
    # The new control plane refuses the former credentials, even if it has the same address.
    destroyed.kubectl.refuses("get", "namespaces")
