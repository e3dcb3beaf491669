"""Published addresses of a control plane, with and without the gateway, and the CAs that its clients trust."""

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
    GATEWAY_ACCOUNTS_KEY,
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
    """Return a fake `OperatorContext`. Each control plane of `others` wants path `acme`."""
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
    control_plane_class = None
    if by_class is not None or style_by_class is not None:
        fields = {"endpointPolicy": by_class, "endpointStyle": style_by_class}
        control_plane_class = ControlPlaneClass.model_validate({"metadata": {"name": "gold"}, "spec": fields})
    provision = Provision(OWN, administrator=ClusterConfig(server=OWN.internal), authorities=None)
    context = _context(gateway, *others)
    return at_gateway(context, control_plane, provision=provision, chosen=control_plane_class).addresses


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
def test_at_gateway_uses_endpoint_policy_of_spec_over_class(
    by_class: str | None, spec: dict[str, Any], external: str, join: str
) -> None:
    addresses = published(GATEWAY, by_class=by_class, **spec)
    assert (addresses.internal, addresses.external, addresses.join) == (OWN.internal, external, join)


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
def test_at_gateway_uses_endpoint_style_of_spec_over_class(
    by_class: str | None, style_by_class: str | None, spec: dict[str, Any], external: str, join: str
) -> None:
    addresses = published(NAMED, by_class=by_class, style_by_class=style_by_class, **spec)
    assert (addresses.internal, addresses.external, addresses.join) == (OWN.internal, external, join)


def test_host_name_style_is_refused_without_domain_or_gateway() -> None:
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
        # Foreign addresses that happen to be below the domain.
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
    acme = ControlPlane.model_validate({"metadata": {"name": "acme", "uid": "1"}, "spec": {}})
    url = "https://acme.localhost:8443"
    ca, gateway.ca = create_authority("acme").certificate, create_authority("gateway").certificate
    administrator = ClusterConfig(server=OWN.internal, ca_data=ca, proxy="http://10.0.0.9:3128")
    provision = Provision(Addresses(OWN.internal, url, url), administrator, authorities=None)
    now = datetime.now(UTC)
    identity = Identity(renew_at=now, expires_at=now, token="t")
    credentials = Credentials(admin=identity, controllers=identity, version="v1.36.3")
    await write_secrets(context, acme, provision=provision, credentials=credentials)
    [admin] = [data for data in written.values() if KUBECONFIG_EXTERNAL_KEY in data]
    external, internal = (
        ClusterConfig.from_kubeconfig(admin[key]) for key in (KUBECONFIG_EXTERNAL_KEY, KUBECONFIG_KEY)
    )
    # The CA of the API server certifies the host name.
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
        # Another control plane has this address now.
        (Reason.CLUSTER_PATH_IN_USE, URL, URL, (OWN.external, OWN.join)),
    ],
)
def test_still_at_gateway_keeps_path_unless_another_has_it(
    reason: Reason, external: str, join: str, kept: tuple[str, str]
) -> None:
    endpoints = [{"type": "External", "url": external}, {"type": "Join", "url": join}]
    before = ControlPlane.model_validate({"metadata": {"name": "acme"}, "spec": {}, "status": {"endpoints": endpoints}})
    provision = Provision(OWN, administrator=ClusterConfig(server=OWN.internal), authorities=None)
    failure = ConditionError(reason, "it cannot be had")
    addresses = still_at_gateway(_context(GATEWAY), before, provision=provision, failure=failure).addresses
    assert (addresses.internal, addresses.external, addresses.join) == (OWN.internal, *kept)


def test_new_host_name_renews_only_the_api_server_certificate() -> None:
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
def test_at_gateway_keeps_own_address_without_gateway(spec: dict[str, Any]) -> None:
    assert published(None, **spec) == OWN


@pytest.mark.parametrize(("by_class", "spec"), [("Gateway", {}), (None, {"endpointPolicy": "Both"})])
def test_gateway_policy_is_refused_without_gateway(by_class: str | None, spec: dict[str, Any]) -> None:
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
def test_gateway_path_of_another_control_plane_is_refused(mode: str, before: bool, other: dict[str, Any]) -> None:
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
def test_gateway_path_stays_with_its_holder(mode: str, before: bool, other: dict[str, Any]) -> None:
    assert published(GATEWAY, other, mode=mode, endpointPolicy="Gateway", at_gateway_before=before).external == URL


