"""Publication of a control plane at the gateway: its address there, and the Secret that the gateway reads."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime
from typing import Any, Final

from kplane.api import (
    ControlPlane,
    ControlPlaneClass,
    ControlPlaneMode,
    EndpointPolicy,
    EndpointStyle,
    EndpointType,
    OidcIssuer,
)
from kplane.api.control_plane import RESERVED_CLUSTER_PATHS, is_cluster_path
from kplane.api.names import (
    CA_KEY,
    GATEWAY_ACCOUNTS_KEY,
    GATEWAY_AUTHENTICATION_KEY,
    GATEWAY_BOOTSTRAP_TOKENS_KEY,
    GATEWAY_HOST_KEY,
    GATEWAY_LIMITS_KEY,
    GATEWAY_SECRET_KEYS,
    UID_ANNOTATION,
    WRITES_HELD_UNTIL_ANNOTATION,
    gateway_secret_name,
)
from kplane.api.reasons import Reason
from kplane.controlplane_operator.backends.base import Provision
from kplane.controlplane_operator.backends.class_settings import api_server_settings
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.credentials.secrets import delete_secret, write_secret
from kplane.controlplane_operator.endpoints.addresses import Addresses
from kplane.controlplane_operator.gateway import Gateway, asked_policy, endpoint_style, host_name
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.status.partial import as_recorded
from kplane.controlplane_operator.tenant.bootstrap import JOIN_ADDON
from kplane.controlplane_operator.watch.cache import Object
from kplane.pki.authorities import FRONT_PROXY_USER
from kplane.pki.entries import data_of, entries, find_pair, kept
from kplane.pki.primitives import issue_client

__all__ = [
    "at_gateway",
    "authentication_entry",
    "endpoint_policy",
    "limits_entry",
    "still_at_gateway",
    "write_gateway_secret",
]

_PAIR = "tls"
_ASLEEP: Final = frozenset({GATEWAY_BOOTSTRAP_TOKENS_KEY, GATEWAY_ACCOUNTS_KEY})
"""Keys of a gateway Secret while the control plane sleeps."""
_OPTIONAL: Final = _ASLEEP | {GATEWAY_LIMITS_KEY, GATEWAY_AUTHENTICATION_KEY}
"""Keys that a gateway Secret may lack."""


def endpoint_policy(
    context: OperatorContext, control_plane: ControlPlane, *, chosen: ControlPlaneClass | None
) -> EndpointPolicy:
    """Return which addresses are published, by the spec or else by the class.

    A control plane of mode Dedicated is published at the gateway only on request. Raises ConditionError: NoGateway or
    NoGatewayDomain if the operator lacks the requested gateway or domain, and InvalidClusterPath if the name cannot be
    a path of the gateway.
    """
    asked = asked_policy(control_plane, chosen=chosen)
    if asked is EndpointPolicy.OWN:
        return asked
    style = endpoint_style(control_plane, chosen=chosen)
    if context.gateway is None:
        if asked is None and style is EndpointStyle.PATH:
            return EndpointPolicy.OWN
        what = f"endpointPolicy {asked}" if asked is not None else f"endpointStyle {style}"
        raise ConditionError(
            Reason.NO_GATEWAY,
            f"{what} needs a gateway, and this operator has none; start the operator with"
            " --gateway-url, or set spec.endpointPolicy to Own",
        )
    if style is EndpointStyle.HOST_NAME and context.gateway.domain is None:
        raise ConditionError(
            Reason.NO_GATEWAY_DOMAIN,
            f"endpointStyle {style} needs a domain, and the gateway of this operator has none; start the operator with"
            " --gateway-domain, or set spec.endpointStyle to Path",
        )
    _check_path(control_plane.cluster_path)
    return asked or EndpointPolicy.GATEWAY


def at_gateway(
    context: OperatorContext, control_plane: ControlPlane, *, provision: Provision, chosen: ControlPlaneClass | None
) -> Provision:
    """Return the provision with the addresses that are published.

    Raises the errors of `endpoint_policy`, and ConditionError (ClusterPathInUse) if another control plane holds the
    path at the gateway.
    """
    policy = endpoint_policy(context, control_plane, chosen=chosen)
    gateway, own = context.gateway, provision.addresses
    if gateway is None or policy is EndpointPolicy.OWN:
        return provision
    _check_unclaimed(context, control_plane, gateway=gateway)
    host = host_name(gateway, control_plane, chosen=chosen)
    url = gateway.host_address(host) if host is not None else gateway.address(control_plane.cluster_path)
    join = own.join if policy is EndpointPolicy.BOTH else url
    return dataclasses.replace(provision, addresses=Addresses(internal=own.internal, external=url, join=join))


def still_at_gateway(
    context: OperatorContext, control_plane: ControlPlane, *, provision: Provision, failure: ConditionError
) -> Provision:
    """Return the provision with the published gateway address, if only the domain for a new address is missing.

    So a class that requests host names by mistake does not take the address away from clients.
    """
    published = {endpoint.type: endpoint.url for endpoint in control_plane.status.endpoints}
    external, gateway, own = published.get(EndpointType.EXTERNAL, ""), context.gateway, provision.addresses
    if failure.reason is not Reason.NO_GATEWAY_DOMAIN or gateway is None or not gateway.serves(external):
        return provision
    join = published.get(EndpointType.JOIN, own.join)
    join = join if gateway.serves(join) else own.join
    return dataclasses.replace(provision, addresses=Addresses(internal=own.internal, external=external, join=join))


def _check_path(path: str) -> None:
    if not is_cluster_path(path) or path in RESERVED_CLUSTER_PATHS:
        raise ConditionError(
            Reason.INVALID_CLUSTER_PATH,
            f"{path!r} cannot be a path of the gateway, which has at most 63 lower-case letters, digits and '-'; set"
            " spec.endpointPolicy to Own, or choose another name",
        )


def _check_unclaimed(context: OperatorContext, control_plane: ControlPlane, *, gateway: Gateway) -> None:
    """Raise ConditionError (ClusterPathInUse) if another control plane has precedence at the gateway.

    A published control plane precedes an unpublished one. Between equals, mode Virtual precedes mode Dedicated: the
    former owns the path by its clusterPath, the latter has the path only by its name.
    """
    path = control_plane.cluster_path

    def rank(one: ControlPlane) -> tuple[bool, bool]:
        return _is_published(one, path=path, gateway=gateway), one.home.mode is ControlPlaneMode.VIRTUAL

    for obj in context.stores.control_planes.by("path", path):
        other = as_recorded(obj)
        if other.metadata.uid == control_plane.metadata.uid or other.spec.endpoint_ref is not None:
            continue
        if other.home.mode is not control_plane.home.mode and rank(other) > rank(control_plane):
            raise ConditionError(
                Reason.CLUSTER_PATH_IN_USE,
                f"the path {path!r} of the gateway is that of control plane {other.name}; set spec.endpointPolicy to"
                " Own, or create a control plane with another name or clusterPath",
                waits_for_event=False,
            )


def _is_published(control_plane: ControlPlane, *, path: str, gateway: Gateway) -> bool:
    """Return whether the status names the address that the gateway has for a path."""
    urls = {gateway.address(path)}
    if gateway.domain is not None:
        urls.add(gateway.host_address(f"{path}.{gateway.domain}"))
    return any(endpoint.url in urls for endpoint in control_plane.status.endpoints)


async def write_gateway_secret(
    context: OperatorContext, control_plane: ControlPlane, *, provision: Provision, chosen: ControlPlaneClass | None
) -> None:
    """Write the gateway's Secret of a control plane that is published at the gateway; delete the Secret otherwise.

    The certificate in the Secret belongs to the gateway alone: API servers accept user names from its bearer, and the
    certificate has no other use. The annotation of a write hold is kept: a migration releases the hold when every
    replica routes to the new address. Raises ConditionError (SecretsNotReadable) while the operator may not read the
    gateway's namespace.
    """
    gateway, authorities = context.gateway, provision.authorities
    if gateway is None or authorities is None:
        return
    name, virtual = gateway_secret_name(control_plane.name), control_plane.home.mode is ControlPlaneMode.VIRTUAL
    host = host_name(gateway, control_plane, chosen=chosen)
    by_host = host is not None and provision.addresses.external == gateway.host_address(host)
    at_gateway_now = by_host or gateway.serves(provision.addresses.external)
    # A control plane that left the gateway may still have a Secret there, so its namespace is opened too.
    if virtual or at_gateway_now or _is_published(control_plane, path=control_plane.cluster_path, gateway=gateway):
        await context.secrets.open(gateway.namespace)
    existing = context.stores.secrets.get((gateway.namespace, name))
    if host is not None and by_host:
        server = provision.addresses.internal
        await _write_host(context, control_plane, name=name, namespace=gateway.namespace, server=server, host=host)
        return
    if not gateway.serves(provision.addresses.external):
        if existing is not None:
            await delete_secret(context, control_plane, name=name, namespace=gateway.namespace)
        return
    pair = kept(find_pair(existing, _PAIR), authorities.front_proxy, now=datetime.now(UTC), user=FRONT_PROXY_USER)
    optional = limits_entry(chosen) | authentication_entry(chosen) | _credentials_of(existing, control_plane)
    await write_secret(
        context,
        control_plane,
        name=name,
        namespace=gateway.namespace,
        data={
            "server": provision.addresses.internal.encode(),
            CA_KEY: authorities.serving_trust,
            "client-ca.crt": authorities.client_trust,
            "sa.pub": authorities.service_account_trust,
            **optional,
            **entries(_PAIR, pair or issue_client(authorities.front_proxy, user=FRONT_PROXY_USER)),
        },
        annotations={UID_ANNOTATION: control_plane.metadata.uid or "", **_hold_of(existing)},
        never=tuple((_OPTIONAL | {GATEWAY_HOST_KEY}) - optional.keys()),
    )


def _hold_of(secret: Object | None) -> dict[str, str]:
    annotations = (secret["metadata"].get("annotations") or {}) if secret is not None else {}
    return {key: value for key, value in annotations.items() if key == WRITES_HELD_UNTIL_ANNOTATION}


def _credentials_of(secret: Object | None, control_plane: ControlPlane) -> dict[str, bytes]:
    """Return the entries with the credentials that wake a control plane; empty if it is awake.

    A running API server checks its bootstrap tokens and ServiceAccounts itself.
    """
    if secret is None or control_plane.status.hibernation is None:
        return {}
    return {key: value for key, value in data_of(secret).items() if key in _ASLEEP}


def limits_entry(chosen: ControlPlaneClass | None) -> dict[str, bytes]:
    """Return the entry with the limits of a class.

    It names the class even without limits, because quotas are per class.
    """
    if chosen is None:
        return {}
    entry: dict[str, str | int] = {"class": chosen.name}
    if (limits := chosen.spec.limits) is not None:
        entry |= limits.model_dump(by_alias=True, exclude_none=True, exclude={"request_bytes"})
        if (request_bytes := limits.request_bytes_asked) is not None:
            entry["requestBytes"] = request_bytes
    return {GATEWAY_LIMITS_KEY: json.dumps(entry, sort_keys=True).encode()}


def authentication_entry(chosen: ControlPlaneClass | None) -> dict[str, bytes]:
    """Return the entry with the credentials that API servers of a class accept; empty for the defaults."""
    settings = api_server_settings(chosen)
    flags = [flag.partition("=") for flag in settings.extra_args]
    audiences = sorted(
        {audience for flag, _, value in flags if flag == "--api-audiences" for audience in value.split(",")}
    )
    entry = {
        **({"clusterInfo": True} if chosen is not None and JOIN_ADDON in chosen.spec.addons else {}),
        **({"audiences": audiences} if audiences else {}),
        **({"issuers": [_issuer_entry(issuer) for issuer in settings.oidc]} if settings.oidc else {}),
    }
    return {GATEWAY_AUTHENTICATION_KEY: json.dumps(entry, sort_keys=True).encode()} if entry else {}


def _issuer_entry(issuer: OidcIssuer) -> dict[str, Any]:
    authority = issuer.certificate_authority
    return {
        "issuerURL": issuer.issuer_url,
        "audiences": list(issuer.client_ids),
        **({"certificateAuthority": authority} if authority is not None else {}),
        "requiredClaims": issuer.required_claims,
    }


async def _write_host(
    context: OperatorContext, control_plane: ControlPlane, *, name: str, namespace: str, server: str, host: str
) -> None:
    """Write the gateway's Secret of a control plane with a host name. It contains no credentials."""
    data = {"server": server.encode(), GATEWAY_HOST_KEY: host.encode()}
    await write_secret(
        context,
        control_plane,
        name=name,
        namespace=namespace,
        data=data,
        annotations={UID_ANNOTATION: control_plane.metadata.uid or ""},
        never=(GATEWAY_SECRET_KEYS.keys() | _OPTIONAL) - data.keys(),
    )
