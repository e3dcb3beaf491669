"""Readiness of an API server before publication: its data must be bootstrapped."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from kplane.api import ControlPlane
from kplane.controlplane_operator.backends import readiness
from kplane.controlplane_operator.backends.readiness import check_bootstrapped, is_bootstrapped
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.pki.primitives import create_authority, issue_serving
from kplane.provider import ClusterConfig


def _control_plane(version: str | None = None) -> ControlPlane:
    status = {"endpoint": "https://acme", "version": version} if version is not None else {}
    return ControlPlane.model_validate({"metadata": {"name": "acme"}, "spec": {}, "status": status})


@pytest.mark.parametrize(
    ("former", "present", "fresh", "bootstrapped"),
    [
        (None, "1.36.3", False, False),  # no data, or data of a former control plane
        (None, "1.36.3", True, True),  # a copy of a template
        ("v1.36.3", "1.36.3", False, True),  # the control plane wakes
        ("v1.36.3+vendor", "v1.36.3", False, True),
        ("v1.36.2", "1.36.3", False, False),
        ("v1.36.3", "1.37.0", False, False),
        ("v1.36.3", None, False, True),
        ("unknown", "1.36.3", False, True),
    ],
)
def test_is_bootstrapped_for_same_version_or_fresh_copy(
    former: str | None, present: str | None, fresh: bool, bootstrapped: bool
) -> None:
    assert is_bootstrapped(_control_plane(former), version=present, fresh=fresh) is bootstrapped


@asynccontextmanager
async def _api_server(codes: Iterator[int], *, directory: Path) -> AsyncIterator[ClusterConfig]:
    """Serve `/readyz` with these status codes in turn, and 404 for each other path."""
    authority = create_authority("acme")
    pair = issue_serving(authority, common_name="acme", hosts=["127.0.0.1"])
    pem = directory / "server.pem"
    pem.write_bytes(pair.certificate + pair.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pem)

    async def answer(request: web.BaseRequest) -> web.Response:
        return web.Response(status=next(codes) if request.raw_path == "/readyz" else 404)

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield ClusterConfig(f"https://{host}:{port}", ca_data=authority.certificate)
    finally:
        await runner.cleanup()


async def test_check_bootstrapped_polls_readyz_until_status_200(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(readiness, "_POLL_SECONDS", 0.001)
    codes = iter((500, 500, 200))
    async with _api_server(codes, directory=tmp_path) as config:
        await check_bootstrapped(config, published=False, connections=None)
    assert list(codes) == []


@pytest.mark.parametrize(("published", "reason"), [(False, "Provisioning"), (True, "APIServerNotReady")])
async def test_check_bootstrapped_raises_waiting_reason_after_patience(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, published: bool, reason: str
) -> None:
    monkeypatch.setattr(readiness, "_PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(readiness, "_POLL_SECONDS", 0.001)

    def failing() -> Iterator[int]:
        while True:
            yield 500

    async with _api_server(failing(), directory=tmp_path) as config:
        with pytest.raises(ConditionError, match="which bootstraps its data") as waiting:
            await check_bootstrapped(config, published=published, connections=None)
    assert waiting.value.reason == reason
