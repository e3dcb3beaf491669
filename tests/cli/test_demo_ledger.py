"""The demo's ledger finds what a move lost, and what its writers were refused."""

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
    """ConfigMaps as an API server has them."""

    def __init__(self) -> None:
        self.items: dict[str, dict[str, Any]] = {
            "kube-root-ca.crt": {"metadata": {"name": "kube-root-ca.crt", "uid": "other"}}
        }
        self.refuse: Callable[[str], bool] = lambda method: False

    async def create(self, request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer secret"
        if self.refuse("POST"):
            raise web.HTTPServiceUnavailable(text="no home")
        made = await request.json()
        made["metadata"]["uid"] = str(uuid.uuid4())
        self.items[made["metadata"]["name"]] = made
        return web.json_response(made, status=201)

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
    async with serve_over_tls(app, tmp_path) as config, Ledger(config) as made:
        yield made


async def test_accepts_objects_that_are_as_the_last_write_left_them(
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
async def test_finds_an_object_that_lost_a_write(store: Store, ledger: Ledger, lose: Callable[[Store], None]) -> None:
    await ledger.fill(10)
    lose(store)
    with pytest.raises(DemoFailed, match=r"failed to keep the data of acme: 1 of \d+ objects lost .*: entry-1 is "):
        await ledger.verify("acme")


@pytest.mark.parametrize("refused", ["POST", "PATCH"])
async def test_reports_an_error_and_does_not_retry(store: Store, ledger: Ledger, refused: str) -> None:
    seen: list[str] = []

    def refuse_second(method: str) -> bool:
        if method == refused:
            seen.append(method)
        return method == refused and len(seen) == 2

    store.refuse = refuse_second
    await ledger.fill(10)
    assert len(ledger.errors) == 1
    with pytest.raises(DemoFailed, match=rf"failed to write into acme .*: 1 of its .*: {refused} .*: 503 no home"):
        await ledger.verify("acme")
