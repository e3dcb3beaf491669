"""Add-ons that kplane provides itself."""

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
"""Maximum number of listed token Secrets. kplane keeps at most three; tenants may label other Secrets."""


@dataclass(frozen=True, slots=True)
class TenantFacts:
    """Values of a control plane that the built-in add-ons publish inside it."""

    external_url: str
    cluster: ClusterFacts


@dataclass(frozen=True, slots=True)
class Rendered:
    """Objects of a built-in add-on, and the time at which they must be rendered again."""

    bundle: Bundle
    until: dt.datetime | None = None


async def render_built_in(addon: str, client: Client, *, facts: TenantFacts) -> Rendered:
    """Render the objects of a built-in add-on for the control plane that `client` reaches.

    Raises BootstrapFailed if a required value is unknown, and the errors of `client`.
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
    existing = [token for token in map(read_token, listed.items) if token is not None]
    tokens = current_tokens(existing, now=dt.datetime.now(dt.UTC))
    # The expiry of a token also requires a new rendering, which drops its Secret and its signature.
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
