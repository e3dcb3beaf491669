"""Descriptions of tenants' programs are equal at every call and show no secret."""

from __future__ import annotations

import datetime as dt
import string
from collections.abc import Sequence
from typing import Final

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kplane.api import MANAGED_FLAGS, ApiServerMemory, ApiServerSettings, AuditPolicy, Destination
from kplane.components.api_server import api_server_component, serving_hosts
from kplane.components.egress import Egress, ProxyAccess
from kplane.components.egress_proxy import ProxyProgram, proxy_component
from kplane.components.etcd import EtcdAccess, etcd_component
from kplane.controlplane_operator.errors import KeyspaceError
from kplane.controlplane_operator.shared_etcd.keyspace import key_prefix
from kplane.pki.authorities import CONTROLLERS_USER, KUBELET_CLIENT_USER, TenantAuthorities, TenantCertificates
from kplane.pki.primitives import hosts_of, issued_by, user_of
from kplane.workloads import Address, Component, Reach

ADDRESS = Address(host="127.0.0.1", ports={"https": 6443, "client": 2379, "peer": 2380, "metrics": 2381})
AUTHORITIES = TenantAuthorities.create("a")
CERTIFICATES = TenantCertificates.renewed(
    None,
    authorities=AUTHORITIES,
    hosts=serving_hosts(ADDRESS),
    etcd_authority=AUTHORITIES.etcd,
    etcd_user="a",
    controllers_user=CONTROLLERS_USER,
    etcd_hosts=["127.0.0.1"],
    now=dt.datetime.now(dt.UTC),
)
ACCESS = ProxyAccess(
    "egress-a",
    "::1",
    8132,
    client=CERTIFICATES.front_proxy,
    ca=AUTHORITIES.front_proxy.certificate,
    kubelet_client=CERTIFICATES.front_proxy,
)


def _api_server(
    *,
    shared: bool,
    settings: ApiServerSettings | None = None,
    egress: Egress | None = None,
    published_url: str | None = None,
) -> Component:
    access = EtcdAccess(("https://127.0.0.1:2379",), AUTHORITIES.etcd.certificate, CERTIFICATES.etcd_client)
    return api_server_component(
        "apiserver-a",
        address=ADDRESS,
        authorities=AUTHORITIES,
        certificates=CERTIFICATES,
        etcd=access,
        etcd_prefix="/clusters/a",
        etcd_shared=shared,
        settings=settings,
        egress=egress,
        published_url=published_url,
    )


def _etcd() -> Component:
    assert CERTIFICATES.etcd_server is not None
    return etcd_component("etcd-a", address=ADDRESS, ca=AUTHORITIES.etcd.certificate, server=CERTIFICATES.etcd_server)


@pytest.mark.parametrize("component", [_api_server(shared=True), _api_server(shared=False), _etcd()])
def test_secrets_are_in_files_only(component: Component) -> None:
    secrets = [file.content.decode() for file in component.files.values() if b"PRIVATE KEY" in file.content]
    assert secrets
    public = [*component.args, *component.env.values(), repr(component)]
    assert not [text for text in public for secret in secrets if secret in text or "PRIVATE KEY" in text]


def test_equal_arguments_give_equal_descriptions() -> None:
    assert _api_server(shared=True) == _api_server(shared=True)
    assert _etcd() == _etcd()


_FOR_CLASSES_TOO: Final = {"kubelet-preferred-address-types"}
_ADDED_TO: Final = {"enable-admission-plugins", "feature-gates"}
"""Flags with lists, to which kube-apiserver adds the values of each repetition."""


def test_managed_flags_include_every_flag_kplane_sets() -> None:
    policy = AuditPolicy.model_validate({"rules": [{"level": "Metadata"}]})
    everything = _api_server(shared=True, settings=ApiServerSettings(audit_policy=policy))
    flags = {argument.removeprefix("--").partition("=")[0] for argument in everything.args}
    assert flags - _ADDED_TO <= set(MANAGED_FLAGS)


def test_class_flags_follow_flags_of_kplane() -> None:
    settings = ApiServerSettings(extra_args=["--max-requests-inflight=7"])
    assert _api_server(shared=True, settings=settings).args[-1] == "--max-requests-inflight=7"


