"""Under which addresses a control plane is published, and whom its clients trust there."""

from __future__ import annotations

import base64
import dataclasses
import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import ANY, AsyncMock

import pytest

from kplane.api import ControlPlane, ControlPlaneClass, HibernationReason, HibernationStatus
from kplane.api.names import (
    GATEWAY_AUTHENTICATION_KEY,
    GATEWAY_BOOTSTRAP_TOKENS_KEY,
    GATEWAY_HOST_KEY,
    GATEWAY_LIMITS_KEY,
    KUBECONFIG_EXTERNAL_KEY,
    KUBECONFIG_KEY,
)
from kplane.api.reasons import Reason
from kplane.components.api_server import serving_hosts
from kplane.controlplane_operator.backends.base import Provision
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.controlplanes.credentials import Credentials
from kplane.controlplane_operator.controlplanes.gateway import (
    at_gateway,
    authentication_entry,
    endpoint_policy,
    limits_entry,
    still_at_gateway,
    write_gateway_secret,
)
from kplane.controlplane_operator.controlplanes.publish import write_secrets
from kplane.controlplane_operator.endpoints.addresses import Addresses
from kplane.controlplane_operator.gateway import Gateway
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.pki.authorities import TenantAuthorities, TenantCertificates
from kplane.pki.issuing import Identity
from kplane.pki.primitives import create_authority, hosts_of
from kplane.provider import ClusterConfig
from kplane.workloads import Address

OWN = Addresses("https://10.0.0.1:6443", "https://acme.example.org", "https://acme.example.org")
GATEWAY = Gateway(url="https://api.example.org", ca=b"CA of the gateway", namespace="kplane-gateway")
URL = "https://api.example.org/clusters/acme/control-plane"
NAMED = Gateway(
    url="https://api.example.org:8443", ca=b"CA of the gateway", namespace="kplane-gateway", domain="cp.example.org"
)
BY_PATH, BY_HOST = "https://api.example.org:8443/clusters/acme/control-plane", "https://acme.cp.example.org:8443"


def _context(gateway: Gateway | None, *others: dict[str, Any]) -> OperatorContext:
    """As `OperatorContext`, with these control planes, each of which wants the path `acme`."""
    control_planes = SimpleNamespace(by=lambda index, value: others if (index, value) == ("path", "acme") else ())
    return cast(
        "OperatorContext", SimpleNamespace(gateway=gateway, stores=SimpleNamespace(control_planes=control_planes))
    )


def _other(*, at_gateway: bool, **spec: Any) -> dict[str, Any]:
    endpoints = [{"type": "External", "url": URL if at_gateway else OWN.external}]
    return {"metadata": {"name": "globex", "uid": "2"}, "spec": spec, "status": {"endpoints": endpoints}}


def published(
    gateway: Gateway | None,
    *others: dict[str, Any],
    by_class: str | None = None,
    style_by_class: str | None = None,
    at_gateway_before: bool = False,
    **spec: Any,
) -> Addresses:
    status = {"endpoints": [{"type": "External", "url": URL}]} if at_gateway_before else {}
    metadata = {"name": "acme", "uid": "1"}
    control_plane = ControlPlane.model_validate({"metadata": metadata, "spec": spec, "status": status})
    chosen = None
    if by_class is not None or style_by_class is not None:
        fields = {"endpointPolicy": by_class, "endpointStyle": style_by_class}
        chosen = ControlPlaneClass.model_validate({"metadata": {"name": "gold"}, "spec": fields})
    provision = Provision(OWN, administrator=ClusterConfig(server=OWN.internal), authorities=None)
    context = _context(gateway, *others)
    return at_gateway(context, control_plane, provision=provision, chosen=chosen).addresses


@pytest.mark.parametrize(
    ("by_class", "spec", "external", "join"),
    [
        (None, {}, URL, URL),
        ("Own", {}, OWN.external, OWN.join),
        ("Own", {"endpointPolicy": "Gateway"}, URL, URL),
        ("Both", {}, URL, OWN.join),
        ("Gateway", {"endpointPolicy": "Own"}, OWN.external, OWN.join),
        (None, {"mode": "Dedicated"}, OWN.external, OWN.join),
        ("Gateway", {"mode": "Dedicated"}, URL, URL),
        ("Own", {"mode": "Dedicated", "endpointPolicy": "Both"}, URL, OWN.join),
    ],
)
def test_spec_and_class_choose_the_addresses(
    by_class: str | None, spec: dict[str, Any], external: str, join: str
) -> None:
    found = published(GATEWAY, by_class=by_class, **spec)
    assert (found.internal, found.external, found.join) == (OWN.internal, external, join)


