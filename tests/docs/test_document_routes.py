"""Each command of the documents belongs to a route of the end-to-end suite."""

from __future__ import annotations

from e2e.documents import all_documents, blocks, document
from e2e.routes import ROUTES


def test_blocks_and_stops_of_each_route_agree() -> None:
    """Each block belongs to a stop of the route that it names, and each stop has a block."""
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
