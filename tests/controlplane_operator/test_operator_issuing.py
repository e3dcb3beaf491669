"""Published credentials are used again while they are good, and no longer."""

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


def test_a_good_token_is_used_again_and_one_that_is_due_is_not() -> None:
    good = token(60)
    assert reusable(published(good), by_certificate=False, lifetime=DAY) == good
    assert reusable(published(token(-1)), by_certificate=False, lifetime=DAY) is None
    assert reusable(None, by_certificate=False, lifetime=DAY) is None


def test_a_change_of_the_model_issues_anew() -> None:
    certificate = issue_certificate(create_authority("tenant"), user="kplane:admin", lifetime=DAY)
    assert reusable(published(certificate), by_certificate=True, lifetime=DAY) == certificate
    assert reusable(published(certificate), by_certificate=False, lifetime=DAY) is None
    assert reusable(published(token(60)), by_certificate=True, lifetime=DAY) is None


@pytest.mark.parametrize("lifetime", [timedelta(minutes=10), timedelta(hours=25)])
def test_a_change_of_the_lifetime_issues_anew(lifetime: timedelta) -> None:
    certificate = issue_certificate(create_authority("tenant"), user="kplane:admin", lifetime=DAY)
    assert reusable(published(token(60)), by_certificate=False, lifetime=lifetime) is None
    assert reusable(published(certificate), by_certificate=True, lifetime=lifetime) is None


@pytest.mark.parametrize("garbage", [b"garbage", b"{}", b"\xff\xfe", b"[]"])
def test_what_somebody_spoiled_is_issued_anew(garbage: bytes) -> None:
    assert reusable(published(token(60), kubeconfig=garbage), by_certificate=False, lifetime=DAY) is None


def test_what_somebody_exchanged_is_issued_anew() -> None:
    """Another token, though it may be a good one, and another time, by which it would never be renewed."""
    other = render_kubeconfig(server="https://api.example", ca=None, token="somebody else's", client=None)
    assert reusable(published(token(60), kubeconfig=other), by_certificate=False, lifetime=DAY) is None
    for edited in ("renew-at", "expires-at"):
        secret = published(token(60))
        secret["metadata"]["annotations"][f"controlplane.kplane.dev/{edited}"] = "2099-01-01T00:00:00+00:00"
        assert reusable(secret, by_certificate=False, lifetime=DAY) is None
    for lost in token(60).annotations():
        secret = published(token(60))
        del secret["metadata"]["annotations"][lost]
        assert reusable(secret, by_certificate=False, lifetime=DAY) is None


def test_the_end_that_a_secret_notes_is_read_where_it_can_be() -> None:
    good = token(60)
    assert expires_at(published(good)) == good.expires_at
    for nonsense in ("soon", "2099-01-01T00:00:00", 5):
        assert expires_at({"metadata": {"annotations": {"controlplane.kplane.dev/expires-at": nonsense}}}) is None
    assert expires_at({"metadata": {}}) is None


@pytest.mark.parametrize("hours", [1 / 6, 24, 8760])
def test_a_certificate_is_renewed_after_a_third_of_its_life(hours: float) -> None:
    lifetime = timedelta(hours=hours)
    certificate = issue_certificate(create_authority("tenant"), user="kplane:admin", lifetime=lifetime)
    assert until_renewal(certificate) == pytest.approx(hours * 1200, abs=5)
    assert (certificate.expires_at - datetime.now(UTC)).total_seconds() == pytest.approx(hours * 3600, abs=5)
    assert certificate.client is not None
    # A certificate of kplane's own programs lives longer, and is renewed after two thirds.
    assert until_renewal(of_certificate(certificate.client)) == pytest.approx(hours * 2400, abs=5)


class Granting:
    """Stands for an API server that grants the lifetime that it wants."""

    def __init__(self, granted: timedelta) -> None:
        self.granted = granted
        self.asked: list[int] = []

    async def request(self, method: str, path: str, *, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(body["spec"]["expirationSeconds"])
        ends = (datetime.now(UTC) + self.granted).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {"status": {"token": "secret", "expirationTimestamp": ends}}


async def test_a_token_is_renewed_after_a_third_of_what_was_granted() -> None:
    server: Any = Granting(timedelta(hours=3))
    issued = await issue_token(server, service_account="any", lifetime=timedelta(hours=90))
    assert server.asked == [90 * 3600]
    assert until_renewal(issued) == pytest.approx(3600, abs=5)
    # What was granted does not make it another one than was asked for: else it would be issued anew for ever.
    assert reusable(published(issued), by_certificate=False, lifetime=timedelta(hours=90)) == issued


async def test_a_token_that_has_ended_by_our_clock_is_no_token() -> None:
    server: Any = Granting(timedelta(minutes=-5))
    with pytest.raises(BootstrapFailed, match="set the clocks of both machines right"):
        await issue_token(server, service_account="any", lifetime=DAY)


def test_no_secret_shows_in_a_repr() -> None:
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