def test_gateway_path_is_refused_when_another_has_its_host_name() -> None:
    globex = _other(at_gateway=False, **DEDICATED) | {"status": {"endpoints": [{"type": "External", "url": BY_HOST}]}}
    with pytest.raises(ConditionError) as refused:
        published(NAMED, globex, mode="Virtual", endpointPolicy="Gateway")
    assert refused.value.reason == Reason.CLUSTER_PATH_IN_USE


def test_endpoint_policy_refuses_name_that_is_no_path() -> None:
    spec = {"mode": "Dedicated", "endpointPolicy": "Gateway"}
    control_plane = ControlPlane.model_validate({"metadata": {"name": "acme.example", "uid": "1"}, "spec": spec})
    with pytest.raises(ConditionError, match="cannot be a path of the gateway") as refused:
        endpoint_policy(_context(GATEWAY), control_plane, chosen=None)
    assert refused.value.reason == Reason.INVALID_CLUSTER_PATH


def test_gateway_serves_only_its_own_addresses() -> None:
    assert GATEWAY.address("acme") == URL
    assert GATEWAY.serves(URL)
    for url in (OWN.external, "https://api.example.org.evil/clusters/acme/control-plane", "https://api.example.org"):
        assert not GATEWAY.serves(url)


def test_limits_entry_has_name_and_limits_of_class() -> None:
    def told(**spec: Any) -> Any:
        control_plane_class = ControlPlaneClass.model_validate({"metadata": {"name": "gold"}, "spec": spec})
        return json.loads(limits_entry(control_plane_class)[GATEWAY_LIMITS_KEY])

    assert limits_entry(None) == {}
    assert told() == {"class": "gold"}
    limits = {"requestsInFlight": 10, "requestsPerSecond": 20, "requestBytes": "1Mi", "requestIdleSeconds": 30}
    assert told(limits=limits) == {"class": "gold"} | limits | {"requestBytes": 1 << 20}
    assert told(limits={"requestsPerSecond": 5}) == {"class": "gold", "requestsPerSecond": 5}


def test_authentication_entry_names_issuers_of_the_class() -> None:
    issuer = {"issuerURL": "https://login.example.org", "clientIDs": ["kubernetes"], "requiredClaims": {"org": "acme"}}
    spec = {"apiServer": {"oidc": [issuer]}}
    entry = authentication_entry(ControlPlaneClass.model_validate({"metadata": {"name": "gold"}, "spec": spec}))
    assert json.loads(entry[GATEWAY_AUTHENTICATION_KEY]) == {
        "issuers": [
            {
                "issuerURL": "https://login.example.org",
                "audiences": ["kubernetes"],
                "requiredClaims": {"org": "acme"},
            }
        ]
    }


def test_authentication_entry_allows_cluster_info_with_kubeadm_join() -> None:
    spec = {"addons": ["kubeadm-join"]}
    entry = authentication_entry(ControlPlaneClass.model_validate({"metadata": {"name": "gold"}, "spec": spec}))
    assert json.loads(entry[GATEWAY_AUTHENTICATION_KEY]) == {"clusterInfo": True}


def test_authentication_entry_names_audiences_of_the_class() -> None:
    def entry(*flags: str) -> Any:
        spec = {"apiServer": {"extraArgs": list(flags)}}
        return authentication_entry(ControlPlaneClass.model_validate({"metadata": {"name": "gold"}, "spec": spec}))

    assert authentication_entry(None) == entry("--v=2") == {}
    combined = entry("--api-audiences=vault,api", "--api-audiences=other")
    assert json.loads(combined[GATEWAY_AUTHENTICATION_KEY]) == {"audiences": ["api", "other", "vault"]}