@pytest.mark.parametrize(
    ("published_url", "flags", "expected"),
    [
        (None, [], []),
        ("https://acme.example.org:8443", [], ["https://acme.example.org:8443/openid/v1/jwks"]),
        ("https://acme.example.org", ["--external-hostname=keys.example.org"], []),
        ("https://acme.example.org", ["--service-account-jwks-uri=https://k/jwks"], ["https://k/jwks"]),
    ],
)
def test_keys_of_tokens_are_at_host_name_unless_class_decides(
    published_url: str | None, flags: list[str], expected: list[str]
) -> None:
    settings = ApiServerSettings(extra_args=flags)
    arguments = _api_server(shared=True, settings=settings, published_url=published_url).args
    prefix = "--service-account-jwks-uri="
    assert [flag.removeprefix(prefix) for flag in arguments if flag.startswith(prefix)] == expected


@pytest.mark.parametrize("shared", [True, False])
def test_memory_setting_of_class_determines_gogc(*, shared: bool) -> None:
    def percent(settings: ApiServerSettings | None) -> int:
        return int(_api_server(shared=shared, settings=settings).env["GOGC"])

    small, balanced, large = (percent(ApiServerSettings(memory=memory)) for memory in ApiServerMemory)
    assert small < balanced == percent(None) == 50 < large


def test_authentication_and_encryption_reload_but_audit_does_not() -> None:
    files = _api_server(
        shared=True,
        settings=ApiServerSettings(audit_policy=AuditPolicy.model_validate({"rules": [{"level": "Metadata"}]})),
    ).files
    assert {name: files[name].reloaded for name in ("authentication.yaml", "encryption.yaml", "audit.yaml")} == {
        "authentication.yaml": True,
        "encryption.yaml": True,
        "audit.yaml": False,
    }


def test_api_server_compacts_dedicated_etcd_only() -> None:
    assert "--etcd-compaction-interval=0" in _api_server(shared=True).args
    assert "--etcd-compaction-interval=0" not in _api_server(shared=False).args


def _certificates(previous: TenantCertificates | None, *, hosts: Sequence[str]) -> TenantCertificates:
    return TenantCertificates.renewed(
        previous,
        authorities=AUTHORITIES,
        hosts=serving_hosts(ADDRESS),
        etcd_authority=AUTHORITIES.etcd,
        etcd_user="a",
        controllers_user=CONTROLLERS_USER,
        egress_hosts=hosts,
        now=dt.datetime.now(dt.UTC),
    )


def test_egress_proxy_certificate_exists_only_with_egress_hosts() -> None:
    closed = _certificates(None, hosts=[])
    opened = _certificates(closed, hosts=["egress-proxy.kplane-cp-a.svc"])
    assert opened.egress_proxy is not None
    assert hosts_of(opened.egress_proxy.certificate) == {"egress-proxy.kplane-cp-a.svc"}
    assert issued_by(opened.egress_proxy.certificate, authority=AUTHORITIES.front_proxy)
    assert TenantCertificates.from_secret(opened.to_secret()) == opened
    assert _certificates(opened, hosts=["egress-proxy.kplane-cp-a.svc"]) is opened
    assert _certificates(opened, hosts=["127.0.0.1"]).egress_proxy != opened.egress_proxy
    assert _certificates(opened, hosts=[]) == closed


def test_kubelet_client_certificate_exists_only_with_egress_hosts() -> None:
    closed = _certificates(None, hosts=[])
    opened = _certificates(closed, hosts=["127.0.0.1"])
    assert closed.kubelet_client is None
    assert opened.kubelet_client is not None
    # Joining nodes receive the serving CA. The API server itself accepts no client certificate of this CA.
    assert issued_by(opened.kubelet_client.certificate, authority=AUTHORITIES.serving)
    assert not issued_by(opened.kubelet_client.certificate, authority=AUTHORITIES.client)
    assert user_of(opened.kubelet_client.certificate) == KUBELET_CLIENT_USER
    assert TenantCertificates.from_secret(opened.to_secret()) == opened
    assert _certificates(opened, hosts=["127.0.0.1"]) is opened


def test_egress_proxy_is_limited_to_allowed_destinations() -> None:
    server = _certificates(None, hosts=["127.0.0.1"]).egress_proxy
    assert server is not None
    component = proxy_component(
        "egress-a",
        program=ProxyProgram("egress-proxy"),
        address=Address(host="egress-proxy.kplane-cp-a.svc", ports={"egress": 8132}, bind="0.0.0.0"),
        destinations=[
            Destination(cidr="10.20.0.0/16", ports=[443, 10250]),
            Destination(cidr="fd00:20::/64", ports=[443]),
        ],
        server=server,
        ca=AUTHORITIES.front_proxy.certificate,
        reached_by="apiserver-a",
    )
    assert {"--listen=0.0.0.0:8132", "--allow=10.20.0.0/16=443,10250", "--allow=fd00:20::/64=443"} < {*component.args}
    assert component.reached_by == ("apiserver-a",)
    assert component.reaches == (
        Reach(port=443, network="10.20.0.0/16"),
        Reach(port=10250, network="10.20.0.0/16"),
        Reach(port=443, network="fd00:20::/64"),
    )


