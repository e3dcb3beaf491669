"""Issuers of tokens for the users of a control plane, by OpenID Connect."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, StringConstraints

from kplane.api.extensions import ATOMIC_LIST, Extension, Rule, rules
from kplane.api.references import HttpsUrl, url_rules
from kplane.api.resource import ApiModel

__all__ = ["SERVICE_ACCOUNT_ISSUER", "OidcIssuer"]

SERVICE_ACCOUNT_ISSUER: Final = "https://kubernetes.default.svc.cluster.local"
"""Issuer of the ServiceAccount tokens of every control plane. The signing keys of control planes differ. Tokens of a
tenant stay valid when its data move.
"""

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
    """Return the annotations of a prefix. An empty prefix would let the issuer use the name of any user."""
    rule = Rule(rule="!self.startsWith('system:')", message=f"spec.apiServer.oidc[].{field} {_PREFIX_SENTENCE}")
    return (StringConstraints(min_length=1, max_length=256), AfterValidator(_harmless), Extension(rules(rule)))


_Claim = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class OidcIssuer(ApiModel):
    """An issuer of tokens. The fields have the meaning of the flags --oidc-* of kube-apiserver."""

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
    """Audiences: a token is accepted if its claim `aud` contains any of them."""
    certificate_authority: (
        Annotated[str, StringConstraints(max_length=65536, pattern="^-----BEGIN CERTIFICATE-----")] | None
    ) = None
    """The CA of the issuer's serving certificate, in PEM; absent for the CAs of the machine on which the API server
    runs.
    """
    username_claim: _Claim = "sub"
    """The claim with the name of the user."""
    username_prefix: Annotated[str, *_prefix("usernamePrefix")] = "oidc:"
    """The prefix of user names. It separates users of the issuer from other users of the same name."""
    groups_claim: _Claim | None = None
    """The claim with the groups of the user; absent for no groups."""
    groups_prefix: Annotated[str, *_prefix("groupsPrefix")] = "oidc:"
    """The prefix of group names."""
    required_claims: Annotated[dict[str, str], Field(max_length=16)] = Field(default_factory=dict)
    """Claims that a token must have, with their values."""
