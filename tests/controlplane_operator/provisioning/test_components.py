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


def _api_server(*, shared: bool, settings: ApiServerSettings | None = None, egress: Egress | None = None) -> Component:
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
"""Lists to which kube-apiserver adds what it is told again."""


def test_no_class_can_set_a_flag_that_kplane_sets() -> None:
    policy = AuditPolicy.model_validate({"rules": [{"level": "Metadata"}]})
    everything = _api_server(shared=True, settings=ApiServerSettings(audit_policy=policy))
    ours = {argument.removeprefix("--").partition("=")[0] for argument in everything.args}
    assert ours - _ADDED_TO <= set(MANAGED_FLAGS)


def test_flags_of_a_class_come_after_those_of_kplane() -> None:
    settings = ApiServerSettings(extra_args=["--max-requests-inflight=7"])
    assert _api_server(shared=True, settings=settings).args[-1] == "--max-requests-inflight=7"


@pytest.mark.parametrize("shared", [True, False])
def test_a_class_says_whether_memory_or_processor_time_is_saved(*, shared: bool) -> None:
    def percent(settings: ApiServerSettings | None) -> int:
        return int(_api_server(shared=shared, settings=settings).env["GOGC"])

    small, balanced, large = (percent(ApiServerSettings(memory=each)) for each in ApiServerMemory)
    assert small < balanced == percent(None) == 50 < large


def test_logins_and_encryption_change_without_a_new_start_and_the_audit_policy_with_one() -> None:
    files = _api_server(
        shared=True,
        settings=ApiServerSettings(audit_policy=AuditPolicy.model_validate({"rules": [{"level": "Metadata"}]})),
    ).files
    assert {name: files[name].reloaded for name in ("authentication.yaml", "encryption.yaml", "audit.yaml")} == {
        "authentication.yaml": True,
        "encryption.yaml": True,
        "audit.yaml": False,
    }


def test_only_a_shared_etcd_is_left_uncompacted() -> None:
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


def test_a_proxy_has_a_certificate_while_there_is_one() -> None:
    closed = _certificates(None, hosts=[])
    opened = _certificates(closed, hosts=["egress-proxy.kplane-cp-a.svc"])
    assert opened.egress_proxy is not None
    assert hosts_of(opened.egress_proxy.certificate) == {"egress-proxy.kplane-cp-a.svc"}
    assert issued_by(opened.egress_proxy.certificate, authority=AUTHORITIES.front_proxy)
    assert TenantCertificates.from_secret(opened.to_secret()) == opened
    assert _certificates(opened, hosts=["egress-proxy.kplane-cp-a.svc"]) is opened
    assert _certificates(opened, hosts=["127.0.0.1"]).egress_proxy != opened.egress_proxy
    assert _certificates(opened, hosts=[]) == closed


def test_an_api_server_has_a_certificate_for_kubelets_while_it_has_a_way_to_them() -> None:
    closed = _certificates(None, hosts=[])
    opened = _certificates(closed, hosts=["127.0.0.1"])
    assert closed.kubelet_client is None
    assert opened.kubelet_client is not None
    # Nodes that join are told the serving CA. The API server itself takes no user of it.
    assert issued_by(opened.kubelet_client.certificate, authority=AUTHORITIES.serving)
    assert not issued_by(opened.kubelet_client.certificate, authority=AUTHORITIES.client)
    assert user_of(opened.kubelet_client.certificate) == KUBELET_CLIENT_USER
    assert TenantCertificates.from_secret(opened.to_secret()) == opened
    assert _certificates(opened, hosts=["127.0.0.1"]) is opened


def test_a_proxy_is_held_to_what_the_class_allows() -> None:
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


def test_an_api_server_reaches_its_etcd_and_its_proxy() -> None:
    closed, opened = _api_server(shared=True, egress=Egress()), _api_server(shared=True, egress=Egress(ACCESS))
    assert closed.reaches == (Reach(port=2379),)
    assert opened.reaches == (Reach(port=2379), Reach(port=8132, component="egress-a"))
    assert b"https://[::1]:8132" in opened.files["egress.yaml"].content
    for component in (closed, opened):
        selections = yaml.safe_load(component.files["egress.yaml"].content)["egressSelections"]
        assert {each["name"] for each in selections} == {"controlplane", "cluster"}
        assert {each["connection"]["proxyProtocol"] for each in selections} == {"HTTPConnect"}
        # It reads them once, so a change of any starts it again.
        assert not any(file.reloaded for name, file in component.files.items() if name.startswith("egress"))


def test_an_api_server_shows_kubelets_its_certificate_and_reads_it_again() -> None:
    closed, opened = _api_server(shared=True, egress=Egress()), _api_server(shared=True, egress=Egress(ACCESS))
    given = {argument.removeprefix("--").partition("=")[0] for argument in opened.args if "kubelet" in argument}
    assert given == {"kubelet-client-certificate", "kubelet-client-key", "kubelet-preferred-address-types"}
    assert given - _FOR_CLASSES_TOO <= set(MANAGED_FLAGS)
    assert not any("kubelet" in argument for argument in closed.args)
    files = {name: file for name, file in opened.files.items() if name.startswith("kubelet")}
    assert {*files} == {"kubelet-client.crt", "kubelet-client.key"}
    assert all(file.reloaded for file in files.values())


def test_a_class_says_which_address_of_a_node_comes_first() -> None:
    asked = "--kubelet-preferred-address-types=Hostname"
    opened = _api_server(shared=True, egress=Egress(ACCESS), settings=ApiServerSettings(extra_args=[asked]))
    assert [argument for argument in opened.args if "address-types" in argument] == [asked]


_PATHS = st.one_of(
    st.sampled_from(["a", "aa", "a-b", "a-", "clusters", "registry", "0", "a0"]),
    st.text(alphabet=string.ascii_lowercase + string.digits + "-", min_size=1, max_size=63),
)


@given(_PATHS, _PATHS)
def test_no_key_is_below_two_prefixes(one: str, other: str) -> None:
    try:
        prefixes = key_prefix(one), key_prefix(other)
    except KeyspaceError:
        return
    assert one == other or not (prefixes[0].startswith(prefixes[1]) or prefixes[1].startswith(prefixes[0]))


@pytest.mark.parametrize("path", ["", "a/b", "..", "a/", "/", "A", "a_b", "a.b", "-a", "x" * 64, "a\n"])
def test_what_is_no_path_segment_gets_no_prefix(path: str) -> None:
    with pytest.raises(KeyspaceError, match="clusterPath"):
        key_prefix(path)
