"""Describes kwok, which plays nodes in a control plane, and maintains the Node objects of these nodes."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Final

from kplane.api.names import FAKE_NODE_LABEL
from kplane.binaries.upstreams import this_platform
from kplane.mcm.describe.controllers import ENVIRONMENT, connection
from kplane.provider import Client, Cluster, ClusterConfig, NotFound
from kplane.provider.client.resources import LEASES, NODES, PODS
from kplane.workloads import FILES, Address, Component, File, Lifetime, Port, Probe

__all__ = ["KWOK_PORTS", "have_nodes", "kwok_component", "release_leases"]

_HTTP: Final = "http"
KWOK_PORTS: Final = (_HTTP,)
_STAGES: Final = Path(__file__).parent / "data" / "fake-nodes.yaml"
_LEASE_NAMESPACE: Final = "kube-node-lease"
_LEASE_SECONDS: Final = 40
"""Duration of the Leases of nodes, as kubelets use."""
_PLAYED: Final = ("kwok.x-k8s.io/node", "fake")
"""Annotation of nodes that kwok plays. kwok ignores nodes without it, such as machines that joined."""


def kwok_component(name: str, *, program: Path, address: Address, config: ClusterConfig) -> Component:
    """Describe the kwok of a control plane. A renewed token causes no restart.

    Raises `mcm.errors.ConfigurationError` if the configuration has no credentials.
    """
    port = address.ports[_HTTP]
    annotation, value = _PLAYED
    return Component(
        name=name,
        program=str(program),
        args=(
            f"--kubeconfig={FILES}/kubeconfig",
            f"--config={FILES}/{_STAGES.name}",
            f"--server-address={address.listen}:{port}",
            f"--manage-nodes-with-annotation-selector={annotation}={value}",
            f"--node-lease-duration-seconds={_LEASE_SECONDS}",
        ),
        files={**connection(Cluster(name, config=config)), _STAGES.name: File(_STAGES.read_bytes())},
        # kwok reads ~/.kwok/kwok.yaml too, which a user may have.
        env={**ENVIRONMENT, "HOME": FILES},
        ports=(Port(number=port, name=_HTTP),),
        readiness=Probe(port=_HTTP, path="/healthz"),
        lifetime=Lifetime.BOUND,
        only_logs=True,
        reads=(),
        grace_seconds=5.0,
    )


async def have_nodes(tenant: Client, count: int) -> None:
    """Create missing fake nodes and delete surplus fake nodes, until `count` are left. Other nodes stay as they are."""
    listed = await tenant.list(NODES, label_selector=FAKE_NODE_LABEL, metadata_only=True)
    present = {item["metadata"]["name"] for item in listed.items}
    desired = _names(count)
    for name in desired:
        if name not in present:
            await tenant.apply(NODES, _node(name), force=True)
    superfluous = sorted(present.difference(desired))
    for name in superfluous:
        with contextlib.suppress(NotFound):
            await tenant.delete(NODES, name)
    for name in superfluous:
        await _remove_pods(tenant, node=name)


async def release_leases(tenant: Client, count: int) -> None:
    """Delete the Leases of fake nodes. Call it only while no kwok runs.

    Otherwise the next kwok would wait for the end of the existing Leases.
    """
    listed = await tenant.list(LEASES, namespace=_LEASE_NAMESPACE, metadata_only=True)
    for name in sorted({item["metadata"]["name"] for item in listed.items}.intersection(_names(count))):
        with contextlib.suppress(NotFound):
            await tenant.delete(LEASES, name, namespace=_LEASE_NAMESPACE)


async def _remove_pods(tenant: Client, *, node: str) -> None:
    """Delete the pods of a deleted node. kube-controller-manager does the same, a minute later."""
    pods = await tenant.list(PODS, field_selector=f"spec.nodeName={node}", metadata_only=True)
    for pod in pods.items:
        path = PODS.path(pod["metadata"]["name"], namespace=pod["metadata"]["namespace"])
        with contextlib.suppress(NotFound):
            await tenant.request("DELETE", path, params={"gracePeriodSeconds": 0})


def _names(count: int) -> list[str]:
    return [f"fake-node-{number}" for number in range(1, count + 1)]


def _node(name: str) -> dict[str, Any]:
    labels = {
        FAKE_NODE_LABEL: "true",
        "kubernetes.io/arch": this_platform().arch,
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "type": "kwok",
    }
    return {"metadata": {"name": name, "labels": labels, "annotations": dict([_PLAYED])}}
