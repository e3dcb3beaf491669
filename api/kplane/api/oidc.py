"""Who may issue tokens for the users of a control plane, by OpenID Connect."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, StringConstraints

from kplane.api.extensions import ATOMIC_LIST, Extension, Rule, rules
from kplane.api.references import HttpsUrl, url_rules
from kplane.api.resource import ApiModel

__all__ = ["SERVICE_ACCOUNT_ISSUER", "OidcIssuer"]

SERVICE_ACCOUNT_ISSUER: Final = "https://kubernetes.default.svc.cluster.local"
"""Who issues the ServiceAccount tokens of every control plane: their keys differ, and a tenant that moves keeps its
tokens."""

_OWN_SENTENCE: Final = f"spec.apiServer.oidc[].issuerURL must not be {SERVICE_ACCOUNT_ISSUER}: it issues tokens already"
_PREFIX_SENTENCE: Final = (
    "must not begin with 'system:', because the issuer could then name users and groups of Kubernetes itself"
)


def _other(url: str) -> str:
    if url == SERVICE_ACCOUNT_ISSUER:
        raise ValueError(_OWN_SENTENCE)
    return url


def _harmless(prefix: str) -> str:
    if prefix.startswith("system:"):
        raise ValueError(f"the prefix {_PREFIX_SENTENCE}")
    return prefix


def _prefix(field: str) -> Any:
    """Return the annotations of a prefix: an empty one would let the issuer name whom it likes."""
    rule = Rule(rule="!self.startsWith('system:')", message=f"spec.apiServer.oidc[].{field} {_PREFIX_SENTENCE}")
    return (StringConstraints(min_length=1, max_length=256), AfterValidator(_harmless), Extension(rules(rule)))


_Claim = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class OidcIssuer(ApiModel):
    """One issuer. The words are those of kube-apiserver's flags --oidc-*."""

    issuer_url: Annotated[
        HttpsUrl,
        AfterValidator(_other),
        url_rules("spec.apiServer.oidc[].issuerURL"),
        Extension(rules(Rule(rule=f"self != '{SERVICE_ACCOUNT_ISSUER}'", message=_OWN_SENTENCE))),
    ] = Field(alias="issuerURL")
    """The URL of the issuer, as in the claim `iss` of its tokens."""
    client_ids: Annotated[
        list[Annotated[str, StringConstraints(min_length=1, max_length=256)]],
        Field(min_length=1, max_length=16),
        ATOMIC_LIST,
    ] = Field(alias="clientIDs")
    """Of these one has to be in the claim `aud`."""
    certificate_authority: (
        Annotated[str, StringConstraints(max_length=65536, pattern="^-----BEGIN CERTIFICATE-----")] | None
    ) = None
    """The CA of the issuer's own certificate, PEM; absent for those of the machine that the API server runs on."""
    username_claim: _Claim = "sub"
    """Which claim is the name of the user."""
    username_prefix: Annotated[str, *_prefix("usernamePrefix")] = "oidc:"
    """Before each name, so that no user of the issuer is taken for another one."""
    groups_claim: _Claim | None = None
    """Which claim has the user's groups; absent for no groups."""
    groups_prefix: Annotated[str, *_prefix("groupsPrefix")] = "oidc:"
    """Before each group."""
    required_claims: Annotated[dict[str, str], Field(max_length=16)] = Field(default_factory=dict)
    """Claims that a token has to have, with their values."""
