"""A control plane is published when its API server has bootstrapped its data, or finds them so."""

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
        (None, "1.36.3", False, False),  # nothing, or what a former control plane has left
        (None, "1.36.3", True, True),  # a copy of a template
        ("v1.36.3", "1.36.3", False, True),  # it wakes
        ("v1.36.3+vendor", "v1.36.3", False, True),
        ("v1.36.2", "1.36.3", False, False),
        ("v1.36.3", "1.37.0", False, False),
        ("v1.36.3", None, False, True),
        ("unknown", "1.36.3", False, True),
    ],
)
def test_data_are_bootstrapped_by_an_api_server_of_their_version(
    former: str | None, present: str | None, fresh: bool, bootstrapped: bool
) -> None:
    assert is_bootstrapped(_control_plane(former), version=present, fresh=fresh) is bootstrapped


@asynccontextmanager
async def _api_server(codes: Iterator[int], *, directory: Path) -> AsyncIterator[ClusterConfig]:
    """Answer `/readyz`, and nothing else, with these codes."""
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


async def test_it_waits_for_one_that_is_about_to_write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(readiness, "_POLL_SECONDS", 0.001)
    codes = iter((500, 500, 200))
    async with _api_server(codes, directory=tmp_path) as config:
        await check_bootstrapped(config, published=False, connections=None)
    assert list(codes) == []


@pytest.mark.parametrize(("published", "reason"), [(False, "Provisioning"), (True, "APIServerNotReady")])
async def test_it_says_that_it_waits(
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
