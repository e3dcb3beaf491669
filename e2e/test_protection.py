"""`kubectl delete namespace` of a control plane's namespace is refused, and says what to do."""

from __future__ import annotations

from e2e.platform import Platform
from e2e.tenant import Tenant


def test_nobody_deletes_the_namespace_of_a_control_plane(tenants: tuple[Tenant, Tenant], platform: Platform) -> None:
    """An administrator with all rights is refused the deletion of namespace and keys, and the tenant serves on."""
    acme = tenants[0]
    namespace = f"kplane-cp-{acme.name}"
    said = platform.kubectl.refuses("delete", "namespace", namespace)
    assert f"run: kubectl delete controlplane {acme.name}" in said
    said = platform.kubectl.refuses("delete", "secret", "control-plane-authorities", "-n", namespace)
    assert "only the operator of kplane deletes it" in said
    platform.kubectl.refuses("label", "namespace", namespace, "controlplane.kplane.dev/name-")

    found = platform.kubectl.get("namespace", namespace)
    assert found["status"]["phase"] == "Active"
    assert platform.get("ControlPlane", acme.name)["status"]["namespaceUID"] == found["metadata"]["uid"]
    assert "default" in acme.kubectl.names("namespaces")
