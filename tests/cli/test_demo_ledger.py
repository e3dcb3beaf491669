"""The demo's ledger reports writes that were lost or refused during a move."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from kplane.cli.demo.ledger import Ledger
from kplane.cli.errors import DemoFailed
from tests.tls_server import serve_over_tls

_OBJECTS = "/api/v1/namespaces/default/configmaps"


class Store:
    """ConfigMaps of a fake API server."""

    def __init__(self) -> None:
        self.items: dict[str, dict[str, Any]] = {
            "kube-root-ca.crt": {"metadata": {"name": "kube-root-ca.crt", "uid": "other"}}
        }
        self.refuse: Callable[[str], bool] = lambda method: False

    async def create(self, request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer secret"
        if self.refuse("POST"):
            raise web.HTTPServiceUnavailable(text="no home")
        item = await request.json()
        item["metadata"]["uid"] = str(uuid.uuid4())
        self.items[item["metadata"]["name"]] = item
        return web.json_response(item, status=201)

    async def patch(self, request: web.Request) -> web.Response:
        assert request.content_type == "application/merge-patch+json"
        if self.refuse("PATCH"):
            raise web.HTTPServiceUnavailable(text="no home")
        item = self.items[request.match_info["name"]]
        item["data"] = (await request.json())["data"]
        return web.json_response(item)

    async def read(self, request: web.Request) -> web.Response:
        return web.json_response({"items": list(self.items.values())})


@pytest.fixture
def store() -> Store:
    return Store()


@pytest_asyncio.fixture
async def ledger(store: Store, tmp_path: Path) -> AsyncIterator[Ledger]:
    app = web.Application()
    app.router.add_post(_OBJECTS, store.create)
    app.router.add_patch(f"{_OBJECTS}/{{name}}", store.patch)
    app.router.add_get(_OBJECTS, store.read)
    async with serve_over_tls(app, tmp_path) as config, Ledger(config) as ledger:
        yield ledger


async def test_verification_passes_if_objects_match_last_write(
    store: Store, ledger: Ledger, eventually: Callable[..., Awaitable[Any]]
) -> None:
    await ledger.fill(10)
    filled = set(store.items)
    async with ledger.writing():
        await eventually(lambda: ledger.acknowledged > 10)
        inside = ledger.acknowledged
    assert len(filled) > 10
    assert ledger.acknowledged == 2 * len(store.items.keys() - filled), "counts from the beginning of `writing`"
    assert ledger.acknowledged >= inside + 8, "each of four writers writes once more, after the end"
    assert ledger.slowest_seconds > 0
    await ledger.verify("acme")


def _gone(store: Store) -> None:
    del store.items["entry-1"]


def _older(store: Store) -> None:
    store.items["entry-1"]["data"]["value"] = "created"


def _made_again(store: Store) -> None:
    store.items["entry-1"]["metadata"]["uid"] = "new"


@pytest.mark.parametrize("lose", [_gone, _older, _made_again])
async def test_verification_names_object_that_lost_a_write(
    store: Store, ledger: Ledger, lose: Callable[[Store], None]
) -> None:
    await ledger.fill(10)
    lose(store)
    with pytest.raises(DemoFailed, match=r"failed to keep the data of acme: 1 of \d+ objects lost .*: entry-1 is "):
        await ledger.verify("acme")


@pytest.mark.parametrize("refused", ["POST", "PATCH"])
async def test_failed_write_is_reported_and_not_retried(store: Store, ledger: Ledger, refused: str) -> None:
    attempts: list[str] = []

    def refuse_second(method: str) -> bool:
        if method == refused:
            attempts.append(method)
        return method == refused and len(attempts) == 2

    store.refuse = refuse_second
    await ledger.fill(10)
    assert len(ledger.errors) == 1
    with pytest.raises(DemoFailed, match=rf"failed to write into acme .*: 1 of its .*: {refused} .*: 503 no home"):
        await ledger.verify("acme")
