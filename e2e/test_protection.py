"""Deletion of a control plane's namespace is refused with a remedy."""

from __future__ import annotations

from e2e.platform import Platform
from e2e.tenant import Tenant


def test_deletion_of_control_plane_namespace_is_refused(tenants: tuple[Tenant, Tenant], platform: Platform) -> None:
    """Even an administrator with all rights cannot delete namespace and keys. The control plane continues to serve."""
    acme = tenants[0]
    namespace = f"kplane-cp-{acme.name}"
    error = platform.kubectl.refuses("delete", "namespace", namespace)
    assert f"run: kubectl delete controlplane {acme.name}" in error
    error = platform.kubectl.refuses("delete", "secret", "control-plane-authorities", "-n", namespace)
    assert "only the operator of kplane deletes it" in error
    platform.kubectl.refuses("label", "namespace", namespace, "controlplane.kplane.dev/name-")

    namespace_object = platform.kubectl.get("namespace", namespace)
    assert namespace_object["status"]["phase"] == "Active"
    assert platform.get("ControlPlane", acme.name)["status"]["namespaceUID"] == namespace_object["metadata"]["uid"]
    assert "default" in acme.kubectl.names("namespaces")