async def test_leaving_the_gateway_deletes_the_secret_there() -> None:
    """The operator was restarted, and has not read the namespace of the gateway yet."""
    stored: dict[Any, Any] = {}

    async def opened(namespace: str) -> None:
        stored[namespace, "controlplane-acme"] = {"metadata": {"name": "controlplane-acme"}}

    client = SimpleNamespace(delete=AsyncMock())
    context: Any = SimpleNamespace(
        gateway=NAMED, client=client, secrets=SimpleNamespace(open=opened), stores=SimpleNamespace(secrets=stored)
    )
    provision = Provision(OWN, ClusterConfig(server=OWN.internal), authorities=cast("Any", "some"))
    for external, deletions in ((OWN.external, 0), (BY_PATH, 1), (BY_HOST, 1)):
        stored.clear()
        client.delete.reset_mock()
        status = {"endpoints": [{"type": "External", "url": external}]}
        spec = {"mode": "Dedicated"}
        acme = ControlPlane.model_validate({"metadata": {"name": "acme", "uid": "1"}, "spec": spec, "status": status})
        await write_gateway_secret(context, acme, provision=provision, chosen=None)
        assert client.delete.await_count == deletions


async def test_gateway_secret_loses_limits_without_class_and_foreign_data() -> None:
    written: list[Any] = []

    async def create(_: Any, body: dict[str, Any]) -> dict[str, Any]:
        written.append(body)
        keep(body)
        return body

    async def patch(_: Any, name: str, body: dict[str, Any], *, namespace: str) -> dict[str, Any]:
        metadata = {**body["metadata"], "name": name, "namespace": namespace}
        return await create(_, {**body, "metadata": metadata})

    stored: dict[Any, Any] = {}

    def keep(body: dict[str, Any]) -> None:
        data = {key: value for key, value in body["data"].items() if value is not None}
        stored["kplane-gateway", "controlplane-acme"] = body | {"data": data}

    secrets = SimpleNamespace(get=stored.get)
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
    acme = ControlPlane.model_validate({"metadata": {"name": "acme", "uid": "1"}, "spec": {}})
    addresses = Addresses(OWN.internal, URL, URL)
    provision = Provision(addresses, ClusterConfig(server=OWN.internal), authorities=TenantAuthorities.create("acme"))
    small = ControlPlaneClass.model_validate({"metadata": {"name": "small"}, "spec": {}})
    for control_plane_class in (small, small, None, None):
        await write_gateway_secret(context, acme, provision=provision, chosen=control_plane_class)
    assert [body["data"].get(GATEWAY_LIMITS_KEY) is not None for body in written] == [True, False]
    # Each patch removes the key, even if another client wrote it.
    assert written[-1]["data"][GATEWAY_LIMITS_KEY] is None
    secret = stored["kplane-gateway", "controlplane-acme"]
    await write_gateway_secret(context, acme, provision=provision, chosen=None)
    assert len(written) == 2
    for key, value in ((GATEWAY_HOST_KEY, None), (GATEWAY_LIMITS_KEY, None), ("sa.pub", ANY)):
        secret["data"][key] = "ZGFtYWdl"
        await write_gateway_secret(context, acme, provision=provision, chosen=None)
        assert written[-1]["data"][key] == value
        secret = stored["kplane-gateway", "controlplane-acme"]
    assert len(written) == 5
    # Bootstrap tokens and ServiceAccounts stay while the control plane sleeps.
    secret["data"] |= {GATEWAY_BOOTSTRAP_TOKENS_KEY: "e30=", GATEWAY_ACCOUNTS_KEY: "e30="}
    sleep = HibernationStatus(since=datetime.now(UTC), reason=HibernationReason.IDLE, observed_generation=1)
    sleeping_acme = acme.model_copy(update={"status": acme.status.model_copy(update={"hibernation": sleep})})
    await write_gateway_secret(context, sleeping_acme, provision=provision, chosen=None)
    assert len(written) == 5
    await write_gateway_secret(context, acme, provision=provision, chosen=None)
    assert written[-1]["data"][GATEWAY_BOOTSTRAP_TOKENS_KEY] is None
    assert written[-1]["data"][GATEWAY_ACCOUNTS_KEY] is None
