"""Webhooks with self-signed certificates: the served certificate, and the caBundles in the cluster."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from kplane.provider import ClusterConfig, Manager, ProviderError
from kplane.provider.client.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    MUTATING_WEBHOOK_CONFIGURATIONS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)
from kplane.provider.errors import Forbidden
from kplane.provider.testing import FakeCluster
from kplane.provider.webhooks import SelfSigned, Webhooks, self_signed
from kplane.provider.webhooks.authority import Authority, bundle_with
from kplane.provider.webhooks.self_signed import SelfSignedCertificate

NOWHERE = ClusterConfig("https://127.0.0.1:1")


def configuration(name, *webhooks):
    entries = [{"name": each, "clientConfig": {"url": f"https://localhost/{each}"}} for each in webhooks]
    return {"metadata": {"name": name}, "webhooks": entries}


def definition(name, **webhook):
    return {"metadata": {"name": name}, "spec": {"conversion": {"strategy": "Webhook", "webhook": webhook}}}


@pytest.fixture
async def cluster():
    made = FakeCluster("")
    yield made
    await made.aclose()


@contextlib.asynccontextmanager
async def following(cluster, *hosts, **targets):
    """Run a certificate as a webhook server does, and yield the certificate."""
    certificate = SelfSignedCertificate(SelfSigned(*(hosts or ("localhost",)), **targets), cluster)
    await certificate.load()
    task = asyncio.create_task(certificate.follow())
    try:
        yield certificate
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.wait({task})


async def bundles(cluster, name, resource=VALIDATING_WEBHOOK_CONFIGURATIONS):
    """Return the caBundle of each webhook of a configuration, decoded."""
    found = await cluster.client.get(resource, name)
    if resource == CUSTOM_RESOURCE_DEFINITIONS:
        configurations = [found["spec"]["conversion"]["webhook"]["clientConfig"]]
    else:
        configurations = [each["clientConfig"] for each in found["webhooks"]]
    return [base64.b64decode(each.get("caBundle", "")) for each in configurations]


class TestServing:
    @contextlib.asynccontextmanager
    async def serving(self, hosts=("127.0.0.1", "localhost"), **options):
        manager = Manager(NOWHERE, name="test")
        webhooks = Webhooks(manager, self_signed=SelfSigned(*hosts), host="127.0.0.1", port=0, **options)
        manager.add(webhooks)
        async with manager:
            await asyncio.wait_for(webhooks.listening.wait(), 30)
            yield webhooks

    async def shown(self, webhooks, *, name="127.0.0.1"):
        """Return the served certificate, as received by a client that trusts the caBundle."""
        trusted = ssl.create_default_context(cadata=webhooks._certificate._bundle(b"").decode())
        trusted.verify_flags |= ssl.VERIFY_X509_STRICT
        _, writer = await asyncio.open_connection(*webhooks.address, ssl=trusted, server_hostname=name)
        try:
            return writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        finally:
            writer.transport.abort()

    async def test_certificate_is_valid_for_each_host(self):
        async with self.serving() as webhooks:
            for name in ("127.0.0.1", "localhost"):
                assert await self.shown(webhooks, name=name)
            with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
                await self.shown(webhooks, name="other.test")

    async def test_certificate_is_renewed_by_the_same_authority(self, monkeypatch, eventually):
        monkeypatch.setattr(self_signed, "_RENEW_SECONDS", 0.2)
        async with self.serving() as webhooks:
            first = await self.shown(webhooks)
            await eventually(lambda: self.shown(webhooks), lambda found: found != first)

    async def test_certificate_is_valid_for_30_days(self):
        issued = x509.load_pem_x509_certificate(Authority().issue(["localhost", "::1"]).certificate)
        now = datetime.now(UTC)
        assert now + timedelta(days=29) < issued.not_valid_after_utc < now + timedelta(days=31)
        names = issued.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == ["localhost"]
        assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["::1"]

    def test_certificates_stay_valid_when_clock_is_set_back_two_days(self):
        authority, past = Authority(), datetime.now(UTC) - timedelta(days=2)
        for certificate in (authority.certificate, authority.issue(["localhost"]).certificate):
            assert x509.load_pem_x509_certificate(certificate).not_valid_before_utc < past

    def test_webhooks_require_one_kind_of_certificate(self, tmp_path):
        manager, options = Manager(NOWHERE, name="test"), SelfSigned("localhost")
        for given in (
            {},
            {"certificate": tmp_path},
            {"key": tmp_path, "self_signed": options},
            {"certificate": tmp_path, "key": tmp_path, "self_signed": options},
        ):
            with pytest.raises(ProviderError, match="give certificate= and key=, or self_signed= alone"):
                Webhooks(manager, **given)

    def test_self_signed_refuses_invalid_options(self):
        with pytest.raises(ProviderError, match="needs a host"):
            SelfSigned()
        with pytest.raises(ProviderError, match="write a tuple"):
            SelfSigned("localhost", validating="mine")

    def test_webhooks_with_files_do_not_load_cryptography(self):
        program = "import sys, kplane.provider.webhooks; print('cryptography' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout == "False\n"


class TestBundles:
    async def test_bundle_is_written_to_all_targets(self, cluster, eventually):
        client = cluster.client
        await client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, configuration("mine", "a", "b"))
        await client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, configuration("other", "a"))
        await client.create(MUTATING_WEBHOOK_CONFIGURATIONS, configuration("mine", "a"))
        await client.create(CUSTOM_RESOURCE_DEFINITIONS, definition("widgets", clientConfig={"url": "https://x"}))
        targets = {"validating": ("mine",), "mutating": ("mine",), "conversion": ("widgets",)}
        async with following(cluster, **targets) as certificate:
            own = certificate._bundle(b"")
            await eventually(lambda: bundles(cluster, "mine"), lambda found: found == [own, own])
            await eventually(
                lambda: bundles(cluster, "mine", MUTATING_WEBHOOK_CONFIGURATIONS), lambda found: found == [own]
            )
            await eventually(
                lambda: bundles(cluster, "widgets", CUSTOM_RESOURCE_DEFINITIONS), lambda found: found == [own]
            )
        assert await bundles(cluster, "other") == [b""]

    async def test_bundle_is_written_to_later_and_changed_targets(self, cluster, eventually, caplog):
        async with following(cluster, validating=("mine",)) as certificate:
            own = certificate._bundle(b"")
            await eventually(
                lambda: "caBundle of ValidatingWebhookConfiguration mine: it does not exist; create it" in caplog.text
            )
            await cluster.client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, configuration("mine", "a"))
            await eventually(lambda: bundles(cluster, "mine"), lambda found: found == [own])
            changed = configuration("mine", "a", "b")
            await cluster.client.patch(VALIDATING_WEBHOOK_CONFIGURATIONS, "mine", changed)
            await eventually(lambda: bundles(cluster, "mine"), lambda found: found == [own, own])

    async def test_failing_target_delays_no_other(self, cluster, eventually, caplog):
        client = cluster.client
        await client.create(CUSTOM_RESOURCE_DEFINITIONS, {"metadata": {"name": "widgets"}, "spec": {}})
        await client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, configuration("odd"))
        await client.create(MUTATING_WEBHOOK_CONFIGURATIONS, configuration("mine", "a"))
        targets = {"validating": ("missing", "odd"), "conversion": ("widgets",), "mutating": ("mine",)}
        async with following(cluster, **targets) as certificate:
            own = certificate._bundle(b"")
            await eventually(
                lambda: bundles(cluster, "mine", MUTATING_WEBHOOK_CONFIGURATIONS), lambda found: found == [own]
            )
            for failed in ("CustomResourceDefinition widgets", "ValidatingWebhookConfiguration odd"):
                await eventually(
                    lambda failed=failed: f"{failed}: it has no webhook with a clientConfig" in caplog.text
                )

    async def test_refused_bundle_write_is_retried_and_logged_once(self, cluster, eventually, caplog):
        refusal = Forbidden(403, "Forbidden", "you must not patch")
        cluster.fail(refusal, verb="patch", kind=VALIDATING_WEBHOOK_CONFIGURATIONS, times=2)
        await cluster.client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, configuration("mine", "a"))
        async with following(cluster, validating=("mine",)) as certificate:
            own = certificate._bundle(b"")
            await eventually(lambda: bundles(cluster, "mine"), lambda found: found == [own])
        assert caplog.text.count("mine: you must not patch") == 1

    async def test_replicas_keep_bundles_of_each_other(self, cluster, eventually):
        await cluster.client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, configuration("mine", "a"))
        async with following(cluster, validating=("mine",)) as one, following(cluster, validating=("mine",)) as two:
            both = one._bundle(two._bundle(b""))
            await eventually(lambda: bundles(cluster, "mine"), lambda found: found == [both])
            version = (await cluster.client.get(VALIDATING_WEBHOOK_CONFIGURATIONS, "mine"))["metadata"]
            for _ in range(50):
                await asyncio.sleep(0)
            after = (await cluster.client.get(VALIDATING_WEBHOOK_CONFIGURATIONS, "mine"))["metadata"]
            assert after["resourceVersion"] == version["resourceVersion"]


class TestBundleWith:
    def test_bundle_drops_foreign_and_broken_certificates(self):
        own = Authority().certificate
        assert bundle_with(own, b"\n") == own
        assert bundle_with(own, b"-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n") == own
        foreign = Authority().issue(["localhost"]).certificate
        assert bundle_with(own, foreign) == own

    def test_bundle_order_is_equal_in_all_processes(self):
        one, two = Authority().certificate, Authority().certificate
        assert bundle_with(one, two) == bundle_with(two, one) == bundle_with(one, bundle_with(two, one))

    def test_bundle_keeps_32_authorities_and_its_own(self):
        others = [Authority().certificate for _ in range(33)]
        own = others[0]
        kept = bundle_with(own, b"".join(others[1:]))
        assert kept.count(b"BEGIN CERTIFICATE") == 32
        assert own in kept