def test_order_of_destinations_and_ports_does_not_change_egress_proxy() -> None:
    server = _certificates(None, hosts=["127.0.0.1"]).egress_proxy
    assert server is not None

    def component(*destinations: Destination) -> Component:
        return proxy_component(
            "egress-a",
            program=ProxyProgram("egress-proxy"),
            address=Address(host="127.0.0.1", ports={"egress": 8132}),
            destinations=destinations,
            server=server,
            ca=AUTHORITIES.front_proxy.certificate,
            reached_by="apiserver-a",
        )

    networks = "10.20.0.0/16", "10.30.0.0/16"
    one = component(*(Destination(cidr=cidr, ports=[443, 10250]) for cidr in networks))
    other = component(*(Destination(cidr=cidr, ports=[10250, 443, 443]) for cidr in reversed(networks)))
    split = component(*(Destination(cidr=cidr, ports=[port]) for port in (443, 10250) for cidr in networks))
    assert one == other == split != component(Destination(cidr=networks[0], ports=[443, 10250]))


def test_api_server_reaches_its_etcd_and_its_egress_proxy() -> None:
    closed, opened = _api_server(shared=True, egress=Egress()), _api_server(shared=True, egress=Egress(ACCESS))
    assert closed.reaches == (Reach(port=2379),)
    assert opened.reaches == (Reach(port=2379), Reach(port=8132, component="egress-a"))
    assert b"https://[::1]:8132" in opened.files["egress.yaml"].content
    for component in (closed, opened):
        selections = yaml.safe_load(component.files["egress.yaml"].content)["egressSelections"]
        assert {selection["name"] for selection in selections} == {"controlplane", "cluster"}
        assert {selection["connection"]["proxyProtocol"] for selection in selections} == {"HTTPConnect"}
        # The API server reads these files once, so a change of any file restarts it.
        assert not any(file.reloaded for name, file in component.files.items() if name.startswith("egress"))


def test_api_server_presents_reloadable_certificate_to_kubelets() -> None:
    closed, opened = _api_server(shared=True, egress=Egress()), _api_server(shared=True, egress=Egress(ACCESS))
    flags = {argument.removeprefix("--").partition("=")[0] for argument in opened.args if "kubelet" in argument}
    assert flags == {"kubelet-client-certificate", "kubelet-client-key", "kubelet-preferred-address-types"}
    assert flags - _FOR_CLASSES_TOO <= set(MANAGED_FLAGS)
    assert not any("kubelet" in argument for argument in closed.args)
    files = {name: file for name, file in opened.files.items() if name.startswith("kubelet")}
    assert {*files} == {"kubelet-client.crt", "kubelet-client.key"}
    assert all(file.reloaded for file in files.values())


def test_class_replaces_preferred_address_types_of_kubelets() -> None:
    flag = "--kubelet-preferred-address-types=Hostname"
    opened = _api_server(shared=True, egress=Egress(ACCESS), settings=ApiServerSettings(extra_args=[flag]))
    assert [argument for argument in opened.args if "address-types" in argument] == [flag]


_PATHS = st.one_of(
    st.sampled_from(["a", "aa", "a-b", "a-", "clusters", "registry", "0", "a0"]),
    st.text(alphabet=string.ascii_lowercase + string.digits + "-", min_size=1, max_size=63),
)


@given(_PATHS, _PATHS)
def test_prefixes_of_two_cluster_paths_never_overlap(one: str, other: str) -> None:
    try:
        prefixes = key_prefix(one), key_prefix(other)
    except KeyspaceError:
        return
    assert one == other or not (prefixes[0].startswith(prefixes[1]) or prefixes[1].startswith(prefixes[0]))


@pytest.mark.parametrize("path", ["", "a/b", "..", "a/", "/", "A", "a_b", "a.b", "-a", "x" * 64, "a\n"])
def test_key_prefix_rejects_invalid_cluster_path(path: str) -> None:
    with pytest.raises(KeyspaceError, match="clusterPath"):
        key_prefix(path)
