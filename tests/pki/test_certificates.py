"""Certificates: verification by TLS, reuse while they are valid, and renewal when they are due."""

from __future__ import annotations

import datetime as dt
import ssl
from typing import Any

import pytest
import yaml
from cryptography import x509

from kplane.pki.authorities import CONTROLLERS_USER, TenantAuthorities, TenantCertificates
from kplane.pki.errors import CredentialsInvalid
from kplane.pki.kubeconfig import render_kubeconfig
from kplane.pki.primitives import (
    KeyPair,
    create_authority,
    expiry,
    issue_client,
    issue_serving,
    public_key,
    renewal_due,
    user_of,
)


def now() -> dt.datetime:
    """Return the current time. A run of all tests takes longer than the backdating of certificates."""
    return dt.datetime.now(dt.UTC)


def _context(side: int, *, pair: KeyPair, ca: KeyPair, directory: Any, strict: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    file = directory / f"{side}.pem"
    file.write_bytes(pair.certificate + pair.key)
    context.load_cert_chain(file)
    context.load_verify_locations(cadata=ca.certificate.decode())
    context.verify_mode = ssl.CERT_REQUIRED
    if strict:
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext, *, host: str) -> None:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        server.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server, server_hostname=host),
    ]
    for _ in range(10):
        waiting = 0
        for end in reversed(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                waiting += 1
        if not waiting:
            return
    raise AssertionError("the handshake did not end")


@pytest.mark.parametrize("strict", [False, True])
def test_server_and_client_trust_each_other(tmp_path: Any, strict: bool) -> None:
    servers, clients = create_authority("servers"), create_authority("clients")
    serving = issue_serving(servers, common_name="api", hosts=["127.0.0.1", "kubernetes.default.svc"])
    client = issue_client(clients, user="kplane:admin", groups=["system:masters"])
    ours = _context(ssl.PROTOCOL_TLS_SERVER, pair=serving, ca=clients, directory=tmp_path, strict=strict)
    theirs = _context(ssl.PROTOCOL_TLS_CLIENT, pair=client, ca=servers, directory=tmp_path, strict=strict)

    _handshake(ours, theirs, host="127.0.0.1")
    _handshake(ours, theirs, host="kubernetes.default.svc")
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(ours, theirs, host="other.example")


def test_serving_certificate_does_not_authenticate_a_client(tmp_path: Any) -> None:
    authority = create_authority("both")
    serving = issue_serving(authority, common_name="system:masters", hosts=["127.0.0.1"])
    server = _context(ssl.PROTOCOL_TLS_SERVER, pair=serving, ca=authority, directory=tmp_path, strict=True)
    client = _context(ssl.PROTOCOL_TLS_CLIENT, pair=serving, ca=authority, directory=tmp_path, strict=True)
    with pytest.raises(ssl.SSLError):
        _handshake(server, client, host="127.0.0.1")


def test_renewal_is_due_after_two_thirds_of_lifetime() -> None:
    certificate = issue_client(create_authority("x"), user="u", lifetime=dt.timedelta(hours=30)).certificate
    assert not renewal_due(certificate, now=now() + dt.timedelta(hours=19))
    assert renewal_due(certificate, now=now() + dt.timedelta(hours=21))
    assert expiry(certificate) - now() < dt.timedelta(hours=30, minutes=1)


def _certificates(previous: TenantCertificates | None, **changes: Any) -> TenantCertificates:
    arguments: dict[str, Any] = {
        "authorities": AUTHORITIES,
        "hosts": ["127.0.0.1", "kubernetes"],
        "etcd_authority": ETCD,
        "etcd_user": "a",
        "controllers_user": CONTROLLERS_USER,
        "now": now(),
    }
    return TenantCertificates.renewed(previous, **(arguments | changes))


AUTHORITIES = TenantAuthorities.create("a")
ETCD = create_authority("etcd")


def test_only_due_or_changed_certificates_are_reissued() -> None:
    first = _certificates(None)
    assert _certificates(first) is first
    assert _certificates(TenantCertificates.from_secret(first.to_secret())) == first

    later = _certificates(first, now=now() + dt.timedelta(days=300))
    assert {later.api_server, later.etcd_client, later.controllers}.isdisjoint(
        {first.api_server, first.etcd_client, first.controllers}
    )

    moved = _certificates(first, hosts=["127.0.0.1", "new.example"])
    assert moved.api_server != first.api_server
    assert moved.controllers == first.controllers

    other_etcd = _certificates(first, etcd_authority=create_authority("other"))
    assert other_etcd.etcd_client != first.etcd_client
    assert other_etcd.api_server == first.api_server

    other_user = _certificates(first, etcd_user="b")
    assert other_user.etcd_client != first.etcd_client
    assert other_user.api_server == first.api_server

    other_controllers = _certificates(first, controllers_user="c")
    assert user_of(other_controllers.controllers.certificate) == "c"
    assert other_controllers.etcd_client == first.etcd_client

    dedicated = _certificates(first, etcd_hosts=["127.0.0.1"])
    assert dedicated.etcd_server is not None
    assert TenantCertificates.from_secret(dedicated.to_secret()) == dedicated


@pytest.mark.parametrize("missing", ["client-ca.key", "encryption.key"])
def test_authorities_round_trip_and_name_a_missing_entry(missing: str) -> None:
    data = AUTHORITIES.to_secret()
    assert TenantAuthorities.from_secret(data) == AUTHORITIES
    del data[missing]
    with pytest.raises(CredentialsInvalid, match=missing.replace(".", r"\.")):
        TenantAuthorities.from_secret(data)


@pytest.mark.parametrize(
    ("entry", "content"),
    [
        ("client-ca.crt", b""),
        ("client-ca.crt", AUTHORITIES.serving.certificate),
        ("client-ca.key", b"damaged"),
        ("client-ca.key", AUTHORITIES.serving.key),
        ("sa.key", b"damaged"),
        ("sa.key", AUTHORITIES.serving.certificate),
        ("encryption.key", b"too short"),
    ],
)
def test_damaged_entry_is_named_in_the_error(entry: str, content: bytes) -> None:
    with pytest.raises(CredentialsInvalid, match=entry.replace(".", r"\.")):
        TenantAuthorities.from_secret(AUTHORITIES.to_secret() | {entry: content})


def test_repr_shows_no_private_key() -> None:
    shown = repr(AUTHORITIES) + repr(_certificates(None))
    assert "PRIVATE KEY" not in shown


def test_authorities_accept_a_name_of_253_characters() -> None:
    assert TenantAuthorities.create("x" * 253).serving.certificate


def test_damaged_key_or_certificate_raises_credentials_invalid() -> None:
    with pytest.raises(CredentialsInvalid):
        public_key(b"not a key")
    with pytest.raises(CredentialsInvalid):
        expiry(b"not a certificate")


def test_kubeconfig_carries_server_ca_and_one_credential() -> None:
    document = yaml.safe_load(render_kubeconfig(server="https://host:1", ca=b"ca", token="secret"))
    assert document["clusters"] == [
        {"name": "controlplane", "cluster": {"server": "https://host:1", "certificate-authority-data": "Y2E="}}
    ]
    assert document["users"] == [{"name": "admin", "user": {"token": "secret"}}]
    assert document["current-context"] == "controlplane"
    client = KeyPair(b"cert", b"key")
    document = yaml.safe_load(render_kubeconfig(server="https://host:1", ca=None, client=client))
    assert document["users"][0]["user"] == {"client-certificate-data": "Y2VydA==", "client-key-data": "a2V5"}
    assert document["clusters"][0]["cluster"] == {"server": "https://host:1"}


def test_renewal_is_due_before_start_of_validity() -> None:
    certificate = issue_client(create_authority("x"), user="u").certificate
    assert not renewal_due(certificate, now=now() - dt.timedelta(minutes=4))
    assert renewal_due(certificate, now=now() - dt.timedelta(minutes=6))


def test_certificates_from_the_future_are_all_replaced() -> None:
    first = _certificates(None)
    second = _certificates(first, now=now() - dt.timedelta(days=2))
    assert not set(first.to_secret().values()) & set(second.to_secret().values())


def test_authority_stays_valid_when_the_clock_is_set_back() -> None:
    authority = create_authority("x")
    loaded = x509.load_pem_x509_certificate(authority.certificate)
    assert loaded.not_valid_before_utc < now() - dt.timedelta(days=29)
    assert not renewal_due(authority.certificate, now=now() - dt.timedelta(days=2))
    assert not renewal_due(authority.certificate, now=now() + dt.timedelta(days=2400))
