"""TLS contexts: keys that touch no disk, and never a prompt."""

from __future__ import annotations

import dataclasses
import os
import ssl
import traceback

import pytest
from cryptography.hazmat.primitives import serialization

from kplane.provider import Client, ClusterConfig, Unreachable
from kplane.provider.client.tls import fingerprint, require_usable, ssl_context
from kplane.provider.errors import KubeconfigError


@pytest.fixture
def config(tools):
    authority = tools.Authority()
    issued = authority.issue("client")
    return ClusterConfig(
        "https://127.0.0.1:1", ca_data=authority.pem, client_certificate=issued.certificate, client_key=issued.key
    )


def test_ssl_context_trusts_only_the_given_ca_and_verifies(config):
    context = ssl_context(config)
    assert len(context.get_ca_certs()) == 1
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


async def test_client_reads_unverified_server_only_if_config_allows(fault_server, tools):
    async def answer(asked, writer):
        writer.write(tools.http({"gitVersion": "v1"}))

    server = await fault_server(answer)
    for trust in ({}, {"ca_data": tools.Authority("other").pem}):
        async with Client(dataclasses.replace(server.config, **{"ca_data": None, **trust})) as client:
            with pytest.raises(Unreachable):
                await client.request("GET", "/version")
    insecure = dataclasses.replace(server.config, ca_data=None, insecure_skip_tls_verify=True)
    async with Client(insecure) as client:
        assert await client.request("GET", "/version") == {"gitVersion": "v1"}


def test_fingerprint_of_an_unverified_server_is_its_own(config):
    plain = dataclasses.replace(config, ca_data=None)
    assert fingerprint(plain) != fingerprint(dataclasses.replace(plain, insecure_skip_tls_verify=True))


def test_ssl_context_leaks_no_descriptor(config):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        ssl_context(config)
    assert len(os.listdir("/proc/self/fd")) == before


def test_require_usable_refuses_bad_keys_without_showing_them(config, tools):
    require_usable(config)
    require_usable(dataclasses.replace(config, ca_data=None, client_certificate=None, client_key=None))
    other = tools.Authority().issue("client")
    for key in (other.key, b"garbage-key", other.key.replace(b"M", b"N", 9)):
        with pytest.raises(KubeconfigError, match="client-key-data") as refused:
            require_usable(dataclasses.replace(config, client_key=key))
        shown = "".join(traceback.format_exception(refused.value))
        assert not [line for line in key.decode().splitlines() if line in shown]


def test_ssl_context_refuses_mismatched_and_encrypted_keys(config, tools):
    other = tools.Authority().issue("client")
    with pytest.raises(KubeconfigError, match="do not fit together"):
        ssl_context(dataclasses.replace(config, client_key=other.key))
    key = serialization.load_pem_private_key(config.client_key, password=None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"password"),
    )
    with pytest.raises(KubeconfigError):
        ssl_context(dataclasses.replace(config, client_key=locked))


def test_ssl_context_uses_a_private_file_without_memfd(config, monkeypatch, tmp_path):
    """macOS has no memfd."""
    modes = []
    load = ssl.SSLContext.load_cert_chain

    def watched(context, path, **options):
        modes.append(os.stat(path).st_mode & 0o777)
        load(context, path, **options)

    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", watched)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    require_usable(config)
    assert modes == [0o600]
    assert list(tmp_path.iterdir()) == []
