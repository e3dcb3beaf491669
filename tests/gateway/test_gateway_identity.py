"""User and groups of a client certificate."""

from __future__ import annotations

import datetime as dt
from typing import Any
from urllib.parse import quote

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kplane.gateway.identity import NotVerified, Verifier, chain_of, verify
from kplane.pki.primitives import create_authority, issue_client, issue_serving

# Tests may run long after the import of this file. Certificates are valid from five minutes before their creation.
NOW = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
OURS, THEIRS = create_authority("tenant"), create_authority("tenant")


def test_verify_returns_user_and_groups_of_subject() -> None:
    pair = issue_client(OURS, user="jane", groups=("sales", "it"))
    identity = verify(pair.certificate, authorities=OURS.certificate, now=NOW)
    assert (identity.user, sorted(identity.groups)) == ("jane", ["it", "sales"])
    assert identity.credential.startswith("X509SHA256=")


def test_verify_accepts_certificate_of_any_authority() -> None:
    pair = issue_client(OURS, user="jane")
    assert verify(pair.certificate, authorities=THEIRS.certificate + OURS.certificate, now=NOW).user == "jane"


@pytest.mark.parametrize(
    ("chain", "now"),
    [
        pytest.param(issue_client(THEIRS, user="jane").certificate, NOW, id="of another tenant with a CA of that name"),
        pytest.param(issue_client(THEIRS, user="jane").certificate + OURS.certificate, NOW, id="with our CA behind it"),
        pytest.param(issue_serving(OURS, common_name="jane", hosts=["h"]).certificate, NOW, id="of a server"),
        pytest.param(issue_client(OURS, user="jane").certificate, NOW + dt.timedelta(days=400), id="ended"),
        pytest.param(issue_client(OURS, user="jane").certificate, NOW - dt.timedelta(days=1), id="not begun"),
        pytest.param(b"", NOW, id="nothing"),
        pytest.param(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", NOW, id="damaged"),
        pytest.param(issue_client(OURS, user="jane").certificate * 10, NOW, id="too long"),
    ],
)
def test_verify_refuses_invalid_chain(chain: bytes, now: dt.datetime) -> None:
    with pytest.raises(NotVerified):
        verify(chain, authorities=OURS.certificate, now=now)


def test_verify_refuses_certificate_issued_by_client() -> None:
    """A client certificate is no authority, and extends no chain."""
    pair = issue_client(OURS, user="jane")
    forged = issue_client(pair, user="admin", groups=("system:masters",))
    with pytest.raises(NotVerified):
        verify(forged.certificate + pair.certificate, authorities=OURS.certificate, now=NOW)


@pytest.mark.parametrize(
    ("user", "group"),
    [
        (" admin", "g"),
        ("admin\t", "g"),
        ("jane", " system:masters"),
        ("jane", "system:masters "),
        ("jane\r\nX-Remote-Group: system:masters", "g"),
        ("jane", "g\nX-Remote-User: admin"),
        ("jane\x00", "g"),
    ],
)
def test_verify_refuses_name_that_header_would_change(user: str, group: str) -> None:
    """`system:masters` with a leading space is another group, which the admission of CSRs does not refuse."""
    pair = issue_client(OURS, user=user, groups=(group,))
    with pytest.raises(NotVerified, match="cannot be handed on"):
        verify(pair.certificate, authorities=OURS.certificate, now=NOW)


def test_verify_refuses_empty_subject() -> None:
    with pytest.raises(NotVerified):
        verify(_signed(x509.Name([])), authorities=OURS.certificate, now=NOW)


def _signed(subject: x509.Name) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.load_pem_x509_certificate(OURS.certificate)
    issuer_key: Any = serialization.load_pem_private_key(OURS.key, password=None)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - dt.timedelta(minutes=5))
        .not_valid_after(NOW + dt.timedelta(hours=1))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    return builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def test_verify_accepts_certificate_without_host_name() -> None:
    """kube-controller-manager signs certificates without a host name, and the API server requires none."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "system:node:a")])
    assert verify(_signed(subject), authorities=OURS.certificate, now=NOW).user == "system:node:a"


def test_verifier_result_is_valid_for_its_authority_until_expiry() -> None:
    now = [dt.datetime.now(dt.UTC)]
    verifier = Verifier(clock=lambda: now[0])
    pair = issue_client(OURS, user="jane", lifetime=dt.timedelta(minutes=2))
    assert verifier.verify(pair.certificate, authorities=OURS.certificate).user == "jane"
    with pytest.raises(NotVerified):
        verifier.verify(pair.certificate, authorities=THEIRS.certificate)
    now[0] += dt.timedelta(minutes=1)
    assert verifier.verify(pair.certificate, authorities=OURS.certificate).user == "jane"
    now[0] += dt.timedelta(minutes=2)
    with pytest.raises(NotVerified):
        verifier.verify(pair.certificate, authorities=OURS.certificate)


def test_chain_of_reads_header_of_envoy() -> None:
    pem = issue_client(OURS, user="jane").certificate
    header = f'Hash=ab12;Chain="{quote(pem.decode(), safe="")}"'
    assert chain_of(header) == pem
    for absent in ("", "Hash=ab12", "By=x;Hash=y"):
        with pytest.raises(NotVerified):
            chain_of(absent)
