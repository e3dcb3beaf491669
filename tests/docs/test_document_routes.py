"""Each command of the documents is on a route that the end-to-end suite goes."""

from __future__ import annotations

from e2e.documents import all_documents, blocks, document
from e2e.routes import ROUTES


def test_each_block_of_a_route_is_on_it() -> None:
    """Each block of a route is run by the route that it names, and each stop of a route has a block."""
    marked = {
        (name, block.section, block.route)
        for name in all_documents()
        for block in blocks(document(name))
        if block.route is not None
    }
    assert {route for _, _, route in marked} == set(ROUTES)
    stops = {(stop.document, stop.section, route) for route, stops in ROUTES.items() for stop in stops}
    assert not marked - stops
    assert all(stop.blocks(route) for route, stops in ROUTES.items() for stop in stops)
