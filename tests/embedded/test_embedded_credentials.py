"""Certificates of a management cluster, which are issued at its start and never renewed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

from kplane.embedded.credentials import OPERATOR_USER, Credentials
from kplane.pki.primitives import valid_from
from kplane.provider import ClusterConfig

HOST = "127.0.0.1"


def certificates_of(credentials: Credentials) -> Iterator[bytes]:
    """Return each certificate that a running management cluster uses."""
    for name, content in credentials.certificates(hosts=(HOST,)).to_secret().items():
        if name.endswith(".crt"):
            yield content
    yield credentials.controller_manager().certificate
    yield credentials.tenants_etcd().certificate
    yield (credentials.tenants_etcd_directory / "client.crt").read_bytes()
    yield (credentials.gateway() / "tls.crt").read_bytes()
    config = ClusterConfig.from_kubeconfig(credentials.kubeconfig(f"https://{HOST}", user=OPERATOR_USER))
    assert config.client_certificate is not None
    yield config.client_certificate


def test_certificates_stay_valid_when_clock_is_set_back_two_days(tmp_path: Path) -> None:
    past = dt.datetime.now(dt.UTC) - dt.timedelta(days=2)
    starts = [valid_from(certificate) for certificate in certificates_of(Credentials(tmp_path, host=HOST))]
    assert len(starts) == 10
    assert max(starts) < past