@pytest.mark.parametrize(
    ("by_class", "style_by_class", "spec", "external", "join"),
    [
        (None, None, {}, BY_PATH, BY_PATH),
        (None, None, {"endpointStyle": "HostName"}, BY_HOST, BY_HOST),
        (None, "HostName", {}, BY_HOST, BY_HOST),
        (None, "HostName", {"endpointStyle": "Path"}, BY_PATH, BY_PATH),
        ("Both", "HostName", {}, BY_HOST, OWN.join),
        ("Own", "HostName", {}, OWN.external, OWN.join),
        ("Own", "HostName", {"endpointPolicy": "Gateway"}, BY_HOST, BY_HOST),
        (None, "HostName", {"mode": "Dedicated"}, OWN.external, OWN.join),
        ("Gateway", "HostName", {"mode": "Dedicated"}, BY_HOST, BY_HOST),
        (None, None, {"mode": "Dedicated", "endpointStyle": "HostName"}, BY_HOST, BY_HOST),
        (None, "HostName", {"virtual": {"clusterPath": "house"}}, *["https://house.cp.example.org:8443"] * 2),
    ],
)
def test_spec_and_class_choose_the_style(
    by_class: str | None, style_by_class: str | None, spec: dict[str, Any], external: str, join: str
) -> None:
    found = published(NAMED, by_class=by_class, style_by_class=style_by_class, **spec)
    assert (found.internal, found.external, found.join) == (OWN.internal, external, join)


def test_a_host_name_needs_a_domain_and_a_gateway() -> None:
    assert NAMED.host_address("acme.cp.example.org") == BY_HOST
    assert not NAMED.serves(BY_HOST)
    with pytest.raises(ConditionError, match="start the operator with --gateway-domain, or set") as refused:
        published(GATEWAY, endpointStyle="HostName")
    assert refused.value.reason == Reason.NO_GATEWAY_DOMAIN
    with pytest.raises(ConditionError, match="endpointStyle HostName needs a gateway") as refused:
        published(None, style_by_class="HostName")
    assert refused.value.reason == Reason.NO_GATEWAY
    assert published(None, by_class="Own", style_by_class="HostName") == OWN


@pytest.mark.parametrize(
    ("domain", "url", "server", "name"),
    [
        ("localhost", "https://acme.localhost:8443", "https://127.0.0.1:8443", "acme.localhost"),
        ("cp.localhost", "https://acme.cp.localhost:8443", "https://127.0.0.1:8443", "acme.cp.localhost"),
        ("cp.example.org", "https://acme.cp.example.org:8443", "https://acme.cp.example.org:8443", None),
        ("notlocalhost", "https://acme.notlocalhost:8443", "https://acme.notlocalhost:8443", None),
        (None, "https://acme.localhost:8443", "https://acme.localhost:8443", None),
        # Addresses of others, by chance below the domain.
        ("localhost", "https://acme.localhost:6443", "https://acme.localhost:6443", None),
        ("localhost", "https://acme.localhost:8443/path", "https://acme.localhost:8443/path", None),
        ("localhost", *["https://127.0.0.1:8443/clusters/a/control-plane"] * 2, None),
    ],
)
def test_connection_to_host_name_below_localhost_needs_no_resolver(
    domain: str | None, url: str, server: str, name: str | None
) -> None:
    gateway = Gateway(url="https://127.0.0.1:8443", ca=b"", namespace="kplane-gateway", domain=domain)
    assert gateway.connection(url) == (server, name)


