"""Installs the CRDs, the namespace and the RBAC of kplane in a management cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from kplane.embedded.errors import EmbeddedError, NotReadyInTime
from kplane.provider import Client, Resource
from kplane.provider.client import resources
from kplane.provider.client.resources import CUSTOM_RESOURCE_DEFINITIONS

__all__ = ["crd_manifests", "gateway_manifests", "install", "rbac_manifests"]

_DATA: Final = Path(__file__).parent / "data"
"""Links to `crds/` and `deploy/rbac/` of the repository. The wheel holds copies."""

_RESOURCES: Final[Mapping[str, Resource]] = {
    resource.kind: resource
    for resource in (
        resources.NAMESPACES,
        resources.SERVICE_ACCOUNTS,
        resources.ROLES,
        resources.ROLE_BINDINGS,
        resources.CLUSTER_ROLES,
        resources.CLUSTER_ROLE_BINDINGS,
        resources.LEASES,
        resources.VALIDATING_ADMISSION_POLICIES,
        resources.VALIDATING_ADMISSION_POLICY_BINDINGS,
    )
}
_NAMESPACE: Final = {"metadata": {"name": "kplane-system"}}
_POLL_SECONDS: Final = 0.05


def crd_manifests() -> list[dict[str, Any]]:
    """Return the CustomResourceDefinition manifests, ordered by file name."""
    return [yaml.safe_load(file.read_text(encoding="utf-8")) for file in sorted((_DATA / "crds").glob("*.yaml"))]


def rbac_manifests(*, pods: bool = False) -> list[dict[str, Any]]:
    """Return the namespace, the identities of both operators with their rights, and the policy for control planes.

    The manifests are in the order of creation. With `pods`, the operator gets the rights to run components as pods,
    otherwise as processes.
    """
    runtime = "operator-pods.yaml" if pods else "operator-processes.yaml"
    names = ("namespace.yaml", "operator.yaml", runtime, "mcm.yaml", "admissionpolicy.yaml")
    return [document for name in names for document in yaml.safe_load_all((_DATA / "rbac" / name).read_text())]


def gateway_manifests() -> list[dict[str, Any]]:
    """Return the gateway's identity with its rights, and the namespace of its Secrets, which the operator may write."""
    return list(yaml.safe_load_all((_DATA / "rbac" / "gateway.yaml").read_text()))


async def install(client: Client, *, timeout_seconds: float) -> None:
    """Apply all manifests, and wait until the CRDs are served. Raises `NotReadyInTime` and the client's errors."""
    crds = crd_manifests()
    async with asyncio.TaskGroup() as tasks:
        for crd in crds:
            tasks.create_task(
                client.apply(CUSTOM_RESOURCE_DEFINITIONS, crd, force=True), name=f"apply {crd['metadata']['name']}"
            )
        tasks.create_task(_install_rbac(client), name="apply RBAC")
    names = [crd["metadata"]["name"] for crd in crds]
    try:
        async with asyncio.timeout(timeout_seconds):
            for name in names:
                await _wait_established(client, name)
    except TimeoutError:
        raise NotReadyInTime(
            f"failed to install CRDs {', '.join(names)}: they were not served after {timeout_seconds:.0f} s"
        ) from None


async def _install_rbac(client: Client) -> None:
    await client.apply(resources.NAMESPACES, _NAMESPACE, force=True)
    for manifest in (*rbac_manifests(), *gateway_manifests()):
        resource = _RESOURCES.get(manifest["kind"])
        if resource is None:
            raise EmbeddedError(
                f"failed to install deploy/rbac: unknown kind {manifest['kind']}; add it to manifests.py"
            )
        await client.apply(resource, manifest, force=True)


async def _wait_established(client: Client, name: str) -> None:
    while True:
        crd = await client.get(CUSTOM_RESOURCE_DEFINITIONS, name)
        if _is_established(crd):
            return
        await asyncio.sleep(_POLL_SECONDS)


def _is_established(crd: Mapping[str, Any]) -> bool:
    # `conditions` is null until the API server has processed the CRD: the field has no omitempty (apiextensions/v1).
    conditions = crd.get("status", {}).get("conditions") or ()
    return any(condition["type"] == "Established" and condition["status"] == "True" for condition in conditions)
