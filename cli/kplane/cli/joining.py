"""Bootstrap tokens and commands for machines that join a control plane as nodes."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import yaml

from kplane.api import ControlPlane, EndpointType
from kplane.cli.errors import Refused
from kplane.pki.bootstrap_tokens import new_token, token_secret
from kplane.pki.kubeconfig import discovery_kubeconfig
from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import CONFIG_MAPS, SECRETS

__all__ = ["join_commands"]

_FILE: Final = "discovery.conf"
_DESCRIPTION: Final = "Made by kplane join-token."


async def join_commands(
    tenant: Client, *, control_plane: ControlPlane, kubeconfigs: Sequence[str], lifetime: timedelta
) -> str:
    """Create a bootstrap token in a control plane, and return the commands to run on the machine that joins.

    The address comes from the status, and the CAs from the published `kubeconfigs`. ConfigMap `cluster-info` of the
    control plane has the same values, but its tenant can edit it, and root runs these commands. Raises Refused if the
    control plane lacks the objects that kubeadm reads before it joins.
    """
    name = control_plane.name
    if not await tenant.exists(CONFIG_MAPS, "cluster-info", namespace="kube-public"):
        raise Refused(
            f"{name} has nothing that kubeadm could join by: add kubeadm-join to spec.addons of its class, and wait for"
            " condition AddonsReady"
        )
    discovery = yaml.safe_dump(
        _discovery(control_plane, [ClusterConfig.from_kubeconfig(kubeconfig) for kubeconfig in kubeconfigs])
    )
    token = replace(new_token(now=datetime.now(UTC)), expires_at=datetime.now(UTC) + lifetime)
    secret = token_secret(token)
    secret["data"]["description"] = base64.b64encode(_DESCRIPTION.encode()).decode()
    await tenant.create(SECRETS, secret)
    # Base64 has no characters that a shell interprets.
    return (
        f"echo {base64.b64encode(discovery.encode()).decode()} | base64 -d > {_FILE}\n"
        f"kubeadm join --discovery-file {_FILE} --tls-bootstrap-token {shlex.quote(f'{token.id}.{token.secret}')}\n"
    )


def _discovery(control_plane: ControlPlane, published: Sequence[ClusterConfig]) -> dict[str, Any]:
    """Return the discovery file for kubeadm: a kubeconfig without credentials."""
    urls = {endpoint.type: endpoint.url for endpoint in control_plane.status.endpoints}
    server = urls.get(EndpointType.JOIN) or urls.get(EndpointType.EXTERNAL) or published[0].server
    authorities = dict.fromkeys(config.ca_data for config in published if config.ca_data is not None)
    if not authorities:
        raise Refused(f"the kubeconfig of {control_plane.name} names no CA, and a machine joins by it")
    ca = b"".join(config if config.endswith(b"\n") else config + b"\n" for config in authorities)
    return discovery_kubeconfig(server, ca=ca)
