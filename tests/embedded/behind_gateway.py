"""Access to control planes through the gateway of an embedded cluster, for tests."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from kplane.api.names import kubeconfig_secret_name, management_namespace
from kplane.binaries.envoy import find_envoy
from kplane.binaries.programs import Binaries
from kplane.controlplane_operator.credentials.store import AUTHORITIES_SECRET
from kplane.embedded.cluster import ManagementCluster
from kplane.pki.authorities import TenantAuthorities
from kplane.pki.primitives import issue_client
from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import SECRETS
from kplane.workloads import find_processes

__all__ = ["certified_config", "external_config", "gateway_cluster", "secret"]


@contextlib.asynccontextmanager
async def gateway_cluster(
    binaries: Binaries, namespaces_go_at_once: Callable[..., Any]
) -> AsyncIterator[ManagementCluster]:
    """Run an embedded cluster with operators and gateway. Its end leaves no processes."""
    directory = Path(tempfile.mkdtemp(prefix="kplane-embedded-"))
    async with (
        ManagementCluster(directory, binaries=binaries, fsync=False, gateway=find_envoy()) as cluster,
        namespaces_go_at_once(ClusterConfig.load(cluster.handle.admin_kubeconfig)),
    ):
        yield cluster
        # Shown if a test has failed.
        for log in ("runtime/kplane-gateway/log", "gateway/runtime/envoy/log"):
            sys.stdout.write((directory / log).read_text()[-8000:])
    assert find_processes(directory) == []
    shutil.rmtree(directory)


async def secret(client: Client, name: str, namespace: str) -> dict[str, bytes]:
    """Read a Secret of the management cluster."""
    secret = await client.get(SECRETS, name, namespace=namespace)
    return {key: base64.b64decode(value) for key, value in secret["data"].items()}


async def external_config(client: Client, name: str) -> ClusterConfig:
    """Return the settings of the published kubeconfig, which leads through the gateway to a control plane."""
    kubeconfigs = await secret(client, kubeconfig_secret_name(name), management_namespace(name))
    return ClusterConfig.from_kubeconfig(kubeconfigs["kubeconfig-external"])


async def certified_config(client: Client, name: str) -> tuple[ClusterConfig, TenantAuthorities]:
    """Return the settings of an administrator with a client certificate, and the CA keys of the control plane."""
    external = await external_config(client, name)
    authorities = TenantAuthorities.from_secret(await secret(client, AUTHORITIES_SECRET, management_namespace(name)))
    pair = issue_client(authorities.client, user="admin", groups=("system:masters",))
    user = dataclasses.replace(external, token=None, client_certificate=pair.certificate, client_key=pair.key)
    return user, authorities
