"""Certificates between mcm and its instances, after a clock that was ahead has been corrected."""

from __future__ import annotations

import datetime as dt
import ssl
from pathlib import Path
from types import SimpleNamespace

import pytest

from kplane.mcm.describe import certificate
from kplane.mcm.describe.certificate import ReaderCertificate, ServingCertificate

HOST = "127.0.0.1"


class AheadClock(dt.datetime):
    """A clock that is two days ahead."""

    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> AheadClock:
        return super().now(tz) + dt.timedelta(days=2)


def context(
    purpose: ssl.Purpose, *, own: ServingCertificate | ReaderCertificate, trusted: bytes, file: Path
) -> ssl.SSLContext:
    """Return a TLS context that presents `own`, and requires a certificate that `trusted` has signed."""
    file.write_bytes(own.certificate + own.key)
    made = ssl.create_default_context(purpose, cadata=trusted.decode())
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_cert_chain(file)
    return made


def handshake(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """Complete a TLS handshake in memory. Raises SSLCertVerificationError if a side rejects the other's certificate."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=HOST),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while sides:
        for side in tuple(sides):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            sides.remove(side)


def test_certificates_are_valid_after_clock_is_set_back_two_days(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(certificate, "dt", SimpleNamespace(datetime=AheadClock, UTC=dt.UTC))
    serving, reader = ServingCertificate.create(host=HOST), ReaderCertificate.create()
    handshake(
        context(ssl.Purpose.SERVER_AUTH, own=reader, trusted=serving.certificate, file=tmp_path / "reader.pem"),
        context(ssl.Purpose.CLIENT_AUTH, own=serving, trusted=reader.certificate, file=tmp_path / "serving.pem"),
    )