async def test_only_external_kubeconfig_names_gateway_and_host_name() -> None:
    written: dict[str, dict[str, bytes]] = {}

    async def create(_: Any, body: dict[str, Any]) -> dict[str, Any]:
        data = body["data"].items()
        written[body["metadata"]["name"]] = {key: base64.b64decode(content) for key, content in data}
        return body

    gateway = dataclasses.replace(GATEWAY, url="https://127.0.0.1:8443", domain="localhost")
    secrets = SimpleNamespace(get=lambda _: None, apply=lambda _: None)
    client, stores = SimpleNamespace(create=create), SimpleNamespace(secrets=secrets)
    context: Any = SimpleNamespace(gateway=gateway, client=client, stores=stores)
    one = ControlPlane.model_validate({"metadata": {"name": "acme", "uid": "1"}, "spec": {}})
    url = "https://acme.localhost:8443"
    ca, gateway.ca = create_authority("acme").certificate, create_authority("gateway").certificate
    administrator = ClusterConfig(server=OWN.internal, ca_data=ca, proxy="http://10.0.0.9:3128")
    provision = Provision(Addresses(OWN.internal, url, url), administrator, authorities=None)
    now = datetime.now(UTC)
    identity = Identity(renew_at=now, expires_at=now, token="t")
    credentials = Credentials(admin=identity, controllers=identity, version="v1.36.3")
    await write_secrets(context, one, provision=provision, credentials=credentials)
    [admin] = [data for data in written.values() if KUBECONFIG_EXTERNAL_KEY in data]
    external, internal = (
        ClusterConfig.from_kubeconfig(admin[key]) for key in (KUBECONFIG_EXTERNAL_KEY, KUBECONFIG_KEY)
    )
    # The API server proves the name by its own CA.
    assert (external.server, external.tls_server_name) == ("https://127.0.0.1:8443", "acme.localhost")
    assert (external.ca_data, external.proxy) == (ca, None)
    assert (internal.server, internal.tls_server_name) == (OWN.internal, None)
    assert internal.proxy == "http://10.0.0.9:3128"


@pytest.mark.parametrize(
    ("reason", "external", "join", "kept"),
    [
        (Reason.NO_GATEWAY_DOMAIN, URL, URL, (URL, URL)),
        (Reason.NO_GATEWAY_DOMAIN, URL, "https://10.0.0.9:6443", (URL, OWN.join)),
        (Reason.NO_GATEWAY_DOMAIN, BY_HOST, BY_HOST, (OWN.external, OWN.join)),
        # Another control plane has that address now.
        (Reason.CLUSTER_PATH_IN_USE, URL, URL, (OWN.external, OWN.join)),
    ],
)
def test_a_style_that_cannot_be_had_takes_no_address(
    reason: Reason, external: str, join: str, kept: tuple[str, str]
) -> None:
    endpoints = [{"type": "External", "url": external}, {"type": "Join", "url": join}]
    before = ControlPlane.model_validate({"metadata": {"name": "acme"}, "spec": {}, "status": {"endpoints": endpoints}})
    provision = Provision(OWN, administrator=ClusterConfig(server=OWN.internal), authorities=None)
    failure = ConditionError(reason, "it cannot be had")
    found = still_at_gateway(_context(GATEWAY), before, provision=provision, failure=failure).addresses
    assert (found.internal, found.external, found.join) == (OWN.internal, *kept)


def test_another_name_renews_the_certificate_of_the_api_server_alone() -> None:
    authorities = TenantAuthorities.create("acme")

    def renewed(previous: TenantCertificates | None, name: str | None) -> TenantCertificates:
        return TenantCertificates.renewed(
            previous,
            authorities=authorities,
            hosts=serving_hosts(Address("10.0.0.1", {"https": 6443}), published=name),
            etcd_authority=authorities.etcd,
            etcd_user="acme",
            controllers_user="controllers",
            now=datetime.now(UTC),
        )

    named = renewed(renewed(None, None), "acme.cp.example.org")
    assert "acme.cp.example.org" in hosts_of(named.api_server.certificate)
    assert renewed(named, "acme.cp.example.org") is named
    moved = renewed(named, "acme.example.net")
    assert "acme.example.net" in hosts_of(moved.api_server.certificate)
    assert "acme.cp.example.org" not in hosts_of(moved.api_server.certificate)
    assert dataclasses.replace(moved, api_server=named.api_server) == named


@pytest.mark.parametrize("spec", [{}, {"endpointPolicy": "Own"}])
def test_without_a_gateway_the_own_address_is_published(spec: dict[str, Any]) -> None:
    assert published(None, **spec) == OWN


@pytest.mark.parametrize(("by_class", "spec"), [("Gateway", {}), (None, {"endpointPolicy": "Both"})])
def test_a_gateway_that_is_not_there_is_refused(by_class: str | None, spec: dict[str, Any]) -> None:
    with pytest.raises(ConditionError, match="start the operator with --gateway-url") as refused:
        published(None, by_class=by_class, **spec)
    assert refused.value.reason == Reason.NO_GATEWAY


VIRTUAL = {"mode": "Virtual", "virtual": {"clusterPath": "acme"}}
DEDICATED = {"mode": "Dedicated"}


