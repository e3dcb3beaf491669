"""The add-ons that kplane brings itself."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any, Final

from kplane.api.names import ADDON_LABEL
from kplane.controlplane_operator.addons.kubeadm_join import ClusterFacts, join_objects
from kplane.controlplane_operator.addons.manifest import Bundle
from kplane.controlplane_operator.errors import BootstrapFailed
from kplane.controlplane_operator.tenant.bootstrap import JOIN_ADDON, TENANT_NAMESPACE
from kplane.pki.bootstrap_tokens import current_tokens, read_token
from kplane.provider import Client
from kplane.provider.client.resources import SECRETS
from kplane.provider.errors import AnswerTooLarge

__all__ = ["BUILT_IN", "STARTER_ADDON", "Rendered", "TenantFacts", "render_built_in"]

STARTER_ADDON: Final = "starter"
BUILT_IN: Final = frozenset({STARTER_ADDON, JOIN_ADDON})

_RBAC: Final = "rbac.authorization.k8s.io"
_INFO: Final = "control-plane-info"
_MAX_TOKENS: Final = 50
"""kplane keeps three at most; tenants may label others."""


@dataclass(frozen=True, slots=True)
class TenantFacts:
    """What the built-in add-ons say of a control plane, in it."""

    external_url: str
    cluster: ClusterFacts


@dataclass(frozen=True, slots=True)
class Rendered:
    """The objects of a built-in add-on, and until when they are good."""

    bundle: Bundle
    until: dt.datetime | None = None


async def render_built_in(addon: str, client: Client, *, facts: TenantFacts) -> Rendered:
    """Describe a built-in add-on as it is to be in the control plane that `client` reaches.

    Raises BootstrapFailed where something that it needs is not known, and what `client` raises.
    """
    if addon == STARTER_ADDON:
        return Rendered(Bundle.of(_starter(facts)))
    return await _kubeadm_join(client, facts=facts)


async def _kubeadm_join(client: Client, *, facts: TenantFacts) -> Rendered:
    labelled = f"{ADDON_LABEL}={JOIN_ADDON}"
    try:
        listed = await client.list(SECRETS, namespace="kube-system", label_selector=labelled, max_items=_MAX_TOKENS)
    except AnswerTooLarge as error:
        raise BootstrapFailed(
            f"too much has the label {labelled} in namespace kube-system; delete those Secrets: {error}"
        ) from error
    found = [token for token in map(read_token, listed.items) if token is not None]
    tokens = current_tokens(found, now=dt.datetime.now(dt.UTC))
    # Also when one of them ends, its Secret and its signature are to go.
    until = min(tokens[0].renew_at, *(token.expires_at for token in tokens))
    return Rendered(Bundle.of(join_objects(facts.cluster, tokens=tokens)), until)


def _starter(facts: TenantFacts) -> list[dict[str, Any]]:
    data = {"name": facts.cluster.name, "endpoint": facts.external_url, "joinEndpoint": facts.cluster.join_url}
    if facts.cluster.ca is not None:
        data["ca.crt"] = facts.cluster.ca.decode()
    metadata = {"name": _INFO, "namespace": TENANT_NAMESPACE}
    rule = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [_INFO], "verbs": ["get", "watch"]}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data},
        {"apiVersion": f"{_RBAC}/v1", "kind": "Role", "metadata": metadata, "rules": [rule]},
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": _INFO},
            "subjects": [{"apiGroup": _RBAC, "kind": "Group", "name": "system:authenticated"}],
        },
    ]
