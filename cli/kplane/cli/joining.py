"""Lets a machine join a control plane as a node: a bootstrap token, and the commands that use it."""

from __future__ import annotations

import base64
import shlex
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from kplane.cli.errors import Refused
from kplane.controlplane_operator.addons.kubeadm_join import new_token, token_secret
from kplane.provider import Client, NotFound
from kplane.provider.client.resources import CONFIG_MAPS, SECRETS

__all__ = ["join_commands"]

_FILE: Final = "discovery.conf"
_DESCRIPTION: Final = "Made by kplane join-token."


async def join_commands(tenant: Client, *, name: str, lifetime: timedelta) -> str:
    """Make a bootstrap token in a control plane, and return the commands to run on the machine that joins.

    Raises Refused if the control plane has not what kubeadm reads before it joins.
    """
    try:
        info = await tenant.get(CONFIG_MAPS, "cluster-info", namespace="kube-public")
        discovery = info["data"]["kubeconfig"]
    except (NotFound, KeyError):
        raise Refused(
            f"{name} has nothing that kubeadm could join by: add kubeadm-join to spec.addons of its class, and wait for"
            " condition AddonsReady"
        ) from None
    token = replace(new_token(now=datetime.now(UTC)), expires_at=datetime.now(UTC) + lifetime)
    secret = token_secret(token)
    secret["data"]["description"] = base64.b64encode(_DESCRIPTION.encode()).decode()
    await tenant.create(SECRETS, secret)
    return (
        f"cat > {_FILE} <<'END'\n{discovery.rstrip()}\nEND\n"
        f"kubeadm join --discovery-file {_FILE} --tls-bootstrap-token {shlex.quote(f'{token.id}.{token.secret}')}\n"
    )
