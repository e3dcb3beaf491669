"""One kube-controller-manager: its arguments, files and environment."""

from __future__ import annotations

import datetime as dt
import hashlib
import ipaddress
import re
from dataclasses import dataclass, field
from typing import Any, Final, Self

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from api.names import CA_KEY
from mcm.errors import ConfigurationError
from mcm.profiles import Profile, controllers_of
from provider import Cluster, ClusterConfig
from workloads import FILES, Address, Component, File, Lifetime, Port, Probe

__all__ = ["INSTANCE_PORTS", "ServingCertificate", "component_name", "instance_component"]

_HTTPS: Final = "https"
INSTANCE_PORTS: Final = (_HTTPS,)
"""What `Runtime.reserve` is asked for."""

_SERVICE_ACCOUNT_KEY: Final = "sa.key"
_SIGNING_CERTIFICATE: Final = "signing-ca.crt"
_SIGNING_KEY: Final = "signing-ca.key"

_ENVIRONMENT: Final = {"GOGC": "50", "GOMAXPROCS": "1"}
"""Idle instances cost memory, busy ones are few: see docs/measured.md."""


@dataclass(frozen=True, slots=True)
class ServingCertificate:
    """What instances serve /healthz with, so that mcm can tell its own instance from whatever else has the port."""

    certificate: bytes
    key: bytes = field(repr=False)

    @classmethod
    def create(cls, host: str) -> Self:
        """Create a self-signed certificate for one address; it lives as long as mcm does."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-controller-manager")])
        now = dt.datetime.now(dt.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(minutes=5))
            .not_valid_after(now + dt.timedelta(days=3650))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(_usage(), critical=True)
            .sign(key, hashes.SHA256())
        )
        return cls(
            certificate.public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
        )


def component_name(cluster: str) -> str:
    """Name an instance after its cluster: a DNS-1123 label, distinct for distinct clusters."""
    if len(cluster) <= 55 and "--" not in cluster and re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", cluster):
        return f"kcm-{cluster}"
    stem = re.sub(r"[^a-z0-9]+", "-", cluster.lower())[:40].strip("-") or "x"
    # Two hyphens mark a digest: no name of the first kind has them.
    return f"kcm-{stem}--{hashlib.sha256(cluster.encode()).hexdigest()[:8]}"


def instance_component(
    cluster: Cluster, *, profile: Profile, address: Address, serving: ServingCertificate
) -> Component:
    """Describe the instance for a cluster. Equal clusters give equal descriptions, up to renewed credentials.

    Credentials are files that kube-controller-manager reads again, so that their renewal restarts nothing. Raises
    ConfigurationError where the cluster came without a CA or without credentials.
    """
    config, data = cluster.config, cluster.credentials
    root_ca = data.get(CA_KEY) or config.ca_data
    if root_ca is None or config.ca_data is None:
        raise ConfigurationError(
            f"the kubeconfig of {cluster.name} has no certificate-authority-data; put the CA of {config.server} there"
        )
    service_account_key = data.get(_SERVICE_ACCOUNT_KEY)
    signing = (data.get(_SIGNING_CERTIFICATE), data.get(_SIGNING_KEY))
    controllers = controllers_of(
        profile, service_account_key=service_account_key is not None, signing_key=None not in signing
    )
    files = {
        "kubeconfig": File(_kubeconfig(config)),
        "ca.crt": File(config.ca_data, reloaded=True),
        "root-ca.crt": File(root_ca),
        "serving.crt": File(serving.certificate),
        "serving.key": File(serving.key),
        **_credential_files(cluster.name, config=config),
    }
    arguments = [
        f"--kubeconfig={FILES}/kubeconfig",
        f"--controllers={controllers}",
        f"--root-ca-file={FILES}/root-ca.crt",
        "--leader-elect=false",
        "--use-service-account-credentials=false",
        f"--bind-address={address.host}",
        f"--secure-port={address.ports[_HTTPS]}",
        f"--tls-cert-file={FILES}/serving.crt",
        f"--tls-private-key-file={FILES}/serving.key",
        # Health needs no authentication, and everything else on this port is refused without asking the tenant.
        "--authentication-skip-lookup=true",
        "--profiling=false",
    ]
    if service_account_key is not None:
        files["sa.key"] = File(service_account_key)
        arguments.append(f"--service-account-private-key-file={FILES}/sa.key")
    if signing[0] is not None and signing[1] is not None:
        files["signing-ca.crt"] = File(signing[0], reloaded=True)
        files["signing-ca.key"] = File(signing[1], reloaded=True)
        arguments += [
            f"--cluster-signing-cert-file={FILES}/signing-ca.crt",
            f"--cluster-signing-key-file={FILES}/signing-ca.key",
        ]
    return Component(
        name=component_name(cluster.name),
        program="kube-controller-manager",
        args=tuple(arguments),
        files=files,
        env=_ENVIRONMENT,
        ports=(Port(number=address.ports[_HTTPS], name=_HTTPS),),
        readiness=Probe(port=_HTTPS, path="/healthz", ca="serving.crt"),
        lifetime=Lifetime.BOUND,
        grace_seconds=10.0,
    )


def _credential_files(name: str, *, config: ClusterConfig) -> dict[str, File]:
    if config.client_certificate is not None and config.client_key is not None:
        # Both in one file, so that no moment has the certificate of one renewal and the key of another.
        return {"client.pem": File(config.client_certificate + b"\n" + config.client_key, reloaded=True)}
    if config.token is not None:
        return {"token": File(config.token.encode(), reloaded=True)}
    raise ConfigurationError(f"the kubeconfig of {name} has neither a client certificate nor a token for its user")


def _kubeconfig(config: ClusterConfig) -> bytes:
    """Render a kubeconfig that holds no secret: it names files beside it."""
    cluster: dict[str, Any] = {"server": config.server, "certificate-authority": "ca.crt"}
    if config.tls_server_name is not None:
        cluster["tls-server-name"] = config.tls_server_name
    if config.client_certificate is not None:
        user = {"client-certificate": "client.pem", "client-key": "client.pem"}
    else:
        user = {"tokenFile": "token"}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "controlplane", "cluster": cluster}],
        "users": [{"name": "controllers", "user": user}],
        "contexts": [{"name": "controlplane", "context": {"cluster": "controlplane", "user": "controllers"}}],
        "current-context": "controlplane",
    }
    return yaml.safe_dump(document, sort_keys=False).encode()


def _usage() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