@pytest.mark.parametrize(
    ("mode", "before", "other"),
    [
        ("Dedicated", False, _other(at_gateway=False, **VIRTUAL)),
        ("Dedicated", False, _other(at_gateway=True, **VIRTUAL)),
        ("Dedicated", True, _other(at_gateway=True, **VIRTUAL)),
        ("Virtual", False, _other(at_gateway=True, **DEDICATED)),
    ],
)
def test_a_path_of_the_gateway_is_of_one_control_plane(mode: str, before: bool, other: dict[str, Any]) -> None:
    with pytest.raises(ConditionError, match="is that of control plane globex") as refused:
        published(GATEWAY, other, mode=mode, endpointPolicy="Gateway", at_gateway_before=before)
    assert refused.value.reason == Reason.CLUSTER_PATH_IN_USE


@pytest.mark.parametrize(
    ("mode", "before", "other"),
    [
        ("Dedicated", True, _other(at_gateway=False, **VIRTUAL)),
        ("Virtual", False, _other(at_gateway=False, **DEDICATED)),
        ("Virtual", True, _other(at_gateway=True, **DEDICATED)),
        ("Virtual", False, _other(at_gateway=True, endpointRef={"name": "elsewhere"})),
    ],
)
def test_who_has_a_path_of_the_gateway_keeps_it(mode: str, before: bool, other: dict[str, Any]) -> None:
    assert published(GATEWAY, other, mode=mode, endpointPolicy="Gateway", at_gateway_before=before).external == URL


def test_who_has_a_host_name_of_the_gateway_keeps_it() -> None:
    other = _other(at_gateway=False, **DEDICATED) | {"status": {"endpoints": [{"type": "External", "url": BY_HOST}]}}
    with pytest.raises(ConditionError) as refused:
        published(NAMED, other, mode="Virtual", endpointPolicy="Gateway")
    assert refused.value.reason == Reason.CLUSTER_PATH_IN_USE


def test_a_name_that_cannot_be_a_path_is_refused() -> None:
    spec = {"mode": "Dedicated", "endpointPolicy": "Gateway"}
    control_plane = ControlPlane.model_validate({"metadata": {"name": "acme.example", "uid": "1"}, "spec": spec})
    with pytest.raises(ConditionError, match="cannot be a path of the gateway") as refused:
        endpoint_policy(_context(GATEWAY), control_plane, chosen=None)
    assert refused.value.reason == Reason.INVALID_CLUSTER_PATH


def test_the_gateway_knows_its_addresses() -> None:
    assert GATEWAY.address("acme") == URL
    assert GATEWAY.serves(URL)
    for other in (OWN.external, "https://api.example.org.evil/clusters/acme/control-plane", "https://api.example.org"):
        assert not GATEWAY.serves(other)


def test_the_gateway_is_told_the_limits_of_a_class() -> None:
    def told(**spec: Any) -> Any:
        chosen = ControlPlaneClass.model_validate({"metadata": {"name": "gold"}, "spec": spec})
        return json.loads(limits_entry(chosen)[GATEWAY_LIMITS_KEY])

    assert limits_entry(None) == {}
    assert told() == {"class": "gold"}
    limits = {"requestsInFlight": 10, "requestsPerSecond": 20, "requestBytes": "1Mi", "requestIdleSeconds": 30}
    assert told(limits=limits) == {"class": "gold"} | limits | {"requestBytes": 1 << 20}
    assert told(limits={"requestsPerSecond": 5}) == {"class": "gold", "requestsPerSecond": 5}


def test_authentication_entry_names_issuers_of_the_class() -> None:
    issuer = {"issuerURL": "https://login.example.org", "clientIDs": ["kubernetes"], "requiredClaims": {"org": "acme"}}
    spec = {"apiServer": {"oidc": [issuer]}}
    found = authentication_entry(ControlPlaneClass.model_validate({"metadata": {"name": "gold"}, "spec": spec}))
    assert json.loads(found[GATEWAY_AUTHENTICATION_KEY]) == {
        "issuers": [
            {
                "issuerURL": "https://login.example.org",
                "audiences": ["kubernetes"],
                "requiredClaims": {"org": "acme"},
            }
        ]
    }


def test_authentication_entry_says_that_everybody_may_read_cluster_info() -> None:
    spec = {"addons": ["kubeadm-join"]}
    found = authentication_entry(ControlPlaneClass.model_validate({"metadata": {"name": "gold"}, "spec": spec}))
    assert json.loads(found[GATEWAY_AUTHENTICATION_KEY]) == {"clusterInfo": True}


def test_authentication_entry_names_audiences_of_the_class() -> None:
    def entry(*flags: str) -> Any:
        spec = {"apiServer": {"extraArgs": list(flags)}}
        return authentication_entry(ControlPlaneClass.model_validate({"metadata": {"name": "gold"}, "spec": spec}))

    assert authentication_entry(None) == entry("--v=2") == {}
    found = entry("--api-audiences=vault,api", "--api-audiences=other")
    assert json.loads(found[GATEWAY_AUTHENTICATION_KEY]) == {"audiences": ["api", "other", "vault"]}


