"""Publishes a control plane under the address of the gateway, and tells the gateway what it needs to serve it."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime

from kplane.api import ControlPlane, ControlPlaneClass, ControlPlaneMode, EndpointPolicy
from kplane.api.names import CA_KEY, GATEWAY_LIMITS_KEY, UID_ANNOTATION, gateway_secret_name
from kplane.controlplane_operator.backends.base import Provision
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.endpoints.addresses import Addresses
from kplane.controlplane_operator.pki.authorities import FRONT_PROXY_USER
from kplane.controlplane_operator.pki.entries import entries, find_pair, kept
from kplane.controlplane_operator.pki.primitives import issue_client
from kplane.controlplane_operator.pki.secrets import delete_secret, write_secret
from kplane.controlplane_operator.reasons import Reason
from kplane.controlplane_operator.status.errors import ConditionError

__all__ = ["at_gateway", "endpoint_policy", "limits_entry", "write_gateway_secret"]

_PAIR = "tls"


def endpoint_policy(
    context: OperatorContext, control_plane: ControlPlane, *, chosen: ControlPlaneClass | None
) -> EndpointPolicy:
    """Return which addresses are published, by the spec, or by the class.

    Raises ConditionError (NoGateway) if they ask for a gateway that the operator does not have.
    """
    if control_plane.spec.mode is not ControlPlaneMode.VIRTUAL or control_plane.spec.endpoint_ref is not None:
        return EndpointPolicy.OWN
    asked = control_plane.spec.endpoint_policy or (chosen.spec.endpoint_policy if chosen is not None else None)
    if context.gateway is not None:
        return asked or EndpointPolicy.GATEWAY
    if asked not in {None, EndpointPolicy.OWN}:
        raise ConditionError(
            Reason.NO_GATEWAY,
            f"endpointPolicy {asked} needs a gateway, and this operator has none; start the operator with"
            " --gateway-url, or set spec.endpointPolicy to Own",
        )
    return EndpointPolicy.OWN


def at_gateway(
    context: OperatorContext, control_plane: ControlPlane, *, provision: Provision, chosen: ControlPlaneClass | None
) -> Provision:
    """Return the provision with the addresses that are published. Raises as `endpoint_policy`."""
    policy = endpoint_policy(context, control_plane, chosen=chosen)
    gateway, own = context.gateway, provision.addresses
    if gateway is None or policy is EndpointPolicy.OWN:
        return provision
    url = gateway.address(control_plane.cluster_path)
    join = own.join if policy is EndpointPolicy.BOTH else url
    return dataclasses.replace(provision, addresses=Addresses(internal=own.internal, external=url, join=join))


async def write_gateway_secret(
    context: OperatorContext, control_plane: ControlPlane, *, provision: Provision, chosen: ControlPlaneClass | None
) -> None:
    """Have the gateway's Secret of a control plane if it is published under the gateway's address, and none otherwise.

    The certificate in it is the gateway's own: the API server takes users from it, and it opens nothing else.
    Raises ConditionError (SecretsNotReadable) while the operator may not read the gateway's namespace.
    """
    gateway, authorities = context.gateway, provision.authorities
    if gateway is None or authorities is None or control_plane.spec.mode is not ControlPlaneMode.VIRTUAL:
        return
    await context.secrets.open(gateway.namespace)
    name = gateway_secret_name(control_plane.name)
    known = context.stores.secrets.get((gateway.namespace, name))
    if not gateway.serves(provision.addresses.external):
        if known is not None:
            await delete_secret(context, control_plane, name=name, namespace=gateway.namespace)
        return
    pair = kept(find_pair(known, _PAIR), authorities.front_proxy, now=datetime.now(UTC), user=FRONT_PROXY_USER)
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
            **limits_entry(chosen),
            **entries(_PAIR, pair or issue_client(authorities.front_proxy, user=FRONT_PROXY_USER)),
        },
        annotations={UID_ANNOTATION: control_plane.metadata.uid or ""},
    )


def limits_entry(chosen: ControlPlaneClass | None) -> dict[str, bytes]:
    """Return the entry with the limits of a class. It names the class also if that sets none: quotas are of it."""
    if chosen is None:
        return {}
    found: dict[str, str | int] = {"class": chosen.name}
    if (limits := chosen.spec.limits) is not None:
        found |= limits.model_dump(by_alias=True, exclude_none=True, exclude={"request_bytes"})
        if (longest := limits.request_bytes_asked) is not None:
            found["requestBytes"] = longest
    return {GATEWAY_LIMITS_KEY: json.dumps(found, sort_keys=True).encode()}
