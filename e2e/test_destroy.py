"""deletionPolicy Destroy: a control plane goes with all of its data, and with nothing of anybody else's."""

from __future__ import annotations

import pytest

from e2e.kubectl import Object
from e2e.platform import Platform
from e2e.tenant import Tenant, widgets

_KEPT = ("namespaces", "configmaps", "secrets", "customresourcedefinitions", "clusterroles", "serviceaccounts")


def _objects(tenant: Tenant) -> dict[tuple[str, str, str], tuple[str, str]]:
    """Identity and version of what a tenant has: equal before and after if nothing was deleted, made or written."""

    def key(found: Object) -> tuple[str, str, str]:
        return found["kind"], found["metadata"].get("namespace", ""), found["metadata"]["name"]

    listed = tenant.kubectl.items(",".join(_KEPT), "--all-namespaces")
    return {key(each): (each["metadata"]["uid"], each["metadata"]["resourceVersion"]) for each in listed}


@pytest.fixture
def neighbours(platform: Platform, unregistered: str) -> dict[str, Tenant]:
    """Three tenants whose names are beginnings of each other, each with something in it."""
    stems = {"a": platform.name("a"), "a-b": platform.name("a-b"), "aa": platform.name("aa")}
    for name in stems.values():
        platform.create("ControlPlane", name, classRef={"name": unregistered})
    tenants = {}
    for stem, name in stems.items():
        platform.becomes_ready("ControlPlane", name)
        tenants[stem] = tenant = platform.tenant(name)
        tenant.keep("owner", name)
        tenant.kubectl.apply(widgets("example.com"))
        # Its status is written by the API server itself, which is no trace of anybody else.
        tenant.kubectl("wait", "--for=condition=Established", "crd/widgets.example.com", "--timeout=120s")
    return tenants


@pytest.mark.smoke("its data below its own prefix of a shared etcd")
def test_nothing_of_others_goes_with_it(platform: Platform, neighbours: dict[str, Tenant], unregistered: str) -> None:
    """The neighbours' objects are the same ones in the same version; the next control plane of the name is empty."""
    destroyed = neighbours.pop("a")
    before = {stem: _objects(tenant) for stem, tenant in neighbours.items()}
    platform.delete("ControlPlane", destroyed.name)
    assert platform.kubectl.find("namespace", f"kplane-cp-{destroyed.name}") is None
    assert platform.find("ControlPlaneEndpoint", destroyed.name) is None
    for stem, tenant in neighbours.items():
        assert _objects(tenant) == before[stem]

    platform.create("ControlPlane", destroyed.name, classRef={"name": unregistered})
    platform.becomes_ready("ControlPlane", destroyed.name)
    again = platform.tenant(destroyed.name)
    assert again.kept("owner") is None
    assert "widgets.example.com" not in again.kubectl.names("customresourcedefinitions")
    again.keep("owner", "the next one")
    assert neighbours["aa"].kept("owner") == neighbours["aa"].name
    # Who was let in to the old one is not let in to the new one, which may even have its address.
    destroyed.kubectl.refuses("get", "namespaces")