async def test_one_that_leaves_the_gateway_leaves_no_secret_there() -> None:
    """As an operator finds it that started since: it has not read the namespace of the gateway."""
    kept: dict[Any, Any] = {}

    async def opened(namespace: str) -> None:
        kept[namespace, "controlplane-acme"] = {"metadata": {"name": "controlplane-acme"}}

    client = SimpleNamespace(delete=AsyncMock())
    context: Any = SimpleNamespace(
        gateway=NAMED, client=client, secrets=SimpleNamespace(open=opened), stores=SimpleNamespace(secrets=kept)
    )
    provision = Provision(OWN, ClusterConfig(server=OWN.internal), authorities=cast("Any", "some"))
    for external, deletions in ((OWN.external, 0), (BY_PATH, 1), (BY_HOST, 1)):
        kept.clear()
        client.delete.reset_mock()
        status = {"endpoints": [{"type": "External", "url": external}]}
        spec = {"mode": "Dedicated"}
        one = ControlPlane.model_validate({"metadata": {"name": "acme", "uid": "1"}, "spec": spec, "status": status})
        await write_gateway_secret(context, one, provision=provision, chosen=None)
        assert client.delete.await_count == deletions


async def test_gateway_secret_loses_limits_without_class_and_foreign_host_and_damage() -> None:
    written: list[Any] = []

    async def create(_: Any, body: dict[str, Any]) -> dict[str, Any]:
        written.append(body)
        return body

    async def patch(_: Any, name: str, body: dict[str, Any], *, namespace: str) -> dict[str, Any]:
        metadata = {**body["metadata"], "name": name, "namespace": namespace}
        return await create(_, {**body, "metadata": metadata})

    kept: dict[Any, Any] = {}

    def keep(body: dict[str, Any]) -> None:
        data = {key: value for key, value in body["data"].items() if value is not None}
        kept["kplane-gateway", "controlplane-acme"] = body | {"data": data}

    secrets = SimpleNamespace(get=kept.get, apply=keep)
    context: Any = SimpleNamespace(
        gateway=GATEWAY,
        client=SimpleNamespace(
            create=create,
            patch=patch,
            request=AsyncMock(return_value={"metadata": {"resourceVersion": "1"}}),
            field_manager="kplane",
        ),
        secrets=SimpleNamespace(open=AsyncMock()),
        stores=SimpleNamespace(secrets=secrets),
    )
    one = ControlPlane.model_validate({"metadata": {"name": "acme", "uid": "1"}, "spec": {}})
    addresses = Addresses(OWN.internal, URL, URL)
    provision = Provision(addresses, ClusterConfig(server=OWN.internal), authorities=TenantAuthorities.create("acme"))
    small = ControlPlaneClass.model_validate({"metadata": {"name": "small"}, "spec": {}})
    for chosen in (small, small, None, None):
        await write_gateway_secret(context, one, provision=provision, chosen=chosen)
    assert [body["data"].get(GATEWAY_LIMITS_KEY) is not None for body in written] == [True, False]
    # Each patch removes it, whoever wrote it.
    assert written[-1]["data"][GATEWAY_LIMITS_KEY] is None
    secret = kept["kplane-gateway", "controlplane-acme"]
    await write_gateway_secret(context, one, provision=provision, chosen=None)
    assert len(written) == 2
    for key, value in ((GATEWAY_HOST_KEY, None), (GATEWAY_LIMITS_KEY, None), ("sa.pub", ANY)):
        secret["data"][key] = "ZGFtYWdl"
        await write_gateway_secret(context, one, provision=provision, chosen=None)
        assert written[-1]["data"][key] == value
        secret = kept["kplane-gateway", "controlplane-acme"]
    assert len(written) == 5
    # Bootstrap tokens stay while the control plane sleeps.
    secret["data"][GATEWAY_BOOTSTRAP_TOKENS_KEY] = "e30="
    sleep = HibernationStatus(since=datetime.now(UTC), reason=HibernationReason.IDLE, observed_generation=1)
    asleep = one.model_copy(update={"status": one.status.model_copy(update={"hibernation": sleep})})
    await write_gateway_secret(context, asleep, provision=provision, chosen=None)
    assert len(written) == 5
    await write_gateway_secret(context, one, provision=provision, chosen=None)
    assert written[-1]["data"][GATEWAY_BOOTSTRAP_TOKENS_KEY] is None
