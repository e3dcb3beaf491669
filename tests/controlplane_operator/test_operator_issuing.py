"""Published credentials are used again while they are good, and no longer."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controlplane_operator.credentials import create_authority, render_kubeconfig
from controlplane_operator.issuing import Identity, issue_certificate, reusable, until_renewal


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
    return Identity(now + timedelta(seconds=renew_in), now + timedelta(seconds=renew_in * 2), token="secret")


def test_a_good_token_is_used_again_and_one_that_is_due_is_not() -> None:
    good = token(60)
    assert reusable(published(good), by_certificate=False) == good
    assert reusable(published(token(-1)), by_certificate=False) is None
    assert reusable(None, by_certificate=False) is None


def test_a_change_of_the_model_issues_anew() -> None:
    certificate = issue_certificate(create_authority("tenant"), user="kplane:admin")
    assert reusable(published(certificate), by_certificate=True) == certificate
    assert reusable(published(certificate), by_certificate=False) is None
    assert reusable(published(token(60)), by_certificate=True) is None


@pytest.mark.parametrize("garbage", [b"garbage", b"{}", b"\xff\xfe", b"[]"])
def test_what_somebody_spoiled_is_issued_anew(garbage: bytes) -> None:
    assert reusable(published(token(60), kubeconfig=garbage), by_certificate=False) is None


def test_a_certificate_is_renewed_after_two_thirds_of_its_day() -> None:
    certificate = issue_certificate(create_authority("tenant"), user="kplane:admin")
    assert until_renewal(certificate) == pytest.approx(16 * 3600, abs=60)


def test_no_secret_shows_in_a_repr() -> None:
    certificate = issue_certificate(create_authority("tenant"), user="kplane:admin")
    assert "PRIVATE" not in repr(certificate)
    assert "secret" not in repr(token(60))
