"""Certificates of the shared etcd: their names and usages, and their renewal when they are due or unusable."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kplane.controlplane_operator.shared_etcd.certificates import (
    authority_of,
    create_credentials,
    renew_credentials,
    renew_server,
    server_hosts,
)
from kplane.pki.errors import CredentialsInvalid
from kplane.pki.primitives import create_authority, expiry, issue_client, issue_serving


def now() -> datetime:
    """Return the current time. A run of all tests takes longer than the backdating of certificates."""
    return datetime.now(UTC)


HOSTS = server_hosts("kplane-etcd", namespace="kplane-system")


def later(days: float) -> datetime:
    return now() + timedelta(days=days)


def test_member_certificate_names_every_address_of_members() -> None:
    authority = create_authority("etcd")
    certificate = x509.load_pem_x509_certificate(
        renew_server({}, authority=authority, hosts=HOSTS, now=now())["server.crt"]
    )

    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [
        "localhost",
        "kplane-etcd.kplane-system.svc",
        "kplane-etcd-0.kplane-etcd-peers.kplane-system.svc",
        "kplane-etcd-1.kplane-etcd-peers.kplane-system.svc",
        "kplane-etcd-2.kplane-etcd-peers.kplane-system.svc",
    ]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usages) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert [name.value for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == ["root"]


def test_authority_is_valid_ten_years_and_leaf_one_year() -> None:
    credentials = create_credentials("kplane-etcd")
    server = renew_server({}, authority=authority_of(credentials), hosts=HOSTS, now=now())
    assert set(credentials) == {"ca.crt", "ca.key", "client.crt", "client.key"}
    assert set(server) == {"ca.crt", "server.crt", "server.key"}
    for certificate, days in (
        (credentials["ca.crt"], 3650),
        (credentials["client.crt"], 365),
        (server["server.crt"], 365),
    ):
        assert abs(expiry(certificate) - later(days)) < timedelta(minutes=1)


def test_leaf_certificates_are_renewed_after_two_thirds_of_life() -> None:
    credentials = create_credentials("kplane-etcd")
    authority = authority_of(credentials)
    server = renew_server({}, authority=authority, hosts=HOSTS, now=now())

    assert renew_credentials(credentials, now=later(243)) == credentials
    assert renew_server(server, authority=authority, hosts=HOSTS, now=later(243)) == server

    renewed = renew_credentials(credentials, now=later(244))
    assert authority_of(renewed) == authority
    assert renewed["client.crt"] != credentials["client.crt"]
    assert renew_server(server, authority=authority, hosts=HOSTS, now=later(244))["server.crt"] != server["server.crt"]


def test_unusable_server_certificate_is_replaced() -> None:
    authority, other = create_authority("etcd"), create_authority("etcd")
    good = renew_server({}, authority=authority, hosts=HOSTS, now=now())
    wrong_user = issue_serving(authority, common_name="etcd", hosts=HOSTS, client=True)
    for bad in (
        {name: content for name, content in good.items() if name != "server.key"},
        good | {"server.crt": b"garbage"},
        good | {"server.key": other.key},
        renew_server({}, authority=other, hosts=HOSTS, now=now()),
        renew_server({}, authority=authority, hosts=HOSTS[:-1], now=now()),
        good | {"server.crt": wrong_user.certificate, "server.key": wrong_user.key},
    ):
        renewed = renew_server(bad, authority=authority, hosts=HOSTS, now=now())
        assert renewed != bad
        assert renew_server(renewed, authority=authority, hosts=HOSTS, now=now()) == renewed
    assert renew_server(good | {"ca.crt": b""}, authority=authority, hosts=HOSTS, now=now()) == good


def test_missing_or_wrong_client_certificate_is_issued_for_root() -> None:
    authority = create_authority("mine")
    authority_data = {"ca.crt": authority.certificate, "ca.key": authority.key}
    spy = issue_client(authority, user="spy")
    for existing in (authority_data, authority_data | {"client.crt": spy.certificate, "client.key": spy.key}):
        credentials = renew_credentials(existing, now=now())
        assert authority_of(credentials) == authority
        assert x509.load_pem_x509_certificate(credentials["client.crt"]).subject.rfc4514_string() == "CN=root"


def test_damaged_authority_raises_credentials_invalid() -> None:
    credentials = create_credentials("kplane-etcd")
    for name, content, message in (
        ("ca.crt", b"garbage", "entries ca.crt and ca.key: not a PEM certificate"),
        ("ca.key", create_authority("other").key, "entries ca.crt and ca.key: certificate and key do not belong"),
    ):
        with pytest.raises(CredentialsInvalid, match=message):
            renew_credentials(credentials | {name: content}, now=now())
    del credentials["ca.key"]
    with pytest.raises(CredentialsInvalid, match=r"it has no entry ca\.key"):
        renew_credentials(credentials, now=now())


def test_future_certificates_are_replaced_by_same_authority() -> None:
    existing = create_credentials("etcd")
    authority = authority_of(existing)
    server = renew_server({}, authority=authority, hosts=HOSTS, now=now())
    before = later(-2)
    assert renew_server(server, authority=authority, hosts=HOSTS, now=before)["server.crt"] != server["server.crt"]
    renewed = renew_credentials(existing, now=before)
    assert renewed["client.crt"] != existing["client.crt"]
    assert renewed["ca.crt"] == existing["ca.crt"]
