"""Published credentials: reused while they are valid and as configured, and otherwise issued again."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import pytest

from kplane.controlplane_operator.errors import BootstrapFailed
from kplane.controlplane_operator.tenant.tokens import issue_token
from kplane.pki import issuing
from kplane.pki.issuing import (
    Identity,
    expires_at,
    issue_certificate,
    of_certificate,
    reusable,
    sign_token,
    until_renewal,
)
from kplane.pki.kubeconfig import render_kubeconfig
from kplane.pki.primitives import create_authority, create_signing_key

DAY = timedelta(days=1)


def published(identity: Identity, *, kubeconfig: bytes | None = None) -> dict[str, Any]:
    content = kubeconfig or render_kubeconfig(
        server="https://api.example", ca=None, token=identity.token, client=identity.client
    )
    return {
        "metadata": {"annotations": identity.annotations()},
        "data": {"kubeconfig": base64.b64encode(content).decode()},
    }


def token(renew_in: float) -> Identity:
    now = datetime.now(UTC)
    renew_at, ends = now + timedelta(seconds=renew_in), now + timedelta(seconds=renew_in * 2)
    return Identity(renew_at, ends, token="secret", lifetime=DAY)


def test_reusable_returns_valid_token_and_no_due_token() -> None:
    valid_token = token(60)
    assert reusable(published(valid_token), by_certificate=False, lifetime=DAY) == valid_token
    assert reusable(published(token(-1)), by_certificate=False, lifetime=DAY) is None
    assert reusable(None, by_certificate=False, lifetime=DAY) is None


def test_reusable_refuses_credential_of_other_auth_model() -> None:
    certificate = issue_certificate(create_authority("tenant"), user="kplane:admin", lifetime=DAY)
    assert reusable(published(certificate), by_certificate=True, lifetime=DAY) == certificate
    assert reusable(published(certificate), by_certificate=False, lifetime=DAY) is None
    assert reusable(published(token(60)), by_certificate=True, lifetime=DAY) is None


@pytest.mark.parametrize("lifetime", [timedelta(minutes=10), timedelta(hours=25)])
def test_reusable_refuses_credential_of_other_lifetime(lifetime: timedelta) -> None:
    certificate = issue_certificate(create_authority("tenant"), user="kplane:admin", lifetime=DAY)
    assert reusable(published(token(60)), by_certificate=False, lifetime=lifetime) is None
    assert reusable(published(certificate), by_certificate=True, lifetime=lifetime) is None


@pytest.mark.parametrize("garbage", [b"garbage", b"{}", b"\xff\xfe", b"[]"])
def test_reusable_refuses_damaged_kubeconfig(garbage: bytes) -> None:
    assert reusable(published(token(60), kubeconfig=garbage), by_certificate=False, lifetime=DAY) is None


def test_reusable_refuses_replaced_token_and_edited_times() -> None:
    """The replaced token may be valid, and the edited times would prevent a renewal for ever."""
    other_kubeconfig = render_kubeconfig(server="https://api.example", ca=None, token="somebody else's", client=None)
    assert reusable(published(token(60), kubeconfig=other_kubeconfig), by_certificate=False, lifetime=DAY) is None
    for annotation in ("renew-at", "expires-at"):
        secret = published(token(60))
        secret["metadata"]["annotations"][f"controlplane.kplane.dev/{annotation}"] = "2099-01-01T00:00:00+00:00"
        assert reusable(secret, by_certificate=False, lifetime=DAY) is None
    for annotation_key in token(60).annotations():
        secret = published(token(60))
        del secret["metadata"]["annotations"][annotation_key]
        assert reusable(secret, by_certificate=False, lifetime=DAY) is None


def test_expires_at_is_none_for_invalid_or_missing_annotation() -> None:
    valid_token = token(60)
    assert expires_at(published(valid_token)) == valid_token.expires_at
    for value in ("soon", "2099-01-01T00:00:00", 5):
        assert expires_at({"metadata": {"annotations": {"controlplane.kplane.dev/expires-at": value}}}) is None
    assert expires_at({"metadata": {}}) is None


@pytest.mark.parametrize("hours", [1 / 6, 24, 8760])
def test_certificate_is_renewed_after_a_third_of_its_lifetime(hours: float) -> None:
    lifetime = timedelta(hours=hours)
    certificate = issue_certificate(create_authority("tenant"), user="kplane:admin", lifetime=lifetime)
    assert until_renewal(certificate) == pytest.approx(hours * 1200, abs=5)
    assert (certificate.expires_at - datetime.now(UTC)).total_seconds() == pytest.approx(hours * 3600, abs=5)
    assert certificate.client is not None
    # A certificate of kplane's own programs lives longer, and is renewed after two thirds.
    assert until_renewal(of_certificate(certificate.client)) == pytest.approx(hours * 2400, abs=5)


class Granting:
    """Fake API server that grants a fixed token lifetime."""

    def __init__(self, granted: timedelta) -> None:
        self.granted = granted
        self.asked: list[int] = []

    async def request(self, method: str, path: str, *, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(body["spec"]["expirationSeconds"])
        ends = (datetime.now(UTC) + self.granted).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {"status": {"token": "secret", "expirationTimestamp": ends}}


async def test_token_is_renewed_after_a_third_of_granted_lifetime() -> None:
    server: Any = Granting(timedelta(hours=3))
    issued = await issue_token(server, service_account="any", lifetime=timedelta(hours=90))
    assert server.asked == [90 * 3600]
    assert until_renewal(issued) == pytest.approx(3600, abs=5)
    # Reuse compares the requested lifetime. By the granted lifetime, the token would be issued again for ever.
    assert reusable(published(issued), by_certificate=False, lifetime=timedelta(hours=90)) == issued


async def test_issue_token_refuses_token_that_expired_by_own_clock() -> None:
    server: Any = Granting(timedelta(minutes=-5))
    with pytest.raises(BootstrapFailed, match="set the clocks of both machines right"):
        await issue_token(server, service_account="any", lifetime=DAY)


def test_identity_repr_shows_no_secret() -> None:
    certificate = issue_certificate(create_authority("tenant"), user="kplane:admin", lifetime=DAY)
    assert "PRIVATE" not in repr(certificate)
    assert "secret" not in repr(token(60))


@pytest.mark.parametrize("by_certificate", [False, True])
def test_credential_is_issued_anew_when_the_clock_is_set_back(
    by_certificate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_certificate:
        identity = issue_certificate(create_authority("tenant"), user="kplane:admin", lifetime=DAY)
    else:
        identity = sign_token(create_signing_key(), namespace="a", service_account="b", uid="c", lifetime=DAY)
    secret = published(identity)
    assert reusable(secret, by_certificate=by_certificate, lifetime=DAY) == identity
    corrected = datetime.now(UTC) - 2 * DAY

    class Corrected(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return corrected

    monkeypatch.setattr(issuing, "datetime", Corrected)
    assert reusable(secret, by_certificate=by_certificate, lifetime=DAY) is None
