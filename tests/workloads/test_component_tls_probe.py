"""Readiness over TLS: the probe verifies the server certificate with the CA of the component."""

from __future__ import annotations

import datetime as dt
import ipaddress

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kplane.workloads import FILES, File, Phase


def issue(name: str, *, address: str | None = None, issuer: tuple | None = None) -> tuple:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    parent, parent_key = issuer or (None, key)
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(parent.subject if parent else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(parent_key.public_key()), critical=False)
        .add_extension(
            x509.KeyUsage(
                digital_signature=True,
                key_cert_sign=issuer is None,
                crl_sign=issuer is None,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
    )
    if address:
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(parent_key, hashes.SHA256()), key


def pem(certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def pem_key(key) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


@pytest.fixture(scope="module")
def authorities() -> dict[str, tuple]:
    return {name: issue(name) for name in ("ours", "others")}


@pytest.mark.parametrize(
    ("issuer", "address", "problem"),
    [
        ("ours", "127.0.0.1", None),
        ("others", "127.0.0.1", "certificate verify failed"),
        ("ours", "127.0.0.2", "IP address mismatch"),
    ],
)
async def test_tls_probe_verifies_ca_and_address_of_certificate(
    runtime, sandbox, authorities, issuer, address, problem
) -> None:
    certificate, key = issue("server", address=address, issuer=authorities[issuer])
    component = await sandbox.web(
        runtime,
        "web",
        probe={"ca": "ca.crt"},
        args=(f"{FILES}/tls.crt", f"{FILES}/tls.key"),
        files={
            "ca.crt": File(pem(authorities["ours"][0])),
            "tls.crt": File(pem(certificate)),
            "tls.key": File(pem_key(key)),
        },
    )
    await runtime.apply(component)
    if problem is None:
        await sandbox.phase(runtime, "web", Phase.READY)
    else:
        await sandbox._eventually(lambda: runtime.state("web").message, lambda message: problem in message)
        assert runtime.state("web").phase is Phase.STARTING
